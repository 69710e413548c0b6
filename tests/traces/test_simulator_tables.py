"""Vidur and Splitwise-sim: tables of lengths for simulators."""

from __future__ import annotations

import csv

import pytest

from inferdoc.traces import read_trace
from inferdoc.traces.arrivals import analyse_arrivals

COPIES = [
    ("splitwise_code.csv", "AzureLLMInferenceTrace_code.csv"),
    ("splitwise_conv.csv", "AzureLLMInferenceTrace_conv.csv"),
]


def plain(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", [copy for copy, _ in COPIES])
def test_vidur_against_a_plain_reading(shared, name):
    path = shared / "traces" / "vidur" / name
    expected, trace = plain(path), read_trace(path)
    assert (trace.format, trace.time_unit, trace.left_out) == ("vidur", "s", ())
    assert trace.rows["input_tokens"].to_list() == [int(row["num_prefill_tokens"]) for row in expected]
    assert trace.rows["output_tokens"].to_list() == [int(row["num_decode_tokens"]) for row in expected]
    first = float(expected[0]["arrived_at"])
    assert trace.rows["arrival_s"].to_list() == pytest.approx([float(row["arrived_at"]) - first for row in expected])


@pytest.mark.parametrize(("copy", "original"), COPIES)
def test_vidur_copies_of_the_azure_traces_are_the_same_trace(shared, copy, original):
    one = read_trace(shared / "traces" / "vidur" / copy)
    other = read_trace(shared / "traces" / "azure" / original)
    for column in ("input_tokens", "output_tokens"):
        assert one.rows[column].to_list() == other.rows[column].to_list()
    assert one.rows["arrival_s"].to_list() == pytest.approx(other.rows["arrival_s"].to_list(), abs=1e-9)
    assert analyse_arrivals(one) == analyse_arrivals(other)


def test_a_vidur_file_of_lengths_has_no_times(shared):
    path = shared / "traces" / "vidur" / "arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv"
    expected, trace = plain(path), read_trace(path)
    assert (len(trace), trace.duration_s, trace.rate_per_s, trace.time_unit) == (len(expected), None, None, None)
    assert sum(trace.rows["input_tokens"]) == sum(int(row["num_prefill_tokens"]) for row in expected)
    assert any("lengths only: no arrival times" in note for note in trace.notes)


def test_vidur_with_index_columns_of_pandas(write):
    text = ",Unnamed: 0,num_decode_tokens,num_prefill_tokens,arrived_at\n0,7,4,100,0.5\n1,9,5,200,2.0\n"
    trace = read_trace(write("v.csv", text))
    assert trace.format == "vidur"
    assert trace.rows.select("arrival_s", "input_tokens", "output_tokens").rows() == [(0.0, 100, 4), (1.5, 200, 5)]


def test_splitwise_against_a_plain_reading(shared):
    path = shared / "traces" / "splitwise-sim" / "test_trace.csv"
    expected, trace = plain(path), read_trace(path)
    assert (trace.format, trace.time_unit) == ("splitwise", "s")
    assert trace.rows["arrival_s"].to_list() == [float(row["arrival_timestamp"]) - 1 for row in expected]
    assert trace.rows["input_tokens"].to_list() == [int(row["prompt_size"]) for row in expected]
    assert trace.rows["output_tokens"].to_list() == [int(row["token_size"]) for row in expected]
    assert not any("batch_size" in note for note in trace.notes)


def test_splitwise_extras(write):
    header = "request_id,arrival_timestamp,batch_size,prompt_size,token_size,model_type"
    text = f"{header}\n0,0.25,4,10,2,llama\n1,1,1,9,3,bloom\n"
    trace = read_trace(write("s.csv", text))
    assert trace.rows["model"].to_list() == ["llama", "bloom"]
    assert trace.rows["arrival_s"].to_list() == [0.0, 0.75]
    assert any("1 rows have a batch_size above 1" in note for note in trace.notes)
