"""Azure CSV: wall clock with seven digits, CRLF, no newline at the end; no prefixes."""

from __future__ import annotations

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import ideal_hits, read_trace

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
LINES = [
    HEADER,
    "2023-11-16 18:17:03.9799600,4808,10",
    "2023-11-16 18:17:04.0319600,3180,8",
    "2023-11-16 18:17:04.0781490,110,27",
]


def test_seven_digits_crlf_and_no_last_newline(write):
    trace = read_trace(write("azure.csv", "\r\n".join(LINES)))
    assert (trace.format, trace.time_unit, trace.content) == ("azure", "wall clock", "lengths only")
    assert trace.rows["arrival_s"].to_list() == [0.0, 0.052, 0.098189]
    assert trace.rows["input_tokens"].to_list() == [4808, 3180, 110]
    assert trace.rows["output_tokens"].to_list() == [10, 8, 27]
    assert trace.rows["row"].to_list() == [2, 3, 4]


def test_the_2024_layout_and_images(write):
    text = (
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,0,2162,5\n2024-05-10 00:00:01+00:00,2,2399,6\n"
    )
    trace = read_trace(write("azure.csv", text))
    assert trace.rows["arrival_s"].to_list() == [0.0, 0.99007]
    assert any("1 requests carry images" in note for note in trace.notes)


def test_no_prefix_information_is_unknown_not_zero(write):
    hits = ideal_hits(read_trace(write("azure.csv", "\n".join(LINES))), 16)
    assert hits.hit_rate is None
    assert hits.hit_tokens is None
    assert hits.reason == "the trace has no prefixes"


def test_a_header_repeated_in_the_middle_is_counted(write):
    trace = read_trace(write("azure.csv", "\n".join([*LINES, HEADER, LINES[3]])))
    assert len(trace) == 4
    assert (trace.left_out[0].reason, trace.left_out[0].first_line) == ("header lines repeated in the middle", 5)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("2023-11-16 18:17:05.0,-3,5", "ContextTokens is '-3': expected a whole number"),
        ("2023-11-16 18:17:05.0,abc,5", "ContextTokens is text of 3 characters"),
        ("2023-11-16 18:17:05.0,,5", "ContextTokens is missing"),
        (",10,5", "TIMESTAMP is missing, though other rows have it"),
        ("16.11.2023 18:17,10,5", "TIMESTAMP is '16.11.2023 18:17': expected a time such as"),
        ("2023-11-16 18:17:05.0,1", "2 fields, the header has 3"),
        ("2023-11-16 18:17:05.0,1,2,3", "4 fields, the header has 3"),
    ],
)
def test_wrong_rows_are_named_and_can_be_skipped(write, line, says):
    path = write("azure.csv", "\n".join([*LINES[:3], "", line, LINES[3]]))
    with pytest.raises(TraceError) as raised:
        read_trace(path)
    assert str(raised.value).startswith(f"{path}:5: {says}")
    trace = read_trace(path, skip_bad_rows=True)
    assert len(trace) == 3
    assert (trace.left_out[0].rows, trace.left_out[0].first_line) == (1, 5)
