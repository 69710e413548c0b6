"""LLMServingSim: nanoseconds, token ids, sessions of sub-requests; and the vLLM engine's own timestamps."""

from __future__ import annotations

import json

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import ideal_hits, read_trace
from inferdoc.traces.demand import analyse_demand

WORKLOADS = [
    "example_trace.jsonl",
    "workload_me2_01_mixed.jsonl",
    "sharegpt-qwen3-32b-300-sps10.blocks16.jsonl",
]
ENGINE = {"vllm_qwen3-32b": 300, "vllm_llama-3.1-8b_rtx4090": 300}


def plain(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_against_a_plain_reading(shared, name):
    path = shared / "traces" / "llmservingsim" / name
    expected = sorted(plain(path), key=lambda row: row["arrival_time_ns"])
    trace = read_trace(path)
    first = expected[0]["arrival_time_ns"]
    assert (trace.format, trace.time_unit, trace.left_out) == ("llmservingsim", "ns", ())
    assert trace.rows["arrival_s"].to_list() == [(row["arrival_time_ns"] - first) / 1e9 for row in expected]
    assert trace.rows["output_tokens"].to_list() == [row["output_toks"] for row in expected]
    assert trace.rows["input_tokens"].to_list() == [row["input_toks"] for row in expected]
    assert trace.rows["prompt_ids"].to_list() == [row.get("input_tok_ids") for row in expected]
    assert trace.rows["prefix_blocks"].to_list() == [row.get("hash_ids") for row in expected]
    assert trace.block_size == expected[0].get("block_size")


def test_the_ids_of_full_blocks_give_the_reuse_that_a_set_of_seen_ids_gives(shared):
    path = shared / "traces" / "llmservingsim" / WORKLOADS[2]
    seen, hit = set(), 0
    for row in plain(path):
        # An engine computes at least the last token of a prompt.
        usable = row["hash_ids"][: (row["input_toks"] - 1) // 16]
        run = next((at for at, id in enumerate(usable) if id not in seen), len(usable))
        hit += 16 * run
        seen.update(row["hash_ids"])
    assert hit > 0
    assert ideal_hits(read_trace(path), 16).hit_tokens == hit


def test_sessions_of_sub_requests_are_a_closed_loop(jsonl):
    session = {
        "session_id": "s",
        "arrival_time_ns": 5,
        "sub_requests": [
            {"input_toks": 10, "output_toks": 2, "tool_duration_ns": 7},
            {"input_toks": 20, "output_toks": 3, "tool_duration_ns": 0},
        ],
    }
    trace = read_trace(jsonl([{"input_toks": 5, "output_toks": 1, "arrival_time_ns": 1}, session]))
    assert (trace.format, trace.duration_s) == ("llmservingsim", None)
    assert trace.rows.select("row", "input_tokens", "output_tokens", "session", "turn").rows() == [
        (1, 5, 1, None, None),
        (2, 10, 2, "s", 1),
        (2, 20, 3, "s", 2),
    ]
    assert any("2 of 3 requests have a time of their own" in note for note in trace.notes)


def test_sessions_of_one_request_keep_their_times(jsonl):
    rows = [
        {"session_id": n, "arrival_time_ns": n * 10**9, "sub_requests": [{"input_toks": 4, "output_toks": 2}]}
        for n in (3, 5)
    ]
    trace = read_trace(jsonl(rows))
    assert trace.rows["arrival_s"].to_list() == [0.0, 2.0]


def test_broken_and_empty_sessions(jsonl):
    good = {"arrival_time_ns": 1, "sub_requests": [{"input_toks": 4, "output_toks": 2}]}
    path = jsonl([good, {"sub_requests": [3]}, {"sub_requests": []}])
    with pytest.raises(TraceError, match=":2: sub_requests is"):
        read_trace(path)
    trace = read_trace(path, skip_bad_rows=True)
    assert (len(trace), [(entry.rows, entry.first_line) for entry in trace.left_out]) == (1, [(1, 2), (1, 3)])


def test_ids_count_more_than_the_stated_length(jsonl):
    row = {"input_toks": 9, "output_toks": 1, "arrival_time_ns": 0, "input_tok_ids": [1, 2, 3], "output_tok_ids": [4]}
    trace = read_trace(jsonl([row]))
    assert trace.rows.select("input_tokens", "output_tokens").row(0) == (3, 1)
    assert any("differs from the number of token ids" in note for note in trace.notes)


def test_hashes_of_unknown_size_are_not_used(jsonl):
    rows = [{"input_toks": 40, "output_toks": 1, "arrival_time_ns": 0, "hash_ids": [1, 2]}]
    trace = read_trace(jsonl(rows))
    assert (trace.content, trace.block_size) == ("lengths only", None)
    assert any("hash_ids without block_size are not used" in note for note in trace.notes)
    with pytest.raises(TraceError, match="block_size has 2 values"):
        read_trace(jsonl([rows[0] | {"block_size": 16}, rows[0] | {"block_size": 32}]))


@pytest.mark.parametrize("name", ENGINE)
def test_engine_times_against_a_plain_reading(shared, name):
    path = shared / "traces" / "llmservingsim" / f"{name}_requests.jsonl"
    expected, trace = plain(path), read_trace(path)
    assert (trace.format, len(trace), trace.left_out) == ("vllm-engine", ENGINE[name], ())
    start = min(row["queued_ts"] for row in expected)
    arrivals = sorted(row["queued_ts"] - start for row in expected)
    assert trace.rows["arrival_s"].to_list() == pytest.approx(arrivals, abs=2e-9)
    expected.sort(key=lambda row: row["queued_ts"])
    for column, stamp in (("queue_s", "scheduled_ts"), ("ttft_s", "first_token_ts"), ("e2e_s", "last_token_ts")):
        measured = [row[stamp] - row["queued_ts"] for row in expected]
        assert trace.rows[column].to_list() == pytest.approx(measured, abs=2e-9)
    assert trace.rows["input_tokens"].to_list() == [row["input_toks"] for row in expected]


def test_live_requests_of_an_engine_are_those_of_its_own_clock(shared):
    folder = shared / "traces" / "llmservingsim"
    trace = read_trace(folder / "vllm_qwen3-32b_requests.jsonl")
    rows = plain(folder / "vllm_qwen3-32b_requests.jsonl")
    # At equal times the end of a request comes before the start of another one.
    events = sorted([(row["scheduled_ts"], 1) for row in rows] + [(row["last_token_ts"], -1) for row in rows])
    live = most = 0
    for _, change in events:
        live += change
        most = max(most, live)
    assert most == json.loads((folder / "vllm_qwen3-32b_meta.json").read_text())["engine_kwargs"]["max_num_seqs"] == 128
    assert analyse_demand(trace).whole.live_requests.max == most
    apart = [row["arrival_time"] - row["queued_ts"] for row in rows]
    most_apart = max(abs(one - apart[0]) for one in apart)
    assert any(f"differs from it by up to {most_apart:.2g} s" in note for note in trace.notes)


def engine_row(**other):
    return {
        "request_id": "r", "input_toks": 10, "output_toks": 5, "arrival_time": 1787267980.25, "queued_ts": 100.0,
        "scheduled_ts": 100.0, "first_token_ts": 100.5, "last_token_ts": 102.0,
    } | other  # fmt: skip


def test_no_queueing_is_zero_and_a_missing_stamp_is_absent(jsonl):
    rows = [
        engine_row(),
        engine_row(queued_ts=100.75, scheduled_ts=None, first_token_ts=101.25, last_token_ts=102.75),
        engine_row(output_toks=0, first_token_ts=None, last_token_ts=None),
    ]
    trace = read_trace(jsonl(rows))
    assert trace.rows.select("arrival_s", "queue_s", "ttft_s", "e2e_s").rows() == [
        (0.0, 0.0, 0.5, 2.0),
        (0.75, None, 0.5, 2.0),
    ]
    assert [(entry.rows, entry.first_line) for entry in trace.left_out] == [(1, 3)]
    unqueued = read_trace(jsonl([engine_row(queued_ts=None), engine_row(queued_ts=None, arrival_time=1787267981.5)]))
    assert unqueued.rows.select("arrival_s", "queue_s", "e2e_s").rows() == [(0.0, None, None), (1.25, None, None)]
    assert any("no request has queued_ts" in note for note in unqueued.notes)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"first_token_ts": 99.0}, "first_token_ts is before scheduled_ts"),
        ({"queued_ts": "soon"}, "queued_ts is "),
        ({"last_token_ts": 100.4}, "last_token_ts is before first_token_ts"),
        ({"input_toks": -1}, "input_toks is '-1'"),
        ({"arrival_time": "x"}, "arrival_time is "),
    ],
)
def test_wrong_engine_rows_are_named(jsonl, other, says):
    path = jsonl([engine_row(), engine_row(**other)])
    with pytest.raises(TraceError) as raised:
        read_trace(path)
    assert str(raised.value).startswith(f"{path}:2: {says}")
    trace = read_trace(path, skip_bad_rows=True)
    assert (len(trace), trace.left_out[0].rows, trace.left_out[0].first_line) == (1, 1, 2)


@pytest.mark.parametrize("name", ENGINE)
def test_gauges_and_settings_are_no_requests(shared, name):
    folder = shared / "traces" / "llmservingsim"
    with pytest.raises(TraceError, match="aggregates only: gauges once a second"):
        read_trace(folder / f"{name}_timeseries.csv")
    with pytest.raises(TraceError, match="holds no requests"):
        read_trace(folder / f"{name}_meta.json")
