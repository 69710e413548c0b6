"""What the order of components costs, on hand-worked prompts and on RAGPulse."""

from __future__ import annotations

import json
import random

import polars as pl
import pytest

from inferdoc.traces.component_order import component_order
from inferdoc.traces.reading import read_trace
from inferdoc.traces.trace import SCHEMA, Trace


def of_components(*prompts):
    """Prompts as lists of (kind, id, tokens), or ``None``."""
    parts = [
        prompt and [dict(zip(("kind", "id", "tokens"), piece, strict=True)) for piece in prompt] for prompt in prompts
    ]
    columns = {"row": range(len(parts)), "input_tokens": [1] * len(parts), "components": parts}
    frame = pl.DataFrame({name: columns.get(name, [None] * len(parts)) for name in SCHEMA}, schema=SCHEMA)
    return Trace(frame, "hand.jsonl", "ragpulse")


SYSTEM = ("sys_prompt", 1, 100)


def test_passages_in_another_order():
    first, second = ("passages", 10, 300), ("passages", 20, 200)
    found = component_order(
        of_components(
            [SYSTEM, first, second, ("user_input", 90, 50)],
            [SYSTEM, second, first, ("user_input", 91, 50)],
        )
    )
    # Of 1,300 tokens the second prompt repeats 100 as a prefix, 600 with its passages sorted.
    assert found.hit_rate == 100 / 1300
    assert found.sorted_hit_rate == found.mended_hit_rate == found.any_position_hit_rate == 600 / 1300
    assert found.order_is_the_problem
    assert [(lost.kind, lost.tokens, lost.share) for lost in found.lost] == [("passages", 500, 1.0)]
    assert found.sentence.startswith("order, not cache size, is the problem")


def test_a_piece_that_is_always_new_before_the_passages():
    passages = [("passages", 10, 300), ("passages", 20, 200)]
    prompts = [[SYSTEM, ("sys_prompt", 50 + i, 10), *passages, ("user_input", 90 + i, 40)] for i in range(10)]
    found = component_order(of_components(*prompts))
    total = 10 * 650
    assert [(piece.kind, piece.number, piece.new_share) for piece in found.changing_pieces] == [("sys_prompt", 2, 1.0)]
    assert found.hit_rate == found.sorted_hit_rate == 9 * 100 / total
    assert found.changing_last_hit_rate == found.mended_hit_rate == 9 * 600 / total


def test_order_is_no_problem_where_nothing_is_out_of_order():
    found = component_order(of_components(*[[SYSTEM, ("user_input", i, 50)] for i in range(5)]))
    assert found.order_is_the_problem is False
    assert found.hit_rate == found.mended_hit_rate == found.any_position_hit_rate == 400 / 750
    assert found.lost == ()


def test_rates_do_not_depend_on_the_values_of_ids():
    draw = random.Random(4)
    prompts = [
        [SYSTEM, *(("passages", id, 50 + id) for id in draw.sample(range(2, 12), 3)), ("user_input", 90 + i, 40)]
        for i in range(60)
    ]
    found = [
        component_order(of_components(*([(kind, rename(id), tokens) for kind, id, tokens in p] for p in prompts)))
        for rename in (lambda id: id, lambda id: 1000 - id, lambda id: id * 7919 % 10_007)
    ]
    assert found[0].hit_rate < found[0].sorted_hit_rate
    assert found[1] == found[2] == found[0]


def test_nothing_is_said_without_components_or_lengths():
    assert "does not name" in component_order(of_components(None, None)).reason
    found = component_order(of_components([("passages", 1, None)], [("passages", 1, None)]))
    assert "not known" in found.reason
    assert found.hit_rate is None
    assert found.order_is_the_problem is None


def test_rag_traffic_is_ordered_badly(shared):
    folder = shared / "traces" / "ragpulse"
    tokens = {}
    for name, key in (
        ("1_sys_prompt", "sys_prompt_id"),
        ("2_passages", "passage_id"),
        ("3_history", "history_id"),
        ("4_user_input", "user_input_id"),
        ("5_web_search", "web_search_id"),
    ):
        rows = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines() if line.strip()]
        tokens |= {row[key]: row["token_length"] for row in rows}
    total = prefix = anywhere = 0
    seen, begun = set(), set()
    for line in (folder / "0_trace.jsonl").read_text().splitlines():
        if line.strip():
            ids = [id for part in json.loads(line)["hash_ids"].values() for id in part]
            total += sum(tokens[id] for id in ids)
            anywhere += sum(tokens[id] for id in ids if id in seen)
            leading = [tuple(ids[: n + 1]) for n in range(len(ids))]
            prefix += sum(tokens[begin[-1]] for begin in leading if begin in begun)
            seen |= set(ids)
            begun |= set(leading)
    found = component_order(read_trace(folder / "0_trace.jsonl"))
    assert found.component_tokens == total
    assert found.hit_rate == pytest.approx(prefix / total)
    assert found.any_position_hit_rate == pytest.approx(anywhere / total)
    assert found.sorted_hit_rate == pytest.approx(found.hit_rate, abs=0.001)
    assert (found.changing_pieces[0].kind, found.changing_pieces[0].number) == ("sys_prompt", 3)
    assert found.mended_hit_rate > found.hit_rate + 0.1
    assert found.order_is_the_problem
    assert found.lost[0].kind == "passages"


def test_components_survive_as_columns():
    trace = of_components([SYSTEM], [SYSTEM])
    assert trace.rows["components"].dtype == pl.List(
        pl.Struct({"kind": pl.String, "id": pl.UInt64, "tokens": pl.Int64})
    )
