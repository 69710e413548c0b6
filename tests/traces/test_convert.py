"""Mooncake files that we write: what a reader makes of them, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from inferdoc.errors import InputError, TraceError
from inferdoc.traces import read_trace
from inferdoc.traces.analysis import analyse
from inferdoc.traces.convert import mooncake_rows, write_mooncake
from inferdoc.traces.files import check_target


def test_the_public_file_comes_back_as_it_is(shared, tmp_path):
    source = shared / "traces/mooncake/synthetic_trace.jsonl"
    made = write_mooncake(read_trace(source), tmp_path / "m.jsonl")
    assert (made.block_size, made.lost, made.notes) == (512, [], [])
    given = [json.loads(line) for line in source.read_text().splitlines()]
    written = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    start = min(row["timestamp"] for row in given)
    names = ("input_length", "output_length", "hash_ids")
    expected = [
        {"timestamp": row["timestamp"] - start} | {name: row[name] for name in names}
        for row in sorted(given, key=lambda row: row["timestamp"])
    ]
    assert written == expected


def test_hashes_of_another_source_give_the_same_analysis(shared, tmp_path):
    trace = read_trace(shared / "traces/llmservingsim/sharegpt-qwen3-32b-300-sps10.blocks16.jsonl")
    assert trace.block_size == 16
    made = write_mooncake(trace, tmp_path / "m.jsonl")
    assert any("16 tokens" in note for note in made.notes)
    again = read_trace(tmp_path / "m.jsonl")
    assert (again.format, again.block_size) == ("mooncake", 16)
    before, after = analyse(trace), analyse(again)
    assert after.prefixes.block_sizes == before.prefixes.block_sizes
    assert after.load == before.load


def test_token_ids_become_chains_of_512(trace_of, tmp_path):
    shared_part, a, b = [1] * 512, [2] * 512, [3] * 600
    prompts = [shared_part + a, shared_part + a + b, shared_part + b, a + shared_part]
    trace = trace_of(
        arrival_s=[0.0, 0.5, 1.0, 1.2345],
        input_tokens=[len(prompt) for prompt in prompts],
        output_tokens=[1, 2, 3, 4],
        prompt_ids=prompts,
        session=["s", None, "s", None],
        ttft_s=[0.1, None, None, None],
    )
    made = mooncake_rows(trace)
    ids = made.rows["hash_ids"].to_list()
    assert [len(row) for row in ids] == [2, 4, 3, 2]
    assert ids[1][:2] == ids[0]
    assert ids[2][0] == ids[0][0]
    # The same tokens behind others are another prefix, and a partly filled block is nobody else's.
    assert len({block for row in ids for block in row}) == 1 + 1 + 1 + 1 + 2 + 2
    assert made.rows["timestamp"].to_list() == [0.0, 500.0, 1000.0, 1234.5]
    assert made.rows["session_id"].to_list() == ["s", None, "s", None]
    assert made.lost == ["token ids of prompts", "times to first token"]
    assert any("fractions of a millisecond" in note for note in made.notes)


def test_recorded_blocks_can_be_joined(trace_of, tmp_path):
    trace = trace_of(input_tokens=[40, 64], output_tokens=[1, 1], prefix_blocks=[[1, 2], [1, 2, 3, 4]])
    made = mooncake_rows(replace(trace, block_size=16), 512)
    assert [len(row) for row in made.rows["hash_ids"].to_list()] == [1, 1]
    with pytest.raises(TraceError, match="no multiple of the recorded blocks of 16"):
        mooncake_rows(replace(trace, block_size=16), 24)


def test_a_block_size_that_no_reader_could_tell_is_refused(trace_of):
    trace = replace(trace_of(input_tokens=[64], output_tokens=[1], prefix_blocks=[[1, 2, 3, 4]]), block_size=16)
    with pytest.raises(TraceError, match="--block-size 512"):
        mooncake_rows(trace)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"input_tokens": [1, None], "output_tokens": [1, 1]}, "1 of 2 requests have no input_tokens"),
        ({"input_tokens": [1, 1], "output_tokens": [None, 1]}, "no output_tokens"),
        (
            {"input_tokens": [1, 1], "output_tokens": [1, 1], "segment": [0, 1], "independent_clocks": True},
            "clocks of their own",
        ),
    ],
)
def test_what_a_mooncake_file_cannot_hold(trace_of, columns, message):
    with pytest.raises(TraceError, match=message):
        mooncake_rows(trace_of(**columns))


def test_texts_without_a_tokenizer_lose_their_prefixes(trace_of):
    made = mooncake_rows(trace_of(input_tokens=[600, 600], output_tokens=[1, 1], prompt_text=["a", "a"]))
    assert "hash_ids" not in made.rows.columns
    assert any("--model" in what for what in made.lost)


def test_files_that_must_not_be_written(tmp_path):
    source = tmp_path / "t.jsonl"
    source.write_text('{"input_length": 1, "output_length": 1}\n')
    (tmp_path / "link.jsonl").symlink_to(source)
    for target in (source, tmp_path / "link.jsonl"):
        with pytest.raises(InputError, match="is the trace that is read"):
            check_target(target, [source], force=True)
        with pytest.raises(InputError, match="is the trace that is read"):
            check_target(target, [tmp_path], force=True)
    other = tmp_path / "other.jsonl"
    check_target(other, [source], force=False)
    other.write_text("x")
    with pytest.raises(InputError, match="--force"):
        check_target(other, [source], force=False)
    check_target(other, [source], force=True)
    with pytest.raises(InputError, match="does not exist"):
        check_target(tmp_path / "no" / "t.jsonl", [source], force=False)
    with pytest.raises(InputError, match="is a folder"):
        check_target(tmp_path, [source], force=False)
