"""Containers and encodings: the same rows come out, or one clear error."""

from __future__ import annotations

import bz2
import gzip

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace

ROWS = b'{"timestamp":0,"input_length":5,"output_length":2}\n{"timestamp":1000,"input_length":6,"output_length":3}\n'
LENGTHS = ([5, 6], [2, 3])


def lengths(trace):
    return trace.rows["input_tokens"].to_list(), trace.rows["output_tokens"].to_list()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(ROWS, id="plain"),
        pytest.param(ROWS.rstrip(b"\n"), id="no newline at the end"),
        pytest.param(ROWS.replace(b"\n", b"\r\n"), id="CRLF"),
        pytest.param(b"\n\n" + ROWS.replace(b"\n", b"\n\n"), id="blank lines"),
        pytest.param(b"\xef\xbb\xbf" + ROWS, id="UTF-8 with BOM"),
        pytest.param(ROWS.decode().encode("utf-16"), id="UTF-16 with BOM"),
        pytest.param("\ufeff".encode("utf-16-be") + ROWS.decode().encode("utf-16-be"), id="UTF-16 big-endian"),
        pytest.param(gzip.compress(ROWS), id="gzip under a plain name"),
        pytest.param(gzip.compress(ROWS[:51]) + gzip.compress(ROWS[51:]), id="gzip in two members"),
        pytest.param(bz2.compress(ROWS), id="bzip2"),
        pytest.param(b"[" + ROWS.strip().replace(b"\n", b",\n") + b"]", id="JSON array"),
        pytest.param(ROWS.replace(b"\n", b""), id="objects run together"),
        pytest.param(ROWS.replace(b",", b",\n  "), id="objects over several lines"),
    ],
)
def test_the_same_rows_are_read_from_every_container(write, content):
    assert lengths(read_trace(write("trace.jsonl", content))) == LENGTHS


def zst_frame(data: bytes) -> bytes:
    """A Zstandard frame (RFC 8878) with one raw block: magic, single segment, size in one byte, block header."""
    header = (len(data) << 3 | 1).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd" + bytes([0x20, len(data)]) + header + data


@pytest.mark.parametrize("parts", [[ROWS], [ROWS[:51], ROWS[51:]], [b"\n" + ROWS.replace(b"\n", b"\r\n")]])
def test_zst_is_unpacked(write, parts):
    trace = read_trace(write("trace.jsonl", b"".join(zst_frame(part) for part in parts)))
    assert lengths(trace) == LENGTHS


def test_lines_inside_zst_keep_their_numbers(write):
    with pytest.raises(TraceError, match=r"trace\.jsonl\.zst:4: not valid JSON"):
        read_trace(write("trace.jsonl.zst", zst_frame(b"\n" + ROWS + b"{broken\n")))


def test_csv_in_gzip_with_bom(write):
    content = gzip.compress(b"\xef\xbb\xbfinput_tokens,output_tokens\r\n5,2\r\n6,3")
    assert lengths(read_trace(write("t.csv.gz", content))) == LENGTHS


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "Git LFS pointer.*git lfs pull"),
        (b"<!DOCTYPE html>\n<html><body>404</body></html>", "web page"),
        (b"PAR1....", "broken parquet file"),
        (b"ARROW1....", "broken arrow file"),
        (b"\xfd7zXZ\x00..", "xz -d"),
        (b"trace.jsonl".ljust(257, b"\x00") + b"ustar", "tar archive"),
        (b"PK\x03\x04....", "zip"),
        (ROWS.decode().encode("utf-16-le"), r"not UTF-8 text \(byte 0x00 at 1\)"),
        (gzip.compress(ROWS, mtime=0)[:-12], "cannot be unpacked.*cut off"),
        (b"\x28\xb5\x2f\xfd\x00", "cannot be unpacked"),
    ],
)
def test_what_is_no_trace_is_named(write, content, says):
    path = write("trace.jsonl", content)
    with pytest.raises(TraceError, match=says) as raised:
        read_trace(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)


def test_bytes_of_another_encoding_are_named_with_line_and_byte(write):
    path = write("trace.jsonl", ROWS + '{"timestamp":1,"input_length":1,"output_length":1,"x":"é"}\n'.encode("cp1252"))
    with pytest.raises(TraceError, match=r"trace\.jsonl:3: not UTF-8 \(byte 0xe9 at 55\)"):
        read_trace(path)


def test_bytes_of_another_encoding_in_a_table_are_named(write):
    path = write("trace.csv", "input_tokens,output_tokens,x\n1,2,a\n3,4,é\n".encode("cp1252"))
    with pytest.raises(TraceError, match=r"trace\.csv:3: not UTF-8 \(byte 0xe9"):
        read_trace(path)


def test_a_folder_and_a_missing_file_are_named(tmp_path):
    with pytest.raises(TraceError, match="the folder holds no trace file"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "none.jsonl")


def test_only_the_name_of_the_file_is_kept(write):
    assert read_trace(write("trace.jsonl", ROWS)).source == "trace.jsonl"
