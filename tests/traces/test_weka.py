"""WEKA: a conversation an object, sub-agents inside it, block ids that mean nothing outside."""

from __future__ import annotations

import json

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import ideal_hits, read_trace
from inferdoc.traces.formats.weka import FORMAT
from inferdoc.traces.ledger import Ledger


def request(t, tokens=130, ids=(1, 2), **other):
    return {"t": t, "type": "n", "model": "m", "in": tokens, "out": 5, "hash_ids": list(ids), "api_time": 2.0} | other


def conversation(id, *requests, **other):
    return {
        "id": id, "models": ["m"], "block_size": 64, "hash_id_scope": "local", "tool_tokens": 1, "system_tokens": 1,
        "requests": list(requests), "totals": {},
    } | other  # fmt: skip


def flattened(conversation):
    """Requests of a conversation in the file's order: (absolute time, session, request)."""
    for entry in conversation["requests"]:
        if entry["type"] != "subagent":
            yield entry["t"], conversation["id"], entry
            continue
        for inner in entry["requests"]:
            yield entry["t"] + inner["t"], f"{conversation['id']}/{entry['agent_id']}", inner


def files(shared):
    return sorted((shared / "traces" / "weka").glob("*.json"))


def test_every_file_against_a_plain_reading(shared):
    total = 0
    for path in files(shared):
        expected = sorted(flattened(json.loads(path.read_text())), key=lambda item: item[0])
        trace = read_trace(path)
        total += len(trace)
        start = expected[0][0]
        assert (trace.format, trace.time_unit, trace.block_size, trace.left_out) == ("weka", "s", 64, ())
        rows = trace.rows
        assert rows["arrival_s"].to_list() == pytest.approx([t - start for t, _, _ in expected], abs=1e-6)
        assert rows["session"].to_list() == [session for _, session, _ in expected]
        assert rows["input_tokens"].to_list() == [raw["in"] for _, _, raw in expected]
        assert rows["output_tokens"].to_list() == [raw["out"] for _, _, raw in expected]
        assert rows["e2e_s"].to_list() == [raw.get("api_time") for _, _, raw in expected]
        assert rows["ttft_s"].to_list() == [raw.get("ttft") for _, _, raw in expected]
        assert rows["segment"].null_count() == len(trace)
    assert total == 474


def test_block_ids_repeat_inside_a_conversation_as_recorded(shared):
    for path in files(shared)[:6]:
        expected = sorted(flattened(json.loads(path.read_text())), key=lambda item: item[0])
        found = read_trace(path).rows["prefix_blocks"].to_list()
        pairs = {
            (a, b)
            for (_, _, raw), row in zip(expected, found, strict=True)
            for a, b in zip(raw["hash_ids"], row, strict=True)
        }
        assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def test_conversations_share_no_ids_and_no_clock(shared):
    records = [(line, json.loads(path.read_text())) for line, path in enumerate(files(shared), 1)]
    draft = FORMAT.read(records, Ledger("weka", skip_bad_rows=False))
    seen: dict[int, int] = {}
    for segment, row in zip(draft.ready["segment"], draft.ready["prefix_blocks"].to_list(), strict=True):
        assert all(seen.setdefault(id, segment) == segment for id in row)
    assert draft.ready["segment"].n_unique() == 16
    assert draft.lines.to_list() == [line for line, record in records for _ in flattened(record)]
    assert any("16 conversations, each with a clock" in note for note in draft.notes)
    # 0026 and 0242 are two captures of one conversation.
    assert any(note.startswith("1 conversations have exactly the prompts of another") for note in draft.notes)


def test_a_folder_is_one_trace_of_independent_clocks(shared):
    trace = read_trace(shared / "traces" / "weka")
    assert (trace.format, len(trace), trace.left_out) == ("weka", 474, ())
    starts = trace.rows.group_by("segment", maintain_order=True).agg("arrival_s", "session")
    assert len(starts) == 16
    for times, sessions, path in zip(starts["arrival_s"], starts["session"], files(shared), strict=True):
        expected = sorted(t for t, _, _ in flattened(json.loads(path.read_text())))
        assert times.to_list() == pytest.approx([t - expected[0] for t in expected], abs=1e-6)
        assert {session.split("/")[0] for session in sessions} == {path.stem}


def test_ids_of_a_common_scope_are_shared(jsonl):
    records = [
        conversation(n, request(0), request(9), hash_id_scope=scope)
        for n, scope in ((1, "global"), (2, "global"), (3, "local"))
    ]
    draft = FORMAT.read(list(enumerate(records, 1)), Ledger("x", skip_bad_rows=False))
    rows = draft.ready["prefix_blocks"].to_list()
    assert rows[0] == rows[1] == rows[2] == rows[3]
    assert not set(rows[0]) & set(rows[4])


def test_conversations_of_one_name_are_two_sessions(jsonl):
    records = [conversation(id, request(0)) for id in ("c", "c", None)]
    draft = FORMAT.read(list(enumerate(records, 1)), Ledger("x", skip_bad_rows=False))
    assert draft.cells["session"].to_list() == ["c", "c #2", "conversation 3"]


def test_sub_agents_start_at_their_own_time_and_run_beside(jsonl):
    inner = {
        "t": 10.5,
        "type": "subagent",
        "agent_id": "a1",
        "requests": [request(0.0, ids=(7, 8)), request(3.25, ids=(7, 9))],
    }
    trace = read_trace(jsonl([conversation("c", request(0.0), inner, request(12.0))]))
    assert trace.rows.select("arrival_s", "session", "turn").rows() == [
        (0.0, "c", 1), (10.5, "c/a1", 1), (12.0, "c", 2), (13.75, "c/a1", 2),
    ]  # fmt: skip
    assert any("2 requests are from 1 sub-agents" in note for note in trace.notes)


def test_hit_rate_of_a_growing_conversation(jsonl):
    rows = [request(0, 130, (1, 2)), request(5, 200, (1, 2, 3)), request(9, 260, (1, 2, 3, 4))]
    hits = ideal_hits(read_trace(jsonl([conversation("c", *rows)])), 64)
    assert hits.hit_tokens == (2 + 3) * 64


@pytest.mark.parametrize("count", [2, 3])
def test_ids_with_and_without_one_for_the_last_part(jsonl, count):
    trace = read_trace(jsonl([conversation("c", request(0, 130, range(count)))]))
    assert len(trace.rows["prefix_blocks"][0]) == count


def test_missing_api_times_are_absent(jsonl):
    trace = read_trace(jsonl([conversation("c", request(0), request(1, api_time=None))]))
    assert trace.rows["e2e_s"].to_list() == [2.0, None]
    assert any("1 of 2 requests have no api_time" in note for note in trace.notes)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (request(1, ids=(1,)), "hash_ids has 1 ids for in 130: blocks of 64 tokens make 3"),
        (request(1, ids=(1, "x")), "requests[1]: hash_ids is"),
        (7, "requests[1] is '7': expected an object"),
        (request("soon"), "t is text of 4 characters: expected a time in s"),
        (request(None), "t is missing"),
        ({"t": None, "type": "subagent", "requests": [request(1)]}, "t is missing"),
        ({"t": 1, "type": "subagent", "requests": 5}, "requests is '5': expected a list"),
        (request(1, out=-2), "out is '-2'"),
    ],
)  # fmt: skip
def test_wrong_requests_are_named(jsonl, bad, says):
    path = jsonl([conversation("c", request(0), bad)])
    with pytest.raises(TraceError) as raised:
        read_trace(path)
    assert str(raised.value).startswith(f"{path}:1: {says}")
    trace = read_trace(path, skip_bad_rows=True)
    assert (len(trace), trace.left_out[0].rows) == (1, 1)


def test_two_block_sizes_cannot_be_one_trace(jsonl):
    with pytest.raises(TraceError, match=r"block_size has 2 values \(64, 128\)"):
        read_trace(jsonl([conversation("a", request(0)), conversation("b", request(0, 256), block_size=128)]))
