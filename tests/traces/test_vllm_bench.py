"""vLLM's benchmark: lists of requests in one object a run; SGLang's has the same lists and no start times."""

from __future__ import annotations

import json
import math

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace

FILE = "traces/vllm-bench/vllm_bench_serve_save_detailed.json"


def run(**changes):
    """Two good requests and a failed one, by hand."""
    record = {
        "model_id": "m", "request_rate": "inf", "max_concurrency": 2, "completed": 2, "failed": 1,
        "total_input_tokens": 30, "total_output_tokens": 4,
        "input_lens": [10, 20, 30], "output_lens": [3, 1, 0], "ttfts": [0.5, 0.25, 0.0],
        "itls": [[0.125, 0.25], [], []], "start_times": [100.0, 100.5, 101.0],
        "generated_texts": ["a b c", "d", ""], "errors": ["", "", "Service Unavailable"],
    }  # fmt: skip
    return {name: value for name, value in (record | changes).items() if value is not None}


def test_the_shared_file_against_a_plain_loop(shared):
    record = json.loads((shared / FILE).read_text())
    good = [at for at, error in enumerate(record["errors"]) if not error]
    trace = read_trace(shared / FILE)
    assert trace.format == "vllm-bench"
    assert (len(trace), sum(entry.rows for entry in trace.left_out)) == (117, 3)
    assert len(good) == 117
    rows = sorted(trace.rows.iter_rows(named=True), key=lambda row: row["row"])
    assert [row["row"] - 1 for row in rows] == good
    first = min(record["start_times"][at] for at in good)
    for row, at in zip(rows, good, strict=True):
        assert (row["input_tokens"], row["output_tokens"]) == (record["input_lens"][at], record["output_lens"][at])
        assert row["itl_s"] == record["itls"][at]
        assert len(row["itl_s"]) == row["output_tokens"] - 1
        assert row["ttft_s"] == record["ttfts"][at]
        assert math.isclose(row["e2e_s"], record["ttfts"][at] + sum(record["itls"][at]), rel_tol=1e-9)
        assert math.isclose(row["arrival_s"], record["start_times"][at] - first, abs_tol=1e-8)
    assert sum(row["input_tokens"] for row in rows) == record["total_input_tokens"]
    assert sum(row["output_tokens"] for row in rows) == record["total_output_tokens"]
    assert not trace.has("segment")
    assert not trace.has("queue_s")
    assert not any(any(words in note for words in ("by its lists", "chunks", "own summary")) for note in trace.notes)


def test_a_failure_has_no_latency_and_e2e_is_the_sum(jsonl):
    trace = read_trace(jsonl([run()]))
    assert trace.rows.select("row", "ttft_s", "e2e_s", "model").rows() == [(1, 0.5, 0.875, "m"), (2, 0.25, 0.25, "m")]
    assert trace.rows["itl_s"].to_list() == [[0.125, 0.25], []]
    assert trace.left_out[0].rows == 1
    assert trace.rows["arrival_s"].to_list() == [0.0, 0.5]


def test_requests_of_one_line_draw_ids_of_their_own(jsonl):
    assert read_trace(jsonl([run()])).rows["row"].n_unique() == 2


def test_latencies_that_are_recorded_come_before_the_sum(jsonl):
    trace = read_trace(jsonl([run(latencies=[0.9, 0.3, 0.0])]))
    assert trace.rows["e2e_s"].to_list() == [0.9, 0.3]


def test_chunks_that_carry_several_tokens_are_noted(jsonl):
    trace = read_trace(jsonl([run(output_lens=[9, 1, 0], total_output_tokens=10)]))
    assert any("in 1 of 2 requests the number of streamed chunks" in note for note in trace.notes)


def test_a_ttft_of_0_of_a_good_request_was_not_measured(jsonl):
    trace = read_trace(jsonl([run(ttfts=[0.0, 0.25, 0.0])]))
    assert trace.rows.select("ttft_s", "e2e_s").rows() == [(None, None), (0.25, 0.25)]
    assert any("1 good requests have a time to the first token of 0" in note for note in trace.notes)


def test_no_gaps_of_an_answer_of_several_tokens_are_unknown_not_empty(jsonl):
    trace = read_trace(jsonl([run(itls=[[], [], []])]))
    assert trace.rows.select("itl_s", "e2e_s").rows() == [(None, None), ([], 0.25)]


def test_appended_runs_have_clocks_of_their_own(write):
    second = run(start_times=[5.0, 5.5, 6.0])
    trace = read_trace(write("r.json", json.dumps(run()) + "\n" + json.dumps(second)))
    # The second run's clock stands earlier, yet its requests stay behind the first run's.
    assert trace.rows.select("row", "segment").rows() == [(1, 0), (2, 0), (4, 1), (5, 1)]
    assert trace.rows.filter(trace.rows["segment"] == 1)["arrival_s"].to_list() == [0.0, 0.5]
    assert sum("made by the benchmark" in note for note in trace.notes) == 2


def test_requests_of_several_files_are_placed_in_their_files(write):
    path = write("a.json", json.dumps(run()))
    write("b.json", "\n" + json.dumps(run()))
    wrong = json.dumps(run(input_lens=[10, -1, 30]))
    trace = read_trace(path.parent)
    assert trace.rows["row"].n_unique() == len(trace) == 4
    assert trace.left_out[0].places == ["a.json:3", "b.json:4"]
    write("c.json", wrong)
    with pytest.raises(TraceError, match=r"c\.json:2: input_lens is '-1'"):
        read_trace(path.parent)


def test_a_run_without_start_times_takes_them_from_all(jsonl):
    trace = read_trace(jsonl([run(), run(start_times=None)]))
    assert len(trace) == 4
    assert not trace.has("arrival_s")
    assert any("1 of 2 runs have no start times" in note for note in trace.notes)


def test_totals_that_do_not_agree_are_named(jsonl):
    notes = read_trace(jsonl([run(total_output_tokens=40, completed=3)])).notes
    assert any("total_output_tokens is '40' in the file, 4 by its lists" in note for note in notes)
    assert any("completed is '3' in the file, 2 by its lists" in note for note in notes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ttfts": [0.5, 0.25]}, "lists of different lengths .*input_lens 3, output_lens 3, ttfts 2"),
        ({"itls": [[0.1, "x"], [], []]}, "itls is text of 1 character: expected a number"),
        ({"itls": [[0.1, float("nan")], [], []]}, "itls is 'nan': expected a number"),
        ({"itls": [3, [], []]}, "itls is '3': expected a list of numbers"),
        ({"ttfts": [-0.5, 0.25, 0.0]}, "ttfts is '-0.5': expected a number, 0 or more"),
        ({"input_lens": 7}, "input_lens is '7': expected a list"),
        ({"input_lens": [10, -2, 30]}, "input_lens is '-2': expected a whole number"),
        ({"start_times": [100.0, None, 101.0]}, "start_times is missing, though other rows have it"),
    ],
)
def test_wrong_lists_are_named(jsonl, changes, says):
    path = jsonl([run(**changes)])
    with pytest.raises(TraceError, match=says):
        read_trace(path)
    assert len(read_trace(jsonl([run(), run(**changes)]), skip_bad_rows=True)) >= 2


def test_only_failures(jsonl):
    with pytest.raises(TraceError, match="no request that can be used"):
        read_trace(jsonl([run(output_lens=[0, 0, 0], errors=["x", "x", "x"])]))


@pytest.mark.parametrize(
    ("extra", "option"), [({}, "--save-detailed"), ({"total_output_tokens_retokenized": 4}, "--output-details")]
)
def test_aggregates_are_refused_with_the_option_that_helps(jsonl, extra, option):
    # vLLM 0.33 leaves these two lists behind without --save-detailed.
    left = {"latencies": [0.5], "queue_times": [0.0], "mean_ttft_ms": 5.0, "request_throughput": 2.0, "completed": 1}
    with pytest.raises(TraceError, match=f"aggregates only; .*{option}"):
        read_trace(jsonl([left | extra]))
    detailed = run(**extra, mean_ttft_ms=5.0)
    with pytest.raises(TraceError, match=f":2: a run without input_lens, output_lens, ttfts: run again with {option}"):
        read_trace(jsonl([detailed, left | extra]))
    trace = read_trace(jsonl([detailed, left | extra]), skip_bad_rows=True)
    assert (len(trace), trace.left_out[0].first_line) == (2, 2)


@pytest.mark.parametrize("absent", [None, "None"])
def test_a_load_without_a_limit_is_told_as_such(jsonl, absent):
    run = {"input_lens": [5], "output_lens": [2], "ttfts": [0.1], "itls": [[0.1]], "errors": [""]}
    trace = read_trace(jsonl([run | {"request_rate": "20.0", "max_concurrency": absent}]))
    assert trace.notes[0] == (
        "run 1: 1 requests, made by the benchmark (request_rate 20.0, max_concurrency not limited)"
    )
