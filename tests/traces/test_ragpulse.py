"""RAGPulse: components with lengths in tables beside the trace, and the prefix blocks that follow from them."""

from __future__ import annotations

import json
import shutil

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace
from inferdoc.traces.formats.component_blocks import prompt_blocks

TABLES = {
    "sys_prompt": ("1_sys_prompt", "sys_prompt_id"),
    "passages_ids": ("2_passages", "passage_id"),
    "history": ("3_history", "history_id"),
    "user_input": ("4_user_input", "user_input_id"),
    "web_search": ("5_web_search", "web_search_id"),
}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


@pytest.fixture(scope="module")
def real(shared):
    return read_trace(shared / "traces" / "ragpulse" / "0_trace.jsonl")


@pytest.fixture
def rag(tmp_path):
    """Write a trace of rows (components, length) and tables; give the trace's path."""

    def write(rows, tables, times=None):
        for kind, lengths in tables.items():
            file, field = TABLES[kind]
            text = "".join(json.dumps({field: id, "token_length": n}) + "\n" for id, n in lengths.items())
            (tmp_path / f"{file}.jsonl").write_text(text)
        times = times or [str(at) for at in range(len(rows))]
        records = [
            {"timestamp": time, "input_length": tokens, "output_length": 3, "hash_ids": components, "session_id": "s"}
            for time, (components, tokens) in zip(times, rows, strict=True)
        ]
        path = tmp_path / "0_trace.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records) + "\n")
        return path

    return write


def test_the_real_trace_against_a_plain_reading(shared, real):
    folder = shared / "traces" / "ragpulse"
    expected = lines(folder / "0_trace.jsonl")
    lengths = {
        kind: {row[field]: row["token_length"] for row in lines(folder / f"{file}.jsonl")}
        for kind, (file, field) in TABLES.items()
    }
    trace = real
    assert (trace.format, trace.time_unit, trace.block_size, trace.left_out) == ("ragpulse", "s", 16, ())
    assert len(trace) == len(expected) == 7106
    rows = trace.rows.sort("row")
    assert rows["input_tokens"].to_list() == [row["input_length"] for row in expected]
    assert rows["session"].to_list() == [row["session_id"] for row in expected]
    for row, found in zip(expected, rows["components"].to_list(), strict=True):
        assert [(c["id"], c["tokens"]) for c in found] == [
            (id, lengths[kind][id]) for kind, ids in row["hash_ids"].items() for id in ids
        ]
    assert [len(blocks) for blocks in rows["prefix_blocks"].to_list()] == [
        row["input_length"] // 16 for row in expected
    ]
    assert any("prompts have 6 to 12 tokens more than their components" in note for note in trace.notes)
    # Neighbours share the blocks that lie inside their common leading components.
    found = rows["prefix_blocks"].to_list()
    for at in range(1, 400):
        pieces = [[(kind, id) for kind, ids in expected[row]["hash_ids"].items() for id in ids] for row in (at - 1, at)]
        common = 0
        for one, other in zip(*pieces, strict=False):
            if one != other:
                break
            common += lengths[one[0]][one[1]]
        shared_blocks = 0
        for one, other in zip(found[at - 1], found[at], strict=False):
            if one != other:
                break
            shared_blocks += 1
        assert shared_blocks == common // 16


def test_the_two_weeks_are_two_stretches_of_the_clock(real):
    # The weeks overlaid would put requests of the second one (from row 3,801 on) among those of the first.
    assert real.rows["row"].to_list()[:3800] == list(range(1, 3801))
    assert any("clock" in note and "3801" in note.replace(",", "") for note in real.notes)


def test_blocks_straddling_a_difference_differ(rag):
    tables = {"sys_prompt": {1: 40}, "passages_ids": {5: 24, 6: 24}, "user_input": {9: 10}}
    same = {"sys_prompt": [1], "passages_ids": [5], "user_input": [9]}
    other = {"sys_prompt": [1], "passages_ids": [6], "user_input": [9]}
    trace = read_trace(rag([(same, 80), (same, 80), (other, 80)], tables))
    one, two, three = trace.rows["prefix_blocks"].to_list()
    assert (len(one), trace.block_size) == (5, 16)
    assert one == two
    # 40 tokens are common: blocks 0 and 1 lie inside them, block 2 (tokens 32 to 47) does not.
    assert [a == b for a, b in zip(one, three, strict=True)] == [True, True, False, False, False]
    assert len(set(one) | set(three)) == 8


def test_order_of_the_passages_decides(rag):
    tables = {"passages_ids": {5: 32, 6: 32}}
    one, two = read_trace(rag([({"passages_ids": [5, 6]}, 70), ({"passages_ids": [6, 5]}, 70)], tables)).rows[
        "prefix_blocks"
    ]
    assert not set(one) & set(two)


def test_the_same_id_of_another_kind_is_another_component():
    one, two = prompt_blocks([[("a", 1, 32)], [("b", 1, 32)]], [32, 32])
    assert not set(one) & set(two)


def test_components_end_on_a_block():
    one, two = prompt_blocks([[("a", 1, 16), ("a", 2, 16)], [("a", 1, 16), ("a", 3, 16)]], [32, 32])
    assert (one[0] == two[0], one[1] == two[1]) == (True, False)


def test_a_component_in_no_table_ends_what_is_known(rag):
    tables = {"sys_prompt": {1: 32}, "user_input": {9: 8}}
    rows = [({"sys_prompt": [1], "passages_ids": [4], "user_input": [9]}, 100)] * 2
    rows.append(({"sys_prompt": [1], "passages_ids": [4], "user_input": [8]}, 100))
    trace = read_trace(rag(rows, tables))
    one, two, three = trace.rows["prefix_blocks"].to_list()
    assert one == two
    assert [a == b for a, b in zip(one, three, strict=True)] == [True, True, False, False, False, False]
    assert [c["tokens"] for c in trace.rows["components"][0]] == [32, None, 8]
    assert any("4 components are in no table" in note for note in trace.notes)


def test_without_tables_components_have_no_lengths(shared, tmp_path):
    path = tmp_path / "0_trace.jsonl"
    shutil.copyfile(shared / "traces" / "ragpulse" / "0_trace.jsonl", path)
    trace = read_trace(path)
    assert (trace.block_size, trace.has("prefix_blocks"), trace.has("components")) == (None, False, True)
    assert {c["tokens"] for c in trace.rows["components"][0]} == {None}
    assert any("not beside the trace" in note for note in trace.notes)


def test_a_folder_with_the_tables_is_its_trace(rag):
    path = rag([({"history": [2]}, 40)] * 2, {"history": {2: 33}})
    trace = read_trace(path.parent)
    assert trace.rows.equals(read_trace(path).rows)
    assert any(note.startswith("set aside") and "3_history.jsonl" in note for note in trace.notes)
    with pytest.raises(TraceError, match=r"3_history.jsonl: .*give 0_trace.jsonl, and leave the five tables beside it"):
        read_trace([path, path.parent / "3_history.jsonl"])


def test_tables_in_the_same_stream_are_used_and_counted(jsonl):
    rows = [
        {"timestamp": "3", "input_length": 40, "output_length": 1, "hash_ids": {"history": [2]}, "session_id": "s"},
        {"history_id": 2, "token_length": 33},
        {"history_id": 3, "token_length": 5},
    ]
    trace = read_trace(jsonl(rows))
    assert trace.rows["components"][0][0] == {"kind": "history", "id": 2, "tokens": 33}
    assert [(entry.reason, entry.rows) for entry in trace.left_out] == [("rows of the tables of component lengths", 2)]


@pytest.mark.parametrize("name", [file for file, _ in TABLES.values()])
def test_a_table_alone_is_refused_with_advice(shared, name):
    with pytest.raises(TraceError, match=r"table of component lengths of RAGPulse.*give 0_trace.jsonl"):
        read_trace(shared / "traces" / "ragpulse" / f"{name}.jsonl")


@pytest.mark.parametrize(
    ("components", "tokens", "says"),
    [
        ({"passages_ids": 5}, 40, "hash_ids.passages_ids is '5'"),
        ({"passages_ids": [-5]}, 40, "hash_ids.passages_ids is"),
        ([1, 2], 40, "hash_ids is no object of components"),
        ({"passages_ids": [5]}, -40, "input_length is '-40'"),
        ({"passages_ids": [5]}, 10**12, "input_length is"),
        ({"passages_ids": [5]}, None, "input_length is missing"),
    ],
)
def test_wrong_rows_are_named(rag, components, tokens, says):
    good = ({"passages_ids": [5, 5]}, 48)
    path = rag([good, (components, tokens), good], {"passages_ids": {5: 20}})
    with pytest.raises(TraceError) as raised:
        read_trace(path)
    assert str(raised.value).startswith(f"{path}:2: {says}")
    trace = read_trace(path, skip_bad_rows=True)
    assert (len(trace), trace.left_out[0].rows, trace.left_out[0].first_line) == (2, 1, 2)


def test_a_wrong_row_of_a_table_is_named_with_its_file(rag):
    path = rag([({"passages_ids": [5, 6]}, 48)], {"passages_ids": {5: 20, 6: -3}})
    with pytest.raises(TraceError, match=r"2_passages.jsonl:2: token_length is '-3'"):
        read_trace(path)
    trace = read_trace(path, skip_bad_rows=True)
    assert [c["tokens"] for c in trace.rows["components"][0]] == [20, None]
    assert any("1 rows of the tables of component lengths cannot be read" in note for note in trace.notes)
