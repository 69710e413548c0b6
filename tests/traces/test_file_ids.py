"""Several files: parts of one trace share their ids, traces that each number from 0 do not."""

from __future__ import annotations

import json

import pytest

from inferdoc.traces import ideal_hits, read_trace


def mooncake(times, first_id, **more):
    rows = [
        {"timestamp": time, "input_length": 1025, "output_length": 1} | {"hash_ids": [first_id + i for i in ids]} | more
        for time, ids in ((time, [0, 1 + n, 100]) for n, time in enumerate(times))
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_files_that_each_number_from_0_share_nothing(write):
    paths = [write(name, mooncake(range(0, 8000, 1000), 0, session_id="7")) for name in ("a.jsonl", "b.jsonl")]
    trace = read_trace(paths)
    # In each file the 7 later rows find the first block, of 512 tokens.
    assert ideal_hits(trace, 512).hit_tokens == 2 * 7 * 512
    assert trace.rows["prefix_blocks"].to_list()[:2] == [[0, 1, 100], [0, 2, 100]]
    assert trace.rows["session"].n_unique() == 2
    (note,) = [note for note in trace.notes if "taken as different" in note]
    assert note.startswith("clock and numbers start again in b.jsonl: block ids and session numbers of")
    assert any("the clock starts again at b.jsonl:1:" in note for note in trace.notes)


def test_parts_of_one_trace_share_their_ids(write):
    paths = [
        write(name, mooncake(times, 0, session_id="7"))
        for name, times in (("a.jsonl", range(0, 8000, 1000)), ("b.jsonl", range(8000, 16000, 1000)))
    ]
    trace = read_trace(paths)
    # All rows but the first find the first block; those of the second file find two (and the end, of 1 token).
    assert ideal_hits(trace, 512).hit_tokens == 7 * 512 + 8 * 1024
    assert trace.rows["session"].n_unique() == 1
    assert not any("taken as different" in note for note in trace.notes)


@pytest.mark.parametrize(("start", "first_id"), [(0, 2**60), (1_700_000_000_000, 0)])
def test_hashes_and_absolute_times_mean_the_same_in_all_files(write, start, first_id):
    times = range(start, start + 8000, 1000)
    paths = [write(name, mooncake(times, first_id)) for name in ("a.jsonl", "b.jsonl")]
    trace = read_trace(paths)
    assert ideal_hits(trace, 512).hit_tokens == 7 * 512 + 8 * 1024
    assert not any("taken as different" in note for note in trace.notes)


def test_the_second_trace_may_have_parts_too(write):
    parts = {"a": range(0, 8000, 1000), "b": range(0, 8000, 1000), "c": range(8000, 16000, 1000)}
    paths = [write(f"{name}.jsonl", mooncake(times, 0)) for name, times in parts.items()]
    assert ideal_hits(read_trace(paths), 512).hit_tokens == 7 * 512 + 7 * 512 + 8 * 1024
