"""Our own file keeps every column, as JSON lines and as Parquet."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace
from inferdoc.traces.canonical import COLUMNS
from inferdoc.traces.files import write_trace

LARGE = 2**64 - 1


@pytest.fixture
def full(trace_of):
    """Two requests with a value in every column, one with as few as there can be."""
    trace = trace_of(
        arrival_s=[0.0, 0.123456789, 7.5],
        input_tokens=[3, 33, 40],
        output_tokens=[2, 5, None],
        cached_tokens=[0, 16, None],
        prefix_blocks=[[], [LARGE, 2**53 + 1], [LARGE, 7, 2**63]],
        prompt_text=['a\u2028b\n"c"', "", None],
        output_text=["x", "é🙂", None],
        prompt_ids=[[1, 2, 3], None, None],
        output_ids=[[4, 5], None, None],
        session=["one", "two", None],
        turn=[1, 4, None],
        model=["m", "n", None],
        ttft_s=[0.25, 1e-6, None],
        e2e_s=[1.5, 86_400.0, None],
        queue_s=[0.125, None, None],
        itl_s=[[0.01, 2.0], [], None],
        segment=[0, 0, 1],
        components=[[{"kind": "doc", "id": LARGE, "tokens": 3}], [{"kind": "q", "id": 0, "tokens": None}], None],
    )
    return replace(trace, block_size=16)


@pytest.mark.parametrize("name", ["t.jsonl", "t.ndjson.gz", "t.parquet"])
def test_every_column_comes_back(full, tmp_path, name):
    assert write_trace(full, tmp_path / name, ["a note"]) == []
    trace = read_trace(tmp_path / name)
    assert (trace.format, trace.block_size, trace.time_unit) == ("inferdoc", 16, "s")
    assert trace.notes[0] == "a note"
    for column in set(COLUMNS) - {"prefix_blocks", "prompt_text"}:
        assert trace.rows[column].to_list() == full.rows[column].to_list(), column
    assert trace.rows["prefix_blocks"].to_list() == [[], [LARGE, 2**53 + 1], [LARGE, 7, 2**63]]
    assert trace.rows["prompt_text"].to_list() == ['a\u2028b\n"c"', "", None]
    assert (trace.rows["status"] == "ok").all()


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet"])
def test_independent_clocks_stay_independent(trace_of, tmp_path, name):
    trace = trace_of(
        arrival_s=[0.0, 5.0, 0.0, 1.0],
        input_tokens=[1, 2, 3, 4],
        output_tokens=[1, 1, 1, 1],
        segment=[0, 0, 1, 1],
        independent_clocks=True,
    )
    write_trace(trace, tmp_path / name, [])
    again = read_trace(tmp_path / name)
    assert again.independent_clocks
    assert again.duration_s is None
    assert again.rows["input_tokens"].to_list() == [1, 2, 3, 4]
    assert again.rows["arrival_s"].to_list() == [0.0, 5.0, 0.0, 1.0]


def test_a_part_without_the_first_row_is_read_by_the_names(full, tmp_path):
    path = tmp_path / "t.jsonl"
    write_trace(full, path, [])
    lines = path.read_text().rstrip("\n").split("\n")
    path.write_text("\n".join(lines[1:]) + "\n")
    assert read_trace(path).rows["prefix_blocks"].to_list()[0] == [LARGE, 2**53 + 1]
    assert read_trace(path).block_size == 16


def test_what_no_reader_would_take_is_told(trace_of, tmp_path):
    trace = trace_of(input_tokens=[1, 2], output_tokens=[1, 1], e2e_s=[0.0, 3.0])
    lost = write_trace(trace, tmp_path / "t.jsonl", [])
    assert lost == ["1 values of e2e_s that are no time from 1 us to a day"]
    assert read_trace(tmp_path / "t.jsonl").rows["e2e_s"].to_list() == [None, 3.0]


def header(**fields):
    return json.dumps({"version": 1, "block_size": None, "independent_clocks": False, "notes": []} | fields)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("prefix_blocks", [1.5], "prefix_blocks is not a list"),
        ("itl_s", "0.5", "itl_s is not what we write"),
        ("itl_s", [-1], "itl_s is not what we write"),
        ("components", [{"id": 1}], "components is not what we write"),
        ("segment", "x", "segment is not a whole number"),
    ],
)
def test_a_row_that_we_would_not_write(jsonl, field, value, reason):
    rows = [{"input_tokens": 1, "output_tokens": 1, "inferdoc": header()}, {"input_tokens": 1, "output_tokens": 1}]
    path = jsonl([rows[0], rows[1] | {field: value}])
    with pytest.raises(TraceError, match=r"trace\.jsonl:2: "):
        read_trace(path)
    trace = read_trace(path, skip_bad_rows=True)
    assert len(trace) == 1
    assert [entry.reason.startswith(reason) for entry in trace.left_out] == [True]


@pytest.mark.parametrize("text", ["5", header(version=9), "{", '{"version": "x"}'])
def test_a_header_of_another_version(jsonl, text):
    with pytest.raises(TraceError, match="not one of this version"):
        read_trace(jsonl([{"input_tokens": 1, "output_tokens": 1, "inferdoc": text}]))


def test_files_of_different_blocks_are_no_trace(tmp_path):
    for size in (16, 32):
        row = {"input_tokens": 64, "output_tokens": 1, "prefix_blocks": list(range(64 // size)), "block_size": size}
        (tmp_path / f"{size}.jsonl").write_text(json.dumps(row | {"inferdoc": header(block_size=size)}) + "\n")
    with pytest.raises(TraceError, match="different sizes"):
        read_trace(tmp_path)
