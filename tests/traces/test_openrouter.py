"""OpenRouter's generation records: two tokenizers, two durations, and daily sums that are no trace."""

from __future__ import annotations

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace


def record(n=0, **other):
    return {
        "id": f"gen-{n}", "created_at": f"2026-01-01T00:00:0{n}.000000+00:00", "model": "vendor/m",
        "tokens_prompt": 90, "tokens_completion": 9, "native_tokens_prompt": 120, "native_tokens_completion": 11,
        "native_tokens_cached": 64, "latency": 400, "generation_time": 1600, "streamed": True, "cancelled": False,
        "finish_reason": "stop",
    } | other  # fmt: skip


def test_native_counts_come_first_and_durations_add_up(jsonl):
    older = record(1)
    for name in ("native_tokens_prompt", "native_tokens_completion", "native_tokens_cached"):
        older[name] = None
    trace = read_trace(jsonl([{"data": record(0)}, older, record(2, cancelled=True), record(3, finish_reason="error")]))
    assert (trace.format, len(trace)) == ("openrouter", 2)
    first, second = trace.rows.to_dicts()
    assert (first["input_tokens"], first["output_tokens"], first["cached_tokens"]) == (120, 11, 64)
    assert (first["ttft_s"], first["e2e_s"]) == (0.4, 2.0)
    assert (second["input_tokens"], second["output_tokens"], second["cached_tokens"]) == (90, 9, None)
    assert any("1 calls have no native token counts" in note for note in trace.notes)


def test_csv_and_a_broken_duration(write):
    names = list(record())
    rows = [record(0), record(1, latency="soon")]
    path = write("g.csv", "\n".join([",".join(names), *(",".join(str(row[name]) for name in names) for row in rows)]))
    with pytest.raises(TraceError, match=r"g\.csv:3: latency is text of 4 characters"):
        read_trace(path)
    trace = read_trace(path, skip_bad_rows=True)
    assert (len(trace), trace.rows["e2e_s"][0]) == (1, 2.0)


def test_daily_activity_is_refused(jsonl, write):
    day = {"date": "2026-01-01", "model": "m", "model_permaslug": "m", "requests": 5, "prompt_tokens": 9,
           "completion_tokens": 3}  # fmt: skip
    csv = write("activity.csv", ",".join(day) + "\n" + ",".join(str(value) for value in day.values()) + "\n")
    for path in (jsonl([day]), csv):
        with pytest.raises(TraceError, match="aggregated by day and model; collect the generation records"):
            read_trace(path)
