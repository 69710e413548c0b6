"""What several readers share: families of requests, block sizes, numbers of turns, column names."""

from __future__ import annotations

import polars as pl
import pytest

from inferdoc.errors import TraceError
from inferdoc.traces.formats import sizes
from inferdoc.traces.formats.closed_loop import from_one
from inferdoc.traces.formats.headers import header_has
from inferdoc.traces.formats.lineage import Families
from inferdoc.traces.formats.mooncake_delta import Growing
from inferdoc.traces.ledger import RowError


def test_families_end_at_the_last_parent():
    families = Families()
    assert [families.join(*pair) for pair in (("c", "b"), ("b", "a"), ("x", "y"))] == [True, True, True]
    assert [families.root(name) for name in "abcxyz"] == ["a", "a", "a", "y", "y", "z"]
    assert families.join("a", "c") is False
    assert families.root("b") == "a"


def test_turns_count_from_one():
    assert from_one(pl.Series(["0", "1", None, "x"])).to_list() == ["1", "2", None, "x"]
    assert from_one(pl.Series(["1", "2"])).to_list() == ["1", "2"]
    assert from_one(pl.Series(["x", None])).to_list() == ["x", None]


def test_names_of_columns_whatever_their_spelling():
    matches = header_has("Request tokens", "Timestamp")
    assert matches(dict.fromkeys(["REQUEST_TOKENS", "timestamp"]))
    assert not matches(dict.fromkeys(["Request", "Timestamp"]))


@pytest.mark.parametrize(("values", "size"), [([64, None, "64", 64.0], 64), ([None], None), ([], None)])
def test_one_stated_block_size(values, size):
    assert sizes.stated(values, "block_size", "f") == size


@pytest.mark.parametrize("wrong", [0, -16, "big", [16], {"a": 1}, 16.5])
def test_a_stated_block_size_that_is_none(wrong):
    with pytest.raises(TraceError, match=r"f: block_size is .*expected the number of tokens in a block"):
        sizes.stated([16, wrong], "block_size", "f")


def test_few_rows_do_not_change_the_usual_size():
    notes: list[str] = []
    lengths = pl.Series([str(100 + 53 * n) for n in range(9)])
    ids = pl.Series([list(range(-(-(100 + 53 * n) // 64))) for n in range(9)], dtype=pl.List(pl.UInt64))
    assert sizes.inferred(lengths, ids, 512, "hash_ids", partial_last=True, notes=notes) == 512
    twice = pl.concat([lengths, lengths]), pl.concat([ids, ids])
    assert sizes.inferred(*twice, 512, "hash_ids", partial_last=True, notes=notes) == 64
    assert len(notes) == 1


def test_a_session_grows_by_answers_and_new_tokens():
    sessions = Growing(16)
    assert sessions.turn("s", 20, 12, [1, 2]) == (20, [1, 2])
    whole, second = sessions.turn("s", 10, 5, [3])
    assert (whole, second[0], len(second)) == (42, 1, 3)
    whole, third = sessions.turn("s", 1, None, None)
    # 42 + 5 + 1 = 48 tokens are three full blocks; two were full before.
    assert (whole, third[:2], len(third)) == (48, second[:2], 3)
    assert third[2] != second[2]
    with pytest.raises(RowError, match="the whole prompt is not known"):
        sessions.turn("s", 1, 1, None)
    assert Growing(None).turn("s", 20, 1, [1, 2]) == (20, None)
