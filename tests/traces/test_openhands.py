"""OpenHands' runs: calls in their metrics, times only where costs and calls are of one number."""

from __future__ import annotations

from inferdoc.traces import read_trace
from inferdoc.traces.formats.openhands import NO_USAGE


def usage(n, **other):
    return {"model": "m", "prompt_tokens": 100 * n, "completion_tokens": n, "cache_read_tokens": 50 * n,
            "cache_write_tokens": 0, "response_id": f"r{n}"} | other  # fmt: skip


def metrics(count, costs=None):
    numbers = range(1, count + 1)
    return {
        "token_usages": [usage(n) for n in numbers],
        "response_latencies": [{"model": "m", "latency": 2.0 * n, "response_id": f"r{n}"} for n in reversed(numbers)],
        "costs": [{"model": "m", "cost": 0.1, "timestamp": 1_760_000_000.0 + 10 * n} for n in numbers][:costs],
    }


def test_calls_of_runs(jsonl):
    rows = [
        {"instance_id": "i1", "history": [], "metrics": metrics(3)},
        {"instance_id": "i2", "history": [], "metrics": {}},
    ]
    trace = read_trace(jsonl(rows))
    assert trace.format == "openhands"
    assert trace.rows["input_tokens"].to_list() == [100, 200, 300]
    assert trace.rows["cached_tokens"].to_list() == [50, 100, 150]
    assert trace.rows["e2e_s"].to_list() == [2.0, 4.0, 6.0]
    # Ends 10 s apart, less 2, 4 and 6 s.
    assert trace.rows["arrival_s"].to_list() == [0.0, 8.0, 16.0]
    assert trace.rows["turn"].to_list() == [1, 2, 3]
    assert {entry.reason: entry.rows for entry in trace.left_out} == {NO_USAGE: 1}


def test_no_times_where_the_lists_do_not_match(jsonl):
    trace = read_trace(jsonl([{"instance_id": "i", "history": [], "metrics": metrics(3, costs=2)}]))
    assert (len(trace), trace.duration_s, trace.rows["e2e_s"][2]) == (3, None, 6.0)


def test_metrics_by_use(jsonl):
    stats = {"usage_to_metrics": {"agent": metrics(2), "condenser": metrics(1)}}
    trace = read_trace(jsonl([{"stats": stats}]))
    assert sorted(trace.rows["input_tokens"].to_list()) == [100, 100, 200]
