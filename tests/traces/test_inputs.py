"""Several files are one trace: folders, patterns, lists, standard input; each row keeps its file and line."""

from __future__ import annotations

import gzip
import io
import json
import sys

import polars as pl
import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace


def lines(*times, length=5):
    rows = [{"timestamp": time, "input_length": length, "output_length": 1} for time in times]
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.jsonl.gz").write_bytes(gzip.compress(lines(3000, 4000).encode()))
    (tmp_path / "a.jsonl").write_text(lines(1000, 2000))
    (tmp_path / ".hidden.jsonl").write_text("x")
    (tmp_path / "notes.md").write_text("x")
    (tmp_path / "e.jsonl").write_text("")
    return tmp_path


def test_a_folder_is_one_trace_in_order_of_the_names(folder):
    trace = read_trace(folder)
    assert trace.rows["arrival_s"].to_list() == [0.0, 1.0, 2.0, 3.0]
    assert trace.rows["row"].to_list() == [1, 2, 3, 4]
    assert trace.source == f"{folder.name} (2 files)"
    assert "not read in the folder: .hidden.jsonl, notes.md" in trace.notes
    assert "empty files: e.jsonl" in trace.notes
    assert [trace.files.place(row) for row in (2, 3)] == ["a.jsonl:2", "b.jsonl.gz:1"]


def test_a_pattern_and_a_list_take_what_they_name(folder):
    assert len(read_trace(str(folder / "*.jsonl"))) == 2
    assert len(read_trace(str(folder / "**" / "*.gz"))) == 2
    assert len(read_trace([folder / "a.jsonl", folder / "deep" / "b.jsonl.gz"])) == 4
    with pytest.raises(TraceError, match="no file matches the pattern"):
        read_trace(str(folder / "*.parquet"))


def test_a_file_whose_name_looks_like_a_pattern(write):
    assert len(read_trace(str(write("run[1].jsonl", lines(1, 2))))) == 2
    assert len(read_trace(write("run[1].csv", "input_tokens,output_tokens\n1,2\n"))) == 1
    path = write("run[1].parquet", b"")
    with path.open("wb") as file:
        pl.DataFrame({"input_tokens": [1], "output_tokens": [2]}).write_parquet(file)
    assert len(read_trace(path)) == 1


def test_standard_input(monkeypatch):
    stdin = io.TextIOWrapper(io.BytesIO(gzip.compress(lines(1, 2, 3).encode())))
    monkeypatch.setattr(sys, "stdin", stdin)
    trace = read_trace("-")
    assert (len(trace), trace.source) == (3, "stdin")


def test_faults_name_their_file_and_the_line_in_it(folder):
    path = folder / "deep" / "c.jsonl"
    path.write_text(lines(5000) + lines(6000, length=-1) + lines(7000))
    with pytest.raises(TraceError) as raised:
        read_trace(folder)
    assert str(raised.value).startswith(f"{path}:2: input_length is '-1'")
    trace = read_trace(folder, skip_bad_rows=True)
    assert (trace.left_out[0].rows, trace.left_out[0].places) == (1, ["c.jsonl:2"])
    assert len(trace) == 6


def test_only_the_first_places_are_kept(write):
    trace = read_trace(write("t.jsonl", lines(1) + lines(*range(25), length=-1)), skip_bad_rows=True)
    assert (trace.left_out[0].rows, trace.left_out[0].places) == (25, [str(line) for line in range(2, 22)])


def test_shards_of_two_formats_are_both_named(folder):
    (folder / "x.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,1\n")
    with pytest.raises(TraceError, match=r"x\.csv: is Azure, but .*a\.jsonl is Mooncake"):
        read_trace(folder)


def test_tables_of_different_column_order(write):
    write("a.csv", "timestamp,input_tokens,output_tokens\n1,5,2\n2,6,3\n")
    second = write("b.csv", "output_tokens,timestamp,model,input_tokens\n4,3,m,7\nx,4,m,8\n")
    with pytest.raises(TraceError, match=r"b\.csv:3: output_tokens is text of 1 character"):
        read_trace(second.parent)
    trace = read_trace(second.parent, skip_bad_rows=True)
    assert trace.rows["input_tokens"].to_list() == [5, 6, 7]
    assert trace.rows["model"].to_list() == [None, None, "m"]
    assert trace.left_out[0].places == ["b.csv:3"]


def test_logs_of_several_files(tmp_path):
    for name, second in (("a.log", 33), ("b.log", 34)):
        line = f"INFO 02-13 11:33:{second} [logger.py:49] Received request c-{second}: params: P(max_tokens=5)\n"
        (tmp_path / name).write_text(line)
    with pytest.raises(TraceError, match="2 arrivals over 1 s"):
        read_trace(tmp_path)


ROWS = {
    "timestamp": [0, 1000],
    "input_length": [600, 700],
    "output_length": [1, 2],
    "hash_ids": [[1, 2**64 - 1], [1, 3]],
}


@pytest.mark.parametrize("write_as", ["write_parquet", "write_ipc", "write_ipc_stream"])
def test_columnar_files_as_records(tmp_path, write_as):
    path = tmp_path / "t.bin"
    getattr(pl.DataFrame(ROWS, schema_overrides={"hash_ids": pl.List(pl.UInt64)}), write_as)(path)
    trace = read_trace(path)
    assert (trace.format, trace.duration_s) == ("mooncake", 1.0)
    assert trace.rows["prefix_blocks"].to_list() == ROWS["hash_ids"]


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_columnar_files_as_tables(tmp_path, zone):
    stamps = pl.Series([0, 1_500_000_000], dtype=pl.Datetime("ns", zone))
    frame = pl.DataFrame({"TIMESTAMP": stamps, "ContextTokens": [5.0, 6.0], "GeneratedTokens": [1, 2]})
    frame.write_parquet(tmp_path / "t.parquet")
    trace = read_trace(tmp_path / "t.parquet")
    assert (trace.format, trace.duration_s) == ("azure", 1.5)
    assert trace.rows["input_tokens"].to_list() == [5, 6]


def test_a_wrong_row_of_a_columnar_file_is_named(tmp_path):
    pl.DataFrame({"prompt_tokens": [5, -1], "completion_tokens": [1, 2]}).write_parquet(tmp_path / "t.parquet")
    with pytest.raises(TraceError, match=r"t\.parquet:2: prompt_tokens is '-1'"):
        read_trace(tmp_path / "t.parquet")


def test_a_table_exported_by_a_gateway_is_read_as_its_records(write):
    header = "call_type,startTime,endTime,prompt_tokens,completion_tokens,model\n"
    trace = read_trace(write("spend.csv", header + "acompletion,1700000000.0,1700000001.5,5,2,m\n"))
    assert (trace.format, trace.rows["e2e_s"].to_list()) == ("litellm", [1.5])


def test_a_file_given_twice_is_read_once(folder):
    path = folder / "a.jsonl"
    link = folder / "link.jsonl"
    link.symlink_to(path)
    trace = read_trace([path, path, link, folder / "deep" / ".." / "a.jsonl"])
    assert len(trace) == 2
    (note,) = [note for note in trace.notes if "more than once" in note]
    assert note == "given more than once, read once: link.jsonl, a.jsonl, a.jsonl"
    assert not any("more than once" in note for note in read_trace(path).notes)


def test_a_summary_in_a_folder_is_set_aside_but_not_where_it_is_named(tmp_path, write):
    trace = write("a.jsonl", lines(1000, 2000))
    table = write("1_sys_prompt.jsonl", json.dumps({"sys_prompt_id": 1, "token_length": 5}) + "\n")
    found = read_trace(tmp_path)
    assert len(found) == 2
    assert "set aside, since they hold no single requests: 1_sys_prompt.jsonl" in found.notes
    with pytest.raises(TraceError, match="it holds no requests"):
        read_trace([trace, table])
    trace.unlink()
    with pytest.raises(TraceError, match="it holds no requests"):
        read_trace(tmp_path)


@pytest.mark.parametrize(
    ("name", "requests", "aside"),
    [
        ("ragpulse", 7106, "1_sys_prompt.jsonl"),
        ("aiperf", 105 - 2, "profile_export_aiperf.csv, profile_export_aiperf.json"),
        ("guidellm", 1 + 80 - 1, "benchmarks_v0.8.1.csv"),
    ],
)
def test_folders_that_tools_write(shared, name, requests, aside):
    trace = read_trace(shared / "traces" / name)
    assert len(trace) == requests
    assert any(note.startswith("set aside") and aside in note for note in trace.notes)


def test_rows_that_are_all_wrong_are_shown(write):
    path = write("t.jsonl", lines(1, 2, 3, 4, length=-5))
    with pytest.raises(TraceError) as raised:
        read_trace(path)
    message = str(raised.value)
    assert message.startswith(f"{path}:1: input_length is '-5'")
    assert f"; {path}:2: " in message
    assert f"; {path}:3: " in message
    assert "the first 3 rows are all wrong" in message
    one = write("u.jsonl", lines(1, length=-5) + lines(2, 3, 4))
    with pytest.raises(TraceError, match=r"u\.jsonl:1: input_length is '-5'") as raised:
        read_trace(one)
    assert "all wrong" not in str(raised.value)
    table = write("t.csv", "input_tokens,output_tokens\nx,1\ny,1\nz,1\n")
    with pytest.raises(TraceError, match=r"t\.csv:2: .*t\.csv:3: .*t\.csv:4: .*all wrong"):
        read_trace(table)
