"""The dirty-row checklist against the readers of plain logs: every row is a request, or is named or counted."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime, timedelta

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace

START = datetime(2024, 5, 10, tzinfo=UTC)


class Csv:
    """Files of one format: `file` takes rows of (time in s, prompt, output) as text."""

    name, suffix, header = "csv", "csv", ("timestamp_s", "input_tokens", "output_tokens")
    numeric_clock = True

    @staticmethod
    def time(second):
        return str(second)

    def file(self, rows):
        return "\n".join(",".join(row) for row in [self.header, *rows]) + "\n"


class Azure(Csv):
    name, header = "azure", ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    numeric_clock = False

    @staticmethod
    def time(second):
        return (START + timedelta(seconds=second)).strftime("%Y-%m-%d %H:%M:%S.%f")


class Jsonl(Csv):
    name, suffix = "jsonl", "jsonl"

    def file(self, rows):
        return "".join(
            "{" + ", ".join(f'"{name}": {self.value(row[at])}' for at, name in enumerate(self.header)) + "}\n"
            for row in rows
        )

    @staticmethod
    def value(cell):
        try:
            json.loads(cell)
        except json.JSONDecodeError:
            return json.dumps(cell)
        return cell


class Mooncake(Jsonl):
    name, header = "mooncake", ("timestamp", "input_length", "output_length")

    @staticmethod
    def time(second):
        return str(round(second * 1000, 6))


KINDS = pytest.mark.parametrize("kind", [Csv(), Azure(), Jsonl(), Mooncake()], ids=lambda kind: kind.name)


def rows(kind, count=3):
    return [[kind.time(n), str(10 + n), "2"] for n in range(count)]


def read(kind, write, given, **options):
    return read_trace(write(f"t.{kind.suffix}", kind.file(given)), **options)


def summary(trace):
    return tuple(trace.rows[name].to_list() for name in ("arrival_s", "input_tokens", "output_tokens"))


@KINDS
def test_good_rows(kind, write):
    trace = read(kind, write, rows(kind))
    assert trace.format == kind.name
    assert summary(trace) == ([0.0, 1.0, 2.0], [10, 11, 12], [2, 2, 2])


@KINDS
@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\n\n"),
        lambda text: text + "\n\n",
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.rstrip("\n"),
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: text.encode("utf-16"),
        lambda text: gzip.compress(text.encode()),
    ],
    ids=["blank lines", "blank end", "CRLF", "no last newline", "BOM", "UTF-16", "gz under another name"],
)
def test_containers_change_nothing(kind, write, change):
    trace = read_trace(write(f"t.{kind.suffix}", change(kind.file(rows(kind)))))
    assert summary(trace) == ([0.0, 1.0, 2.0], [10, 11, 12], [2, 2, 2])
    assert trace.left_out == ()


@KINDS
@pytest.mark.parametrize("cell", ["11.0", '"11"', "1.1e1"])
def test_counts_in_other_spellings(kind, write, cell):
    given = rows(kind)
    given[1][1] = cell if kind.suffix == "jsonl" else cell.strip('"')
    assert read(kind, write, given).rows["input_tokens"].to_list() == [10, 11, 12]


@KINDS
@pytest.mark.parametrize("cell", ["-1", "1.5", "10000001", "9" * 30, "x", "1e400", "Infinity"])
@pytest.mark.parametrize("column", [1, 2])
def test_counts_that_are_none_are_named_and_counted(kind, write, cell, column):
    given = rows(kind)
    given[1][column] = cell if cell != "1e400" or kind.suffix == "csv" else json.dumps(cell)
    line = 3 if kind.suffix == "csv" else 2
    with pytest.raises(TraceError, match=rf"t\.{kind.suffix}:{line}: {kind.header[column]} is "):
        read(kind, write, given)
    trace = read(kind, write, given, skip_bad_rows=True)
    assert summary(trace) == ([0.0, 2.0], [10, 12], [2, 2])
    assert [(entry.rows, entry.places) for entry in trace.left_out] == [(1, [str(line)])]


@KINDS
@pytest.mark.parametrize("cell", ["null", "NaN", '""', "-"])
def test_an_absent_prompt_length_is_not_zero(kind, write, cell):
    given = rows(kind)
    given[1][1] = cell.strip('"') if kind.suffix == "csv" else cell if cell != "-" else '"-"'
    with pytest.raises(TraceError, match=f"{kind.header[1]} is missing"):
        read(kind, write, given)
    trace = read(kind, write, given, skip_bad_rows=True)
    assert (len(trace), trace.left_out[0].rows) == (2, 1)


@KINDS
def test_an_absent_output_length_stays_absent(kind, write):
    given = rows(kind)
    given[1][2] = "null"
    trace = read(kind, write, given)
    assert trace.rows["output_tokens"].to_list() == [2, None, 2]
    assert any("1 of 3 requests have no output" in note for note in trace.notes)


@KINDS
@pytest.mark.parametrize("column", [1, 2])
def test_zero_tokens_are_a_failure(kind, write, column):
    given = rows(kind)
    given[1][column] = "0"
    trace = read(kind, write, given)
    assert len(trace) == 2
    assert [(entry.rows, entry.reason[:15]) for entry in trace.left_out] == [(1, "failed requests")]


@KINDS
def test_only_failures(kind, write):
    with pytest.raises(TraceError, match=r"no request that can be used \(3 failed requests"):
        read(kind, write, [[time, count, "0"] for time, count, _ in rows(kind)])


@KINDS
def test_a_missing_time_among_others(kind, write):
    given = rows(kind)
    given[1][0] = "null"
    with pytest.raises(TraceError, match=f"{kind.header[0]} is missing, though other rows have it"):
        read(kind, write, given)
    assert summary(read(kind, write, given, skip_bad_rows=True))[0] == [0.0, 2.0]


@KINDS
@pytest.mark.parametrize("count", [1, 2])
def test_one_and_two_requests(kind, write, count):
    trace = read(kind, write, rows(kind, count))
    assert (len(trace), trace.rate_per_s) == (count, None if count == 1 else 1.0)


@KINDS
def test_all_times_equal(kind, write):
    trace = read(kind, write, [[kind.time(5), "10", "2"]] * 3)
    assert summary(trace)[0] == [0.0] * 3
    assert trace.rate_per_s is None
    assert any("same time" in note for note in trace.notes)
    assert any("equal to another one in all that is recorded: 2" in note for note in trace.notes)


@KINDS
def test_rows_out_of_order(kind, write):
    trace = read(kind, write, [rows(kind)[at] for at in (2, 0, 1)])
    assert summary(trace) == ([0.0, 1.0, 2.0], [10, 11, 12], [2, 2, 2])
    assert any("not in order of arrival" in note for note in trace.notes)


@KINDS
def test_a_clock_that_starts_again(kind, write):
    trace = read(kind, write, [*rows(kind, 20), *rows(kind, 20)])
    assert trace.duration_s == (39.0 if kind.numeric_clock else 19.0)
    assert (trace.rows["segment"].n_unique() == 2) is kind.numeric_clock


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
@pytest.mark.parametrize("kind", [Csv(), Jsonl()], ids=lambda kind: kind.name)
def test_epochs_in_every_unit(kind, write, unit, factor):
    text = kind.file([[str((1_700_000_000 + n) * factor), "10", "2"] for n in range(3)]).replace("timestamp_s", "ts")
    trace = read_trace(write(f"t.{kind.suffix}", text))
    assert (trace.time_unit, trace.duration_s) == (unit, 2.0)


@pytest.mark.parametrize("kind", [Csv(), Azure(), Jsonl()], ids=lambda kind: kind.name)
def test_zones_and_fractions_of_every_kind(kind, write):
    stamps = [
        "2024-05-10T00:00:00Z",
        "2024-05-10 02:00:01.5000000+02:00",
        "2024-05-10 00:00:02.123456789",
        "2024-05-09T19:30:03.1-0430",
    ]
    text = kind.file([[stamp, "10", "2"] for stamp in stamps]).replace("timestamp_s", "ts")
    trace = read_trace(write(f"t.{kind.suffix}", text))
    assert trace.rows["arrival_s"].to_list() == [0.0, 1.5, 2.123456789, 3.1]
    assert "1 of 4 times name no zone: read as UTC like the others" in trace.notes


@pytest.mark.parametrize("kind", [Csv(), Azure()], ids=lambda kind: kind.name)
def test_a_header_in_the_middle_and_reordered_columns(kind, write):
    text = kind.file(rows(kind, 2)) + kind.file(rows(kind, 3)[2:])
    trace = read_trace(write("t.csv", text))
    assert summary(trace)[1] == [10, 11, 12]
    assert [(entry.reason, entry.places) for entry in trace.left_out] == [
        ("header lines repeated in the middle", ["4"])
    ]
    turned = "\n".join(",".join(reversed(line.split(","))) for line in kind.file(rows(kind)).splitlines())
    assert summary(read_trace(write("t.csv", turned))) == ([0.0, 1.0, 2.0], [10, 11, 12], [2, 2, 2])


@pytest.mark.parametrize("kind", [Csv(), Azure()], ids=lambda kind: kind.name)
def test_rows_of_another_width(kind, write):
    text = kind.file([*rows(kind, 2), [*rows(kind)[2], "7"], rows(kind)[0][:2], rows(kind, 4)[3]])
    with pytest.raises(TraceError, match=r"t\.csv:4: 4 fields, the header has 3"):
        read_trace(write("t.csv", text))
    trace = read_trace(write("t.csv", text), skip_bad_rows=True)
    assert (len(trace), trace.left_out[0].places) == (3, ["4", "5"])


@pytest.mark.parametrize("kind", [Csv(), Azure()], ids=lambda kind: kind.name)
def test_no_header(kind, write):
    with pytest.raises(TraceError, match="no header row"):
        read_trace(write("t.csv", kind.file(rows(kind)).split("\n", 1)[1]))


@pytest.mark.parametrize("ids", [[], [1, 2], [2**64 - 1]])
def test_hash_ids_empty_too_long_and_of_64_bits(jsonl, ids):
    path = jsonl([{"timestamp": n, "input_length": 500, "output_length": 1, "hash_ids": ids} for n in range(2)])
    if len(ids) == 1:
        assert read_trace(path).rows["prefix_blocks"].to_list() == [ids, ids]
        return
    with pytest.raises(TraceError, match=f"hash_ids has {len(ids)} ids for input_length 500"):
        read_trace(path)
