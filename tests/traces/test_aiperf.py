"""AIPerf: records in order of completion, metrics with units, bodies in another file."""

from __future__ import annotations

import json
import math
import shutil

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace

FOLDER = "traces/aiperf"


def plain(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_shared_file_against_a_plain_loop(shared):
    path = shared / FOLDER / "profile_export.jsonl"
    records = plain(path)
    payloads = {
        entry["session_id"]: entry["payloads"]
        for entry in json.loads((path.parent / "inputs.json").read_text())["data"]
    }
    good = sorted(
        (record for record in records if "error" not in record), key=lambda r: r["metadata"]["request_start_ns"]
    )
    trace = read_trace(path)
    assert (trace.format, trace.time_unit, len(trace)) == ("aiperf", "ns", 103)
    assert len(trace) + sum(entry.rows for entry in trace.left_out) == len(records) == 105
    first = good[0]["metadata"]["request_start_ns"]
    for row, record in zip(trace.rows.iter_rows(named=True), good, strict=True):
        metadata, metrics = record["metadata"], {name: found["value"] for name, found in record["metrics"].items()}
        assert math.isclose(row["arrival_s"], (metadata["request_start_ns"] - first) / 1e9, abs_tol=1e-9)
        assert (row["session"], row["turn"]) == (metadata["x_correlation_id"], metadata["turn_index"] + 1)
        assert row["input_tokens"] == metrics["usage_prompt_tokens"] != metrics["input_sequence_length"]
        assert row["output_tokens"] == metrics["usage_completion_tokens"]
        assert math.isclose(row["ttft_s"] * 1e3, metrics["time_to_first_token"])
        assert math.isclose(row["e2e_s"] * 1e3, metrics["request_latency"])
        assert math.isclose(sum(row["itl_s"]) * 1e3, sum(metrics["inter_chunk_latency"]))
        said = payloads[metadata["conversation_id"]][metadata["turn_index"]]["messages"][0]["content"]
        assert row["prompt_text"] == (f"user:\n{said}\n\nassistant:\n" if metadata["turn_index"] == 0 else None)
    server, client = (
        sum(r["metrics"][n]["value"] for r in good) for n in ("usage_prompt_tokens", "input_sequence_length")
    )
    assert any(f"{server:,} against {client:,} tokens over 103 requests (-22.1%)" in note for note in trace.notes)


def test_without_inputs_beside_it_there_are_no_prompts(shared, tmp_path):
    shutil.copy(shared / FOLDER / "profile_export.jsonl", tmp_path)
    trace = read_trace(tmp_path / "profile_export.jsonl")
    assert not trace.has("prompt_text")
    assert any("no inputs.json lies beside" in note for note in trace.notes)


def test_the_inputs_alone_are_prompts_without_replies(shared):
    path = shared / FOLDER / "inputs.json"
    data = json.loads(path.read_text())["data"]
    trace = read_trace(path)
    assert trace.format == "aiperf-inputs"
    assert len(trace) == sum(len(entry["payloads"]) for entry in data) == 105
    assert trace.rows["session"].n_unique() == len(data) == 40
    assert trace.rows["output_tokens"].null_count() == trace.rows["input_tokens"].null_count() == 105
    entry = next(entry for entry in data if len(entry["payloads"]) > 1)
    said = [payload["messages"][0]["content"] for payload in entry["payloads"][:2]]
    (second,) = [
        row for row in trace.rows.iter_rows(named=True) if (row["session"], row["turn"]) == (entry["session_id"], 2)
    ]
    assert second["prompt_text"] == f"user:\n{said[0]}\n\nuser:\n{said[1]}\n\nassistant:\n"
    assert any("65 requests are later turns" in note and "lower bounds" in note for note in trace.notes)


@pytest.mark.parametrize("name", ["profile_export_aiperf.json", "profile_export_aiperf.csv"])
def test_the_aggregates_are_refused(shared, name):
    with pytest.raises(TraceError, match=r"aggregates only; give the profile_export\.jsonl"):
        read_trace(shared / FOLDER / name)


def record(start, *, phase="profiling", metrics=None, **more):
    number = str(start)
    metadata = {"request_start_ns": start, "x_request_id": number, "x_correlation_id": "s" + number, "turn_index": 0}
    found = {"usage_prompt_tokens": (9, "tokens"), "usage_completion_tokens": (2, "tokens")} | (metrics or {})
    return {
        "metadata": metadata | {"benchmark_phase": phase, "conversation_id": "c"} | more.pop("metadata", {}),
        "metrics": {name: {"value": value, "unit": unit} for name, (value, unit) in found.items()},
    } | more


def test_what_is_left_out(jsonl):
    rows = [
        record(3_000_000_000),
        record(1_000_000_000, phase="warmup"),
        record(2_000_000_000),
        record(2_000_000_000),
        record(4_000_000_000, metadata={"was_cancelled": True}),
        record(5_000_000_000, error={"code": 503}),
        record(6_000_000_000, error=None),
    ]
    trace = read_trace(jsonl(rows))
    assert trace.rows.select("row", "arrival_s").rows() == [(3, 0.0), (1, 1.0), (7, 4.0)]
    assert {entry.reason.split(":")[0]: (entry.rows, entry.first_line) for entry in trace.left_out} == {
        "warm-up requests": (1, 2),
        "the same request again (x_request_id)": (1, 4),
        "failed requests": (2, 5),
    }


@pytest.mark.parametrize(("value", "unit"), [(0.25, "s"), (250, "ms"), (250_000, "us"), (250_000_000, "ns")])
def test_the_unit_of_a_metric_is_read(jsonl, value, unit):
    trace = read_trace(jsonl([record(1, metrics={"time_to_first_token": (value, unit)})]))
    assert trace.rows["ttft_s"].to_list() == [0.25]


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        ((5, "furlongs"), "time_to_first_token has the unit text of 8 characters"),
        ((5, None), "time_to_first_token has the unit"),
        (("fast", "ms"), "time_to_first_token is text of 4 characters: expected a number"),
        ((-1, "ms"), "time_to_first_token is '-1'"),
    ],
)
def test_wrong_metrics_are_named(jsonl, metric, says):
    path = jsonl([record(1), record(2, metrics={"time_to_first_token": metric})])
    with pytest.raises(TraceError, match=rf"trace\.jsonl:2: {says}"):
        read_trace(path)
    assert len(read_trace(path, skip_bad_rows=True)) == 1


def test_the_clients_count_where_the_server_gives_none(jsonl):
    client = {"input_sequence_length": (7, "tokens"), "output_sequence_length": (3, "tokens")}
    silent = {"usage_prompt_tokens": (0, "tokens"), "usage_completion_tokens": (None, "tokens")}
    cached = {"usage_prompt_cache_read_tokens": (8, "tokens")}
    trace = read_trace(jsonl([record(1, metrics=client | silent | cached), record(2, metrics=client | cached)]))
    assert trace.rows.select("input_tokens", "output_tokens", "cached_tokens").rows() == [(7, 3, None), (9, 2, 8)]
    assert any("input lengths of 1 requests are AIPerf's own count" in note for note in trace.notes)


def test_bodies_that_repeat_the_history_are_whole_prompts(write):
    user, reply, more = (
        {"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b"), ("user", "c"))
    )
    payloads = [{"model": "m", "messages": [user]}, {"model": "m", "messages": [user, reply, more]}]
    write("inputs.json", json.dumps({"data": [{"session_id": "c", "payloads": payloads}]}))
    rows = [record(1), record(2, metadata={"turn_index": 1}), record(3, metadata={"turn_index": 2})]
    trace = read_trace(write("profile_export.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
    assert trace.rows["prompt_text"].to_list() == [
        "user:\na\n\nassistant:\n",
        "user:\na\n\nassistant:\nb\n\nuser:\nc\n\nassistant:\n",
        None,
    ]
    assert trace.rows["model"].to_list() == ["m", "m", None]
    assert any("prompts of 2 of 3 requests" in note for note in trace.notes)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"data": []}', '{"data": [{"session_id": "c", "payloads": 3}]}'])
def test_inputs_that_cannot_be_read_do_no_harm(write, content):
    write("inputs.json", content)
    trace = read_trace(write("profile_export.jsonl", json.dumps(record(1))))
    assert (len(trace), trace.has("prompt_text")) == (1, False)


def test_sessions_of_the_inputs_that_are_wrong_are_named(jsonl):
    good = {"session_id": "a", "payloads": [{"messages": [{"role": "user", "content": "x"}]}]}
    path = jsonl([{"data": [good, {"session_id": "b", "payloads": [{}]}]}])
    with pytest.raises(TraceError, match=r"trace\.jsonl:1: a payload without a prompt"):
        read_trace(path)
    trace = read_trace(path, skip_bad_rows=True)
    assert (len(trace), trace.left_out[0].rows) == (1, 1)


def test_both_files_in_a_folder_are_one_trace(shared, tmp_path):
    for name in ("inputs.json", "profile_export.jsonl"):
        shutil.copy(shared / FOLDER / name, tmp_path)
    trace = read_trace(tmp_path)
    assert trace.rows.drop("row").equals(read_trace(tmp_path / "profile_export.jsonl").rows.drop("row"))
    assert trace.has("prompt_text")
