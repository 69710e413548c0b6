"""SGLang's benchmark: one run a line, no start times."""

from __future__ import annotations

import json
import statistics

import pytest

from inferdoc.traces import read_trace

FILE = "traces/sglang-bench/sglang_bench_serving_output_details.jsonl"


def test_the_shared_file_against_a_plain_loop(shared):
    (record,) = [json.loads(line) for line in (shared / FILE).read_text().splitlines() if line]
    good = [at for at, error in enumerate(record["errors"]) if not error]
    trace = read_trace(shared / FILE)
    assert (trace.format, len(trace), trace.left_out[0].rows) == ("sglang-bench", 49, 1)
    assert trace.rows["row"].to_list() == [at + 1 for at in good]
    assert trace.rows["input_tokens"].to_list() == [record["input_lens"][at] for at in good]
    assert trace.rows["itl_s"].to_list() == [record["itls"][at] for at in good]
    assert statistics.mean(trace.rows["ttft_s"]) * 1e3 == pytest.approx(record["mean_ttft_ms"])
    every_gap = [gap for at in good for gap in record["itls"][at]]
    assert statistics.mean(every_gap) * 1e3 == pytest.approx(record["mean_itl_ms"])
    ours = statistics.mean(record["ttfts"][at] + sum(record["itls"][at]) for at in good) * 1e3
    assert statistics.mean(trace.rows["e2e_s"]) * 1e3 == pytest.approx(ours)
    # The file has no latency of each request; its own mean is 2% above, so the difference is told.
    assert ours < 0.99 * record["mean_e2e_latency_ms"]
    assert any("340.0 ms here, 346.7 ms in the benchmark's own summary" in note for note in trace.notes)
    assert trace.rows["output_tokens"].sum() == record["total_output_tokens"]
    assert not trace.has("arrival_s")
    assert not trace.has("cached_tokens")


def test_cached_tokens_and_runs(jsonl):
    record = {
        "total_output_tokens_retokenized": 3, "completed": 2, "input_lens": [8, 9], "output_lens": [2, 1],
        "ttfts": [0.5, 0.5], "itls": [[0.25], []], "errors": ["", ""], "cached_tokens": [4, None],
    }  # fmt: skip
    trace = read_trace(jsonl([record, record]))
    assert trace.rows["cached_tokens"].to_list() == [4, None, 4, None]
    assert trace.rows["segment"].to_list() == [0, 0, 1, 1]
    assert any("no start times" in note for note in trace.notes)
