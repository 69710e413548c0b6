"""LangSmith's runs: model calls only, and a project that is no session."""

from __future__ import annotations

import json

from inferdoc.traces import read_trace
from inferdoc.traces.formats.langsmith import NESTED, OTHER_RUNS


def run(id, start, end, parent=None, run_type="llm", **other):
    return {
        "id": id, "run_type": run_type, "start_time": f"2026-01-01T00:00:{start:09.6f}",
        "end_time": f"2026-01-01T00:00:{end:09.6f}", "first_token_time": None, "parent_run_id": parent, "trace_id": "t",
        "session_id": "project", "prompt_tokens": 40, "completion_tokens": 4, "error": None, "status": "success",
        "extra": {"metadata": {"ls_model_name": "m"}},
    } | other  # fmt: skip


def test_runs(jsonl):
    rows = [
        run("chain", 0, 9, run_type="chain"),
        run("a", 1, 3, "chain", first_token_time="2026-01-01T00:00:01.250000"),
        run("outer", 4, 9, "chain"),
        run("inner", 4.5, 8, "outer", prompt_tokens=60),
        run("bad", 9, 10, "chain", error="secret", status="error"),
    ]
    trace = read_trace(jsonl(rows))
    assert trace.format == "langsmith"
    first, second = trace.rows.to_dicts()
    assert (first["input_tokens"], first["ttft_s"], first["e2e_s"], first["model"]) == (40, 0.25, 2.0, "m")
    assert (second["input_tokens"], second["arrival_s"], second["e2e_s"]) == (60, 3.5, 3.5)
    assert trace.rows["session"].to_list() == ["t", "t"]
    found = {entry.reason: entry.rows for entry in trace.left_out}
    assert (found[OTHER_RUNS], found[NESTED], sum(found.values())) == (1, 1, 3)
    assert "secret" not in str(trace.notes) + str(found)


def test_threads_messages_and_usage_inside(jsonl):
    human = {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "HumanMessage"],
             "kwargs": {"content": "hello there my good old friend"}}  # fmt: skip
    answer = {"lc": 1, "type": "constructor", "id": ["langchain", "AIMessage"], "kwargs": {"content": "hi"}}
    one = run(
        "a", 0, 1, prompt_tokens=None, completion_tokens=None, extra={"metadata": {"thread_id": "th"}},
        inputs={"messages": [[human]]},
        outputs={"generations": [[{"text": "hi", "message": answer}]],
                 "usage_metadata": {"input_tokens": 12, "output_tokens": 1, "input_token_details": {"cache_read": 8}}},
    )  # fmt: skip
    trace = read_trace(jsonl([one, one | {"id": "b", "inputs": json.dumps(one["inputs"])}]))
    for row in trace.rows.to_dicts():
        assert (row["input_tokens"], row["output_tokens"], row["cached_tokens"], row["session"]) == (12, 1, 8, "th")
        assert (row["prompt_text"], row["output_text"]) == (
            "user:\nhello there my good old friend\n\nassistant:\n",
            "hi",
        )


def test_csv(write):
    names = [name for name in run("x", 0, 1) if name != "extra"]
    rows = [run("a", 0, 1), run("b", 2, 3, run_type="tool")]
    lines = [",".join("" if row[name] is None else str(row[name]) for name in names) for row in rows]
    trace = read_trace(write("runs.csv", "\n".join([",".join(names), *lines])))
    assert (trace.format, len(trace), trace.rows["e2e_s"][0]) == ("langsmith", 1, 1.0)
