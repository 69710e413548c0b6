"""SWE-agent's trajectories: a call for each message of the model, with the history as its prompt."""

from __future__ import annotations

import json

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace

COUNTS = {
    "ctf_crypto_katy": 18, "marshmallow-1867_default": 11, "marshmallow-1867_function_calling_replace": 11,
    "pydicom-1458_gpt4": 12,
}  # fmt: skip


def said(role, content, **other):
    return {"role": role, "content": content, "agent": "main"} | other


def run(*history, **other):
    return {
        "environment": "e",
        "trajectory": [],
        "history": list(history),
        "info": {"model_stats": {"tokens_sent": 0}},
    } | other


@pytest.mark.parametrize("name", COUNTS)
def test_every_file_against_a_plain_loop(shared, name):
    path = shared / "traces" / "swe-agent" / f"{name}.traj"
    history = json.loads(path.read_text())["history"]
    trace = read_trace(path)
    assert (trace.format, len(trace), trace.content, trace.duration_s) == ("swe-agent", COUNTS[name], "text", None)
    rows = iter(trace.rows.iter_rows(named=True))
    for place, entry in enumerate(history):
        if entry["role"] != "assistant" or entry.get("is_demo"):
            continue
        row = next(rows)
        contents = [one["content"] for one in history[:place]]
        assert row["prompt_text"].startswith(f"system:\n{contents[0]}\n\n")
        assert row["prompt_text"].endswith(f"{contents[-1]}\n\nassistant:\n")
        assert all(content in row["prompt_text"] for content in contents if isinstance(content, str))
        assert row["output_text"].startswith(entry["content"])
        assert row["output_text"].count("<tool_call>") == len(entry.get("tool_calls") or [])
        assert (row["input_tokens"], row["output_tokens"]) == (None, None)
    assert next(rows, None) is None


def test_the_runs_own_totals_are_only_said(shared):
    trace = read_trace(shared / "traces" / "swe-agent" / "pydicom-1458_gpt4.traj")
    assert any("122,612 tokens sent and 1,369 received" in note for note in trace.notes)
    # About four characters a token: the history is what was sent.
    assert 3 < trace.rows["prompt_text"].str.len_chars().sum() / 122_612 < 5


def test_demonstrations_are_prompt_and_no_calls(jsonl):
    history = [said("system", "S"), said("user", "D", is_demo=True),
               said("assistant", "E", is_demo=True), said("user", "U"),
               said("assistant", "A")]  # fmt: skip
    row = read_trace(jsonl([run(*history)])).rows.to_dicts()[0]
    assert row["prompt_text"] == "system:\nS\n\nuser:\nD\n\nassistant:\nE\n\nuser:\nU\n\nassistant:\n"
    assert row["output_text"] == "A"


def test_agents_do_not_see_each_others_history(jsonl):
    history = [
        said("user", "U"),
        said("user", "V", agent="sub"),
        said("assistant", "B", agent="sub"),
        said("assistant", "A"),
    ]
    prompts = read_trace(jsonl([run(*history)])).rows["prompt_text"].to_list()
    assert prompts == ["user:\nV\n\nassistant:\n", "user:\nU\n\nassistant:\n"]


def test_what_a_step_sent_comes_before_the_history(jsonl):
    """Newer files record the messages that were sent, shorter than the history where old observations are left out."""
    history = [said("user", "U"), said("assistant", "A"), said("user", "long"), said("assistant", "B")]
    steps = [
        {"query": [said("user", "U")]},
        {"query": [said("user", "U"), said("assistant", "A"), said("user", "cut")]},
    ]
    prompts = read_trace(jsonl([run(*history, trajectory=steps)])).rows["prompt_text"].to_list()
    assert prompts[1] == "user:\nU\n\nassistant:\nA\n\nuser:\ncut\n\nassistant:\n"


def test_runs_are_sessions(jsonl):
    two = run(said("user", "U"), said("assistant", "A"), said("user", "V"), said("assistant", "B"))
    trace = read_trace(jsonl([two, run(said("user", "X")), two]))
    assert trace.rows["session"].to_list() == ["run 1", "run 1", "run 3", "run 3"]
    assert trace.rows["turn"].to_list() == [1, 2, 1, 2]
    assert [entry.rows for entry in trace.left_out] == [1]


def test_a_history_of_another_form(jsonl):
    with pytest.raises(TraceError, match=r":1: history\[1\] has no readable messages before it"):
        read_trace(jsonl([run({"content": "no role"}, said("assistant", "A", agent=None))]))
