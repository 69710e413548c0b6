"""Anonymized traces: the same analysis, nothing to read, and a key that stays where it is."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import replace

import pytest

from inferdoc.errors import InputError
from inferdoc.traces import read_trace
from inferdoc.traces.analysis import analyse
from inferdoc.traces.anonymize import anonymize, read_key
from inferdoc.traces.files import write_trace
from inferdoc.traces.tokens import tokenize

KEY = b"0" * 32
SIZES = (16, 32, 64)


def same_analysis(before, after):
    """All results but what names a row, a text, or tells reuse at other positions."""
    assert after.load.lengths == before.load.lengths
    assert after.load.arrivals == before.load.arrivals
    assert after.load.windows == before.load.windows
    assert after.load.batch_waste == before.load.batch_waste
    assert after.course == before.course
    kept = {"any_position", "notes", "most_reused"}
    # Which of several prefixes that save as much stands in the list is decided by their ids.
    assert [top.saved_tokens for top in after.prefixes.most_reused] == (
        [top.saved_tokens for top in before.prefixes.most_reused]
    )
    assert after.prefixes.model_dump(exclude=kept) == before.prefixes.model_dump(exclude=kept)


def words(texts):
    return [[sum(word.encode()) % 5000 + 1 for word in text.split()] for text in texts]


@pytest.mark.parametrize("name", ["mooncake/conversation_trace.jsonl", "ragpulse/0_trace.jsonl", "weka"])
def test_recorded_hashes_give_the_same_analysis(shared, tmp_path, name):
    trace = read_trace(shared / "traces" / name)
    if not trace.independent_clocks:
        trace = trace.window(0, 3000)
    made = anonymize(trace, KEY)
    write_trace(made.trace, tmp_path / "a.parquet", made.notes)
    again = read_trace(tmp_path / "a.parquet")
    before, after = analyse(trace, replicas=(2,)), analyse(again, replicas=(2,))
    same_analysis(before, after)
    assert after.prefixes.any_position == before.prefixes.any_position
    # Sorting by id, also of equally common pieces, gives another order with other ids.
    by_id = {"sorted_hit_rate", "mended_hit_rate", "sentence"}
    assert after.component_order.model_dump(exclude=by_id) == before.component_order.model_dump(exclude=by_id)
    assert after.component_order.mended_hit_rate == pytest.approx(before.component_order.mended_hit_rate, abs=1e-3)
    old = set(trace.rows["prefix_blocks"].explode().drop_nulls().to_list())
    assert not old & set(again.rows["prefix_blocks"].explode().drop_nulls().to_list())


def test_token_ids_give_the_same_analysis(shared, tmp_path):
    text = read_trace(shared / "traces/otel")
    trace = tokenize(text, words)
    made = anonymize(trace, KEY)
    write_trace(made.trace, tmp_path / "a.jsonl", made.notes)
    before = analyse(trace, block_sizes=SIZES)
    same_analysis(before, analyse(read_trace(tmp_path / "a.jsonl"), block_sizes=SIZES))
    assert before.prefixes.block_sizes[0].hit_tokens  # there is reuse to keep


def test_texts_without_a_tokenizer_keep_their_recorded_lengths(trace_of, tmp_path):
    common = "x" * 500
    texts = [common + name * 800 for name in "abcde"] + [None]
    trace = trace_of(
        input_tokens=[330, 330, 200, 700, None, 50], output_tokens=[1, 2, None, 4, 5, 6], prompt_text=texts,
        output_text=["y" * 8] * 6,
    )  # fmt: skip
    made = anonymize(trace, KEY)
    assert made.trace.rows["input_tokens"].to_list()[:4] == [330, 330, 200, 700]
    write_trace(made.trace, tmp_path / "a.jsonl", made.notes)
    again = read_trace(tmp_path / "a.jsonl")  # which checks that blocks fit the lengths
    assert again.rows.select("input_tokens", "output_tokens", "prefix_blocks").equals(
        made.trace.rows.select("input_tokens", "output_tokens", "prefix_blocks")
    )
    lists = again.rows["prefix_blocks"].to_list()
    assert [len(ids) for ids in lists] == [length // 16 for length in again.rows["input_tokens"].to_list()]
    # 500 of the 1,300 bytes of the second prompt are 126 of its 330 tokens, 7 whole blocks.
    assert [a == b for a, b in zip(lists[0], lists[1], strict=True)] == [True] * 7 + [False] * 13


def test_nothing_of_the_trace_can_be_read(trace_of, tmp_path):
    secret = "confidential words of a customer"
    trace = trace_of(
        input_tokens=[64, 64],
        output_tokens=[1, 1],
        prompt_text=[secret * 9] * 2,
        output_text=[secret] * 2,
        prompt_ids=[list(range(77_000, 77_064))] * 2,
        output_ids=[[77_999]] * 2,
        session=["jane@example.org", "/home/jane/project"],
        model=["acme-internal-7b", "acme-internal-7b"],
        components=[[{"kind": "doc", "id": 424_242, "tokens": 3}]] * 2,
    )
    trace = replace(trace, source="acme-prod.jsonl", notes=("a note with acme in it",))
    for hide in (False, True):
        made = anonymize(trace, KEY, hide_models=hide)
        write_trace(made.trace, tmp_path / "a.jsonl", made.notes)
        content = (tmp_path / "a.jsonl").read_text() + made.trace.source
        private = ("confidential", "jane", "home", "77000", "77999", "424242", "acme-prod", "note with", KEY.decode())
        for piece in private:
            assert piece not in content
        assert ("acme-internal-7b" in content) is not hide
    again = read_trace(tmp_path / "a.jsonl")
    assert again.rows["session"].n_unique() == 2
    assert again.rows["model"].n_unique() == 1


def test_the_key_decides_and_equal_keys_agree(trace_of):
    trace = trace_of(input_tokens=[32, 32], output_tokens=[1, 1], prompt_ids=[list(range(32)), list(range(32))])
    one, same, other = (anonymize(trace, key).trace.rows["prefix_blocks"].to_list() for key in (KEY, KEY, b"1" * 32))
    assert one == same
    assert one[0] == one[1]
    assert not set(one[0]) & set(other[0])


def test_a_key_is_made_for_its_owner_alone_and_kept(tmp_path):
    path = tmp_path / "key"
    before = os.umask(0)
    try:
        key, new = read_key(path)
    finally:
        os.umask(before)
    assert new
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_key(path) == (key, False)
    assert key not in path.read_bytes()
    second, _ = read_key(tmp_path / "other")
    assert second != key


def test_keys_that_are_none(tmp_path):
    (tmp_path / "short").write_text("abc\n")
    with pytest.raises(InputError, match="3 bytes are too short"):
        read_key(tmp_path / "short")
    with pytest.raises(InputError, match="cannot be read"):
        read_key(tmp_path)
    with pytest.raises(InputError, match="cannot be written"):
        read_key(tmp_path / "no" / "key")


def test_models_that_name_accounts_or_folders_are_hidden_by_default(trace_of, tmp_path):
    private = ["arn:aws:bedrock:us-east-1:123456789012:profile/p1", "/home/alice/models/m0", "alice@example.com"]
    names = [*private, private[0], "Qwen/Qwen3-0.6B", None]
    trace = trace_of(input_tokens=[5] * 6, output_tokens=[1] * 6, model=names)
    made = anonymize(trace, KEY)
    write_trace(made.trace, tmp_path / "a.jsonl", made.notes)
    content = (tmp_path / "a.jsonl").read_text()
    assert not any(piece in content for piece in ("arn", "123456789012", "home", "alice", "m0"))
    models = made.trace.rows["model"].to_list()
    assert all(re.fullmatch("model-[0-9a-f]{8}", name) for name in models[:4])
    assert (models[0] == models[3], len(set(models))) == (True, 5)
    assert models[4:] == ["Qwen/Qwen3-0.6B", None]
    assert any(note.startswith("names of models: 3 of 4 hidden") for note in made.notes)
    everything = anonymize(trace, KEY, hide_models=True)
    assert everything.trace.rows["model"].to_list()[:4] == models[:4]
    assert "names of models: 4 of 4 hidden" in everything.notes
    assert anonymize(trace, b"1" * 32).trace.rows["model"][0] != models[0]


def test_kinds_of_components_that_read_as_prose_are_hidden(trace_of):
    parts = [[{"kind": "alice@example.com", "id": 1, "tokens": 3}, {"kind": "sys_prompt", "id": 1, "tokens": 3}]] * 2
    trace = trace_of(input_tokens=[6] * 2, output_tokens=[1] * 2, components=parts)
    kinds = [[part["kind"] for part in row] for row in anonymize(trace, KEY).trace.rows["components"].to_list()]
    assert kinds[0] == kinds[1]
    assert re.fullmatch("kind-[0-9a-f]{8}", kinds[0][0])
    assert kinds[0][1] == "sys_prompt"
