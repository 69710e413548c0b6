"""Broken JSON: file, line, column, what was expected; going on only when asked to."""

from __future__ import annotations

import pytest

from inferdoc.errors import TraceError
from inferdoc.evidence import LeftOut
from inferdoc.traces import read_trace

GOOD = '{"timestamp":0,"input_length":5,"output_length":2,"hash_ids":[1]}\n'
BROKEN = '{"timestamp":0,"input_length":5,"output_length":2748 610,"hash_ids":[1]}\n'


def test_a_broken_number_is_named_with_line_and_column(write):
    path = write("trace.jsonl", GOOD * 12 + BROKEN + GOOD)
    with pytest.raises(TraceError) as raised:
        read_trace(path)
    # The column is that of the digit after the space, counted from 1.
    column = BROKEN.index("610") + 1
    message = str(raised.value)
    assert message.startswith(f"{path}:13: not valid JSON at column {column}: expecting ',' delimiter, found '610,")
    assert "--skip-bad-rows" in message


def test_bad_rows_are_skipped_and_counted_only_when_asked(write):
    trace = read_trace(write("trace.jsonl", GOOD * 12 + BROKEN + GOOD + "5\n" + BROKEN), skip_bad_rows=True)
    assert len(trace) == 13
    assert trace.left_out == (
        LeftOut(reason="not valid JSON", rows=2, first_line=13, places=["13", "16"]),
        LeftOut(reason="not a JSON object", rows=1, first_line=15, places=["15"]),
    )


def test_lines_are_counted_with_blank_ones(write):
    with pytest.raises(TraceError, match=r"trace\.jsonl:5: not valid JSON"):
        read_trace(write("trace.jsonl", GOOD + GOOD + "\n" + GOOD + BROKEN))


def test_a_last_line_that_is_cut_off(write):
    trace = read_trace(write("trace.jsonl", GOOD * 2 + GOOD[:30]))
    assert len(trace) == 2
    assert trace.left_out == (LeftOut(reason="cut off last line", rows=1, first_line=3, places=["3"]),)


def test_a_last_line_with_its_end_is_broken_not_cut_off(write):
    with pytest.raises(TraceError, match=r"trace\.jsonl:3: not valid JSON.*the line ends"):
        read_trace(write("trace.jsonl", GOOD * 2 + GOOD[:30] + "\n"))


def test_a_carriage_return_alone_ends_a_row(write):
    trace = read_trace(write("t.csv", "input_tokens,output_tokens\n1,2\r3,4\n"))
    assert trace.rows["input_tokens"].to_list() == [1, 3]


def test_a_table_that_is_none_is_named(write):
    with pytest.raises(TraceError, match=r"t\.csv:2: input_tokens is text of 200,000 characters: expected"):
        read_trace(write("t.csv", f'input_tokens,output_tokens\n{"x" * 200_000},"1"\n'))
    for header in ("input_tokens\rx,output_tokens", "x" * 200_000 + ",y"):
        with pytest.raises(TraceError, match=r"t\.csv:1: not valid CSV"):
            read_trace(write("t.csv", f"{header}\n1,2\n"))


def test_a_table_whose_last_line_is_cut_off(write):
    trace = read_trace(write("t.csv", "timestamp,input_tokens,output_tokens\n1,5,2\n2,6,3\n3,"))
    assert len(trace) == 2
    assert trace.left_out == (LeftOut(reason="cut off last line", rows=1, first_line=4, places=["4"]),)


def test_a_file_of_bad_rows_only_shows_the_first_three(write):
    path = write("trace.jsonl", GOOD.replace("5", "-5") * 5)
    with pytest.raises(TraceError, match=r"no request that can be used \(5 input_length is not") as raised:
        read_trace(path, skip_bad_rows=True)
    assert [f"{path}:{line}: input_length is '-5'" in str(raised.value) for line in (1, 2, 3, 4)] == [True] * 3 + [
        False
    ]
    broken = write("broken.jsonl", (BROKEN + "5\n") * 2)
    with pytest.raises(TraceError, match=r"holds no JSON object \(.*:1: not valid.*:2: expected a JSON.*:3: not valid"):
        read_trace(broken)


def test_several_arrays_in_a_row(write):
    body = "[" + GOOD.strip() + "]\n[" + (GOOD.strip() + ",") * 2 + "]"
    assert read_trace(write("trace.json", body)).rows["row"].to_list() == [1, 2, 2]


def test_a_first_line_that_is_broken_is_a_row_like_any_other(write):
    trace = read_trace(write("trace.jsonl", BROKEN + GOOD * 3), skip_bad_rows=True)
    assert (len(trace), trace.left_out[0].first_line) == (3, 1)


def test_an_array_that_is_not_closed(write):
    with pytest.raises(TraceError, match="not closed"):
        read_trace(write("trace.json", "[" + GOOD.strip() + ","))


def test_a_fault_inside_an_array_has_its_own_line(write):
    path = write("trace.json", "[\n" + GOOD.strip() + ",\n" + BROKEN + "]")
    with pytest.raises(TraceError, match=r"trace\.json:3: not valid JSON at column 54"):
        read_trace(path, skip_bad_rows=True)


def test_rows_of_an_array_know_their_lines(write):
    body = '[\n {"input_tokens": 1,\n  "output_tokens": 2},\n\n {"input_tokens": 3, "output_tokens": 4}\n]'
    assert read_trace(write("trace.json", body)).rows["row"].to_list() == [2, 5]


@pytest.mark.parametrize("line", ["[" * 100_000, '{"input_length": ' + "9" * 5000 + "}"], ids=["nesting", "digits"])
def test_json_that_the_parser_gives_up_on_is_a_bad_row(write, line):
    with pytest.raises(TraceError, match=r"trace\.jsonl:2: not valid JSON"):
        read_trace(write("trace.jsonl", GOOD + line + "\n"))


def test_half_a_surrogate_pair_does_not_end_the_reading(write):
    line = '{"messages":[{"role":"user","content":"a\\ud800b"},{"role":"assistant","content":"c"}]}\n'
    assert "a?b" in read_trace(write("trace.jsonl", line)).rows["prompt_text"][0]
