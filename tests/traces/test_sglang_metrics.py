"""SGLang's request metrics: what the engine measured, in keys that vary with its version."""

from __future__ import annotations

import json

from inferdoc.traces import read_trace
from inferdoc.traces.formats.calls import EMBEDDINGS
from inferdoc.traces.formats.sglang_metrics import HEALTH

TEXT = "What is the answer to all of it? " * 5
T0 = 1_760_000_000.5


def metrics(n=0, parameters=None, **other):
    return {
        "request_parameters": json.dumps(parameters or {"text": TEXT, "stream": True}),
        "id": f"r{n}", "finish_reason": {"type": "stop", "matched": 2}, "prompt_tokens": 64, "completion_tokens": 8,
        "cached_tokens": 32, "e2e_latency": 1.5, "queue_time": 0.125, "request_received_ts": T0 + n,
        "response_sent_to_client_ts": T0 + n + 1.5,
    } | other  # fmt: skip


def test_lines(write):
    rows = [metrics(1), metrics(0), metrics(2, finish_reason={"type": "abort", "message": "secret"}),
            metrics(3, id="HEALTH_CHECK_3")]  # fmt: skip
    embedding = metrics(4)
    del embedding["completion_tokens"]
    trace = read_trace(
        write("sglang-request-metrics-20260101_00.log", "".join(json.dumps(row) + "\n" for row in [*rows, embedding]))
    )
    assert trace.format == "sglang-metrics"
    assert trace.rows["arrival_s"].to_list() == [0.0, 1.0]
    row = trace.rows.to_dicts()[0]
    assert (row["input_tokens"], row["cached_tokens"], row["output_tokens"]) == (64, 32, 8)
    assert (row["e2e_s"], row["queue_s"], row["ttft_s"]) == (1.5, 0.125, None)
    assert row["prompt_text"] == TEXT
    found = {entry.reason: entry.rows for entry in trace.left_out}
    assert (found[HEALTH], found[EMBEDDINGS], sum(found.values())) == (1, 1, 3)


def test_newer_lines_without_a_time_of_arrival(jsonl):
    rows = [metrics(n, e2e_latency=1.0 + n) for n in range(2)]
    for row in rows:
        del row["request_received_ts"], row["queue_time"]
    trace = read_trace(jsonl(rows))
    # Sent 1 s apart, after 1 s and 2 s: both arrived at once.
    assert trace.rows["arrival_s"].to_list() == [0.0, 0.0]
    assert any("arrivals of 2 calls are the time of the response less e2e_latency" in note for note in trace.notes)


def test_token_ids_and_cut_texts(jsonl):
    cut = "a" * 1024 + " ... " + "b" * 1024
    trace = read_trace(jsonl([metrics(0, {"input_ids": list(range(64)), "text": cut})]))
    row = trace.rows.to_dicts()[0]
    assert row["prompt_ids"] == list(range(64))
    assert row["prompt_text"] is None


def test_first_token_from_the_end_of_prefill(jsonl):
    row = read_trace(jsonl([metrics(0, prefill_finished_ts=T0 + 0.25)])).rows.to_dicts()[0]
    assert row["ttft_s"] == 0.25
