"""Planted breakers are named with the rates worked out by hand; traffic without breakers has none."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections import Counter

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferdoc.traces.breakers import analyse_breakers
from inferdoc.traces.messages import render_prompt
from inferdoc.traces.trace import SCHEMA, Trace

BODY_LENGTH = 8_000
NAMES = ("Ann", "Bob", "Cy", "Di", "Ed", "Flo", "Gus", "Hal", "Ian", "Jo", "Kim", "Lu")


def of_prompts(texts=None, ids=None, models=None, **columns):
    """A trace of texts, token ids or both."""
    count = len(texts if texts is not None else ids)
    columns = columns | {
        "row": list(range(1, count + 1)),
        "prompt_text": texts,
        "prompt_ids": ids,
        "model": models,
    }
    columns.setdefault("input_tokens", [len(prompt or "") for prompt in (ids if ids is not None else texts)])
    frame = pl.DataFrame(
        {name: columns[name] if columns.get(name) is not None else [None] * count for name in SCHEMA}, schema=SCHEMA
    )
    return Trace(frame, "hand.jsonl", "jsonl")


def prose(words, seed=0):
    """Made-up words without digits, equal for equal seeds."""
    draw = random.Random(seed)
    return " ".join("".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(words))


def letters(count, seed=0):
    """Exactly `count` characters of prose."""
    return prose(count, seed)[:count]


def whole(shared, block):
    """What of `shared` units fills whole blocks."""
    return shared // block * block


BODY = letters(BODY_LENGTH)


def only(trace, **options):
    found = analyse_breakers(trace, **options)
    assert len(found.breakers) == 1, found
    return found, found.breakers[0]


def test_a_time_stamp_before_two_thousand_shared_tokens():
    shared = list(range(10_000, 12_000))
    texts = [f"Now: 2026-01-01 10:00:{i}\n{BODY}Q{i}" for i in range(20)]
    ids = [[1, 2, 3, 4, 100 + i, 5, *shared, 6, 200 + i] for i in range(20)]
    # Moved to the end, the stamp (one token) leaves 5 + 2,000 + 1 shared tokens in the text of 8,008 of 8,028 or so.
    found, breaker = only(of_prompts(texts, ids))
    assert (found.unit, found.hit_rate, breaker.kind) == ("tokens", 0.0, "time stamp")
    assert breaker.place_tokens.median == 4
    assert breaker.requests == 19
    # 2,000 shared tokens are 125 whole blocks of 16; 19 of 20 requests have them. The few tokens around may add none.
    assert breaker.hit_rate_alone == pytest.approx(0.95 * 2000 / 2008, rel=1e-3)
    assert found.ideal_hit_rate == breaker.hit_rate_alone
    assert breaker.cost_share == 1.0
    assert breaker.sentence == (
        "a time stamp at token 4 costs 100% of the ideal hits (19 of 20 requests): moving it to the end takes the hit"
        " rate from 0% to 95%"
    )


def test_the_same_in_characters():
    texts = [f"Now: 2026-01-01 10:00:{i:02d}\n{BODY}Q{i:02d}" for i in range(20)]
    found, breaker = only(of_prompts(texts))
    length = len(texts[0])
    assert (found.unit, found.block_units) == ("characters", 64)
    assert breaker.hit_rate_alone == pytest.approx(19 * whole(length - 19 - 2, 64) / (20 * length), rel=0.001)
    assert (breaker.place_characters.least, breaker.place_characters.most) == (5, 5)
    assert any("approximation" in note for note in found.notes)


def test_the_same_tokens_repeated_over_and_over():
    texts = [f"Now: 2026-01-01 10:00:{i}\n" + "word " * 2000 + f"Q{i}" for i in range(20)]
    assert only(of_prompts(texts))[1].hit_rate_alone == pytest.approx(0.946, abs=0.002)


def test_token_ids_alone():
    shared = list(range(10_000, 12_000))
    _found, breaker = only(of_prompts(ids=[[1, 2, 3, 100 + i, *shared, 200 + i] for i in range(20)]))
    # 3 + 2,000 shared tokens are 125 whole blocks.
    assert breaker.hit_rate_alone == 19 * 2000 / (20 * 2005)
    assert breaker.kind == "changing tokens"
    assert breaker.place_tokens.median == 3
    assert breaker.place_characters is None


def test_a_tokenizer_counts_the_pieces():
    def encode(texts):
        return [list(text.encode()) for text in texts]

    texts = [f"Now: 2026-01-01 10:00:{i:02d}\n{BODY}Q{i:02d}" for i in range(20)]
    found, breaker = only(of_prompts(texts), encode=encode)
    length = len(texts[0])
    assert found.unit == "tokens"
    assert breaker.hit_rate_alone == 19 * whole(5 + 1 + len(BODY) + 1, 16) / (20 * length)
    assert breaker.place_tokens.median == 5


@pytest.mark.parametrize(("system", "blocks"), [(1000, 118), (1020, 119)])
def test_tools_in_rotated_order_as_token_ids(system, blocks):
    # 1,900 equal tokens are 118 whole blocks; of 1,920 the last block is computed, since its last token must be.
    a, b, c = (list(range(start, start + 300)) for start in (1000, 2000, 3000))
    text = list(range(5000, 5000 + system))
    found, breaker = only(of_prompts(ids=[[*a, *b, *c, *text], [*b, *c, *a, *text], [*c, *a, *b, *text]]))
    assert (breaker.kind, found.hit_rate) == ("order", 0.0)
    assert breaker.hit_rate_alone == 2 * blocks * 16 / (3 * (900 + system))


def tool(name):
    parameters = {"type": "object", "properties": {f"{name}_argument": {"type": "string"}}}
    description = prose(40, seed=len(name))
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [tool(name) for name in ("get_weather", "get_time", "search", "a_tool_with_a_name")]


def asked(tools, question, row=0):
    messages = [{"role": "system", "content": BODY[:4000]}, {"role": "user", "content": question}]
    return render_prompt(messages, row=row, tools=tools).text


def test_tools_in_rotated_order_as_text():
    texts = [asked(TOOLS[i:3] + TOOLS[:i], f"question {i}") for i in range(3)]
    _, breaker = only(of_prompts(texts))
    assert breaker.kind == "tool order"
    common = len(texts[0]) - len("0\n\nassistant:\n")
    assert breaker.hit_rate_alone == pytest.approx(2 * whole(common, 64) / (3 * len(texts[0])), rel=0.005)


def test_tools_in_any_order():
    texts = [asked(random.Random(i).sample(TOOLS, 4), prose(4, seed=i)) for i in range(40)]
    _, breaker = only(of_prompts(texts))
    assert breaker.kind == "tool order"
    assert breaker.hit_rate_alone == pytest.approx(39 / 40 * 0.99, abs=0.01)


def test_documents_in_another_order():
    documents = [prose(60, seed=i) for i in range(5)]
    texts = []
    for i in range(30):
        chosen = random.Random(i).sample(documents, 5)
        numbered = "\n\n".join(f"[{n}] {document}" for n, document in enumerate(chosen, 1))
        texts.append(f"Use these.\n{numbered}\n\n{BODY[:2000]} {prose(4, seed=100 + i)}")
    found, breaker = only(of_prompts(texts))
    assert breaker.kind == "document order"
    assert found.hit_rate < 0.3 < 0.9 < breaker.hit_rate_alone


@pytest.mark.parametrize("count", [4, 5])
@pytest.mark.parametrize("written", ["plain", "numbered", "system", "user", "ids"])
def test_shuffled_documents_are_no_truncation_and_no_changing_text(count, written):
    """D21: both prompts hold the same documents, wherever the shared ones line up and whatever follows them."""
    documents = [prose(120, seed=40 + i) for i in range(count)]
    draw, texts, orders = random.Random(count), [], []
    for i in range(40):
        order = draw.sample(range(count), count)
        numbered = written in ("numbered", "system", "user")
        body = "\n\n".join((f"[Doc {n}] " if numbered else "") + documents[n] for n in order)
        question = f"Question {prose(8, seed=500 + i)}"
        system, user = ("Answer from these.", f"{body}\n\n{question}")
        if written == "system":
            system, user = f"Answer from these.\n\n{body}", question
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        chat = written in ("system", "user")
        texts.append(render_prompt(messages, row=i).text if chat else f"Context:\n{body}\n{question}")
        orders.append(tuple(order))
    trace = of_prompts(ids=[list(text.encode()) for text in texts]) if written == "ids" else of_prompts(texts)
    found, breaker = only(trace)
    new = sum(order not in orders[:i] for i, order in enumerate(orders)) - 1
    assert breaker.kind == ("order" if written == "ids" else "document order")
    # In an order that came before, nothing may be left to be mended.
    assert breaker.requests >= 0.9 * new
    assert breaker.hit_rate_alone > 0.9 > found.hit_rate


def test_a_cut_history_is_no_order():
    turns = [prose(40, seed=700 + i) for i in range(40)]
    _, breaker = only(of_prompts([" ".join(turns[max(0, k - 10) : k + 1]) for k in range(2, 40)]))
    assert breaker.kind == "left truncation"


@pytest.mark.parametrize(
    ("kind", "heads"),
    [
        ("time stamp", [f"Time {1_767_225_600 + 7 * i}.\n" for i in range(12)]),
        ("time stamp", [f"Time {1_767_225_600_123 + 7 * i}.\n" for i in range(12)]),
        ("time stamp", [f"Date: Mon, {i + 1} Nov 2026 10:{i:02d}:09 +0000\n" for i in range(12)]),
        ("time stamp", [f"It is {i % 12 + 1}:{3 * i:02d} PM now.\n" for i in range(12)]),
        ("time stamp", [f"2026-11-30T10:{i:02d}:07.{i}12Z\n" for i in range(12)]),
        ("date", [f"Today is {day}, {i + 1} November 2026.\n" for i, day in enumerate(["Monday", "Tuesday"] * 6)]),
        ("date", [f"时间：2026年1月{i + 1}日 😀\n" for i in range(12)]),
        ("uuid", [f"request {uuid.UUID(int=random.Random(i).getrandbits(128))}\n" for i in range(12)]),
        ("hash or id", [f"trace={random.Random(i).getrandbits(128):032x} on\n" for i in range(12)]),
        ("hash or id", [f"Request: req_{random.Random(i).getrandbits(50)}x\n" for i in range(12)]),
        ("counter", [f"Call {i} of many.\n" for i in range(12)]),
        ("number", [f"Lucky {random.Random(i).randint(100, 999)}.\n" for i in range(12)]),
        (
            "user name",
            [f"User: {name} Miller\nPlan: gold\n" for name in NAMES],
        ),
        ("e-mail", [f"Account: someone{i}@example.org, gold\n" for i in range(12)]),
        ("white space", [f"You are{' ' * (i + 1)}a helper.\n" for i in range(12)]),
        ("media", [f"user:\n<{random.Random(i).getrandbits(64):016x} image_url>" for i in range(12)]),
        ("changing text", [f"user:\n{prose(12, seed=50 + i)}\n\n" for i in range(12)]),
    ],
)
def test_what_differs_is_named(kind, heads):
    found, breaker = only(of_prompts([f"{head}{BODY}" for head in heads]))
    assert breaker.kind == kind
    assert found.hit_rate == 0
    total = sum(len(head) + len(BODY) for head in heads)
    assert breaker.hit_rate_alone == pytest.approx(11 * whole(len(BODY), 64) / total, rel=0.01)
    assert breaker.example == f"<{kind}>"


def test_role_markers_of_two_templates():
    texts = [f"system:\n{BODY}\n\nuser:\nWhy?", f"<|im_start|>system\n{BODY}<|im_end|>\n<|im_start|>user\nHow?"]
    assert only(of_prompts(texts))[1].kind == "chat template"


def conversation(turns):
    return [f"user:\n{prose(30, seed=3 * i)}\n\nassistant:\n{prose(60, seed=3 * i + 1)}\n\n" for i in range(turns)]


def turn(kept, question):
    return f"system:\n{BODY[:800]}\n\n{''.join(kept)}user:\n{prose(30, seed=question * 3)}\n\nassistant:\n"


@pytest.mark.parametrize("system", [True, False])
def test_a_history_cut_at_its_start(system):
    turns = conversation(40)
    texts = [turn(turns[max(0, i - 6) : i], i) for i in range(40)]
    texts = texts if system else [text.split("\n\n", 1)[1] for text in texts]
    _found, breaker = only(of_prompts(texts))
    assert breaker.kind == "left truncation"
    assert breaker.requests == 33
    # Each prompt repeats the one before but for its first turn and what is new: an answer and a question.
    hits = 0
    for i in range(1, 40):
        dropped = len(turns[i - 7]) if i > 6 else 0
        hits += whole(len(texts[i - 1]) - dropped, 64)
    expected = hits / sum(map(len, texts))
    assert breaker.hit_rate_alone == pytest.approx(expected, abs=0.01)


def test_a_history_of_ids_cut_at_its_start():
    stream = list(range(20_000))
    ids = [[*range(50_000, 50_200), *stream[100 * i : 100 * i + 1000]] for i in range(20)]
    found, breaker = only(of_prompts(ids=ids))
    assert breaker.kind == "left truncation"
    assert found.hit_rate == pytest.approx(19 * 192 / (20 * 1200))
    assert breaker.hit_rate_alone == pytest.approx(19 * 1088 / (20 * 1200))


def test_two_breakers_apart():
    texts = [
        f"Time: {1_767_225_600 + 7 * i}\n{BODY[:3000]}\nsession {100 + i} of today\n{BODY[3000:]}" for i in range(40)
    ]
    found = analyse_breakers(of_prompts(texts))
    first, second = found.breakers
    assert [first.kind, second.kind] == ["time stamp", "counter"]
    length = len(texts[0])
    assert first.hit_rate_alone == pytest.approx(39 * whole(3000, 64) / (40 * length), rel=0.03)
    assert second.hit_rate_alone == 0
    assert second.hit_rate_cumulative == found.ideal_hit_rate
    assert found.ideal_hit_rate == pytest.approx(39 * whole(8000, 64) / (40 * length), rel=0.01)
    assert first.cost_share == 1.0
    assert second.cost_share == pytest.approx(1 - first.hit_rate_alone / found.ideal_hit_rate)
    assert "with all of them mended" in second.sentence


def test_two_breakers_in_one_head():
    draw = random.Random(1)
    texts = [f"Time: 10:{i:02d}\nRequest-Id: req-{draw.getrandbits(64):016x}\n{BODY}" for i in range(40)]
    found = analyse_breakers(of_prompts(texts))
    assert [breaker.kind for breaker in found.breakers] == ["time stamp", "hash or id"]
    assert [breaker.cost_share for breaker in found.breakers] == [1.0, 1.0]
    assert [breaker.hit_rate_alone for breaker in found.breakers] == [0, 0]


def test_traffic_without_breakers():
    turns = conversation(30)
    for texts in (
        [prose(400, seed=i) for i in range(50)],
        [f"{BODY}{prose(50, seed=100 + i)}" for i in range(50)],
        [turn(turns[:i], i) for i in range(30)],
        [BODY] * 5,
        [asked(TOOLS, prose(5, seed=i)) for i in range(20)],
        [f"user:\nWho?\n\nassistant:\n{prose(20, seed=i)} {i} {BODY}\n\nuser:\nWhy?" for i in range(20)],
        [f"user:\n{prose(20, seed=i)} {i}\n\nassistant:\n{BODY}\n\nuser:\nWhy?\n\nassistant:\n" for i in range(20)],
    ):
        found = analyse_breakers(of_prompts(texts))
        assert found.breakers == ()
        assert found.ideal_hit_rate == found.hit_rate
    ids = [list(np.random.default_rng(i).integers(0, 1000, 600)) for i in range(30)]
    assert analyse_breakers(of_prompts(ids=ids)).breakers == ()


def test_different_images_before_the_same_text():
    def chat(image, row):
        url = {"type": "image_url", "image_url": {"url": f"https://example.org/{image}.png"}}
        parts = [url, {"type": "text", "text": BODY}]
        return render_prompt([{"role": "user", "content": parts}], row=row).text

    found, breaker = only(of_prompts([chat("a", 0), chat("b", 1)]))
    assert (found.hit_rate, breaker.kind) == (0, "media")
    assert analyse_breakers(of_prompts([chat("a", 0), chat("a", 1)])).breakers == ()


def test_different_models_share_nothing():
    found = analyse_breakers(of_prompts([BODY] * 4, models=["a", "a", "b", "b"]))
    assert found.hit_rate == 2 * whole(len(BODY) - 1, 64) / (4 * len(BODY))
    assert found.breakers == ()
    assert "prompts of different models share nothing" in found.notes


@pytest.mark.parametrize(
    ("trace", "reason"),
    [
        (of_prompts([""] * 3), "the prompts are empty"),
        (of_prompts(["text"]), "one prompt"),
        (of_prompts([None, None]), "lengths only"),
    ],
)
def test_where_nothing_can_be_said(trace, reason):
    found = analyse_breakers(trace)
    assert reason in found.reason
    assert found.hit_rate is None
    assert found.ideal_hit_rate is None
    assert found.breakers == ()


def test_values_and_texts_are_not_shown():
    secret = "Zoe Quux"
    texts = [f"User: {secret if i % 2 else f'Al{i}'}\n{BODY}" for i in range(10)]
    for show in (False, True):
        stored = json.dumps(analyse_breakers(of_prompts(texts), show_text=show).model_dump())
        assert secret not in stored
        assert "Al2" not in stored
        assert (BODY[:10] in stored) == show


def test_many_prompts_are_sampled_in_seconds():
    count = 200_000
    texts = [f"Now: {1_767_225_600 + i}\n{BODY[:1000]}" for i in range(count)]
    trace = of_prompts(texts)
    begun = time.process_time()
    found, breaker = only(trace)
    assert time.process_time() - begun < 10
    assert (found.requests, found.requests_read, breaker.kind) == (count, 2000, "time stamp")
    assert "2,000 of 200,000 prompts were read, in 4 contiguous windows" in found.notes[0]
    assert analyse_breakers(trace) == found


def test_a_block_below_one_token():
    with pytest.raises(ValueError, match="block_size 0"):
        analyse_breakers(of_prompts([BODY, BODY]), block_size=0)


def bound(prompts):
    """No order of a prompt's units repeats more of them than earlier prompts hold."""
    held, most = Counter(), 0
    for prompt in prompts:
        units = Counter(prompt)
        most += (units & held).total()
        held |= units
    return most / max(1, sum(map(len, prompts)))


PIECES = st.sampled_from(
    [
        BODY[:100],
        BODY[100:300],
        BODY[300:500],
        "Now: 10:00:01\n",
        "Now: 10:00:02\n",
        "user:\n",
        " ",
        "\n",
        "",
        "7",
        "é😀",
    ]
)


@given(st.lists(st.lists(PIECES, max_size=8).map("".join), max_size=6), st.sampled_from([1, 4, 16]))
@settings(max_examples=150, deadline=None)
def test_rates_stay_between_the_one_before_and_the_bound(texts, block):
    found = analyse_breakers(of_prompts(texts), block_size=block)
    check(found, texts)


@given(
    st.lists(
        st.lists(st.sampled_from([range(30), range(40, 80), range(90, 130), range(7, 8)]), max_size=6), max_size=6
    ),
    st.sampled_from([1, 4, 16]),
)
@settings(max_examples=150, deadline=None)
def test_rates_of_token_ids_stay_between_the_one_before_and_the_bound(pieces, block):
    ids = [[token for piece in prompt for token in piece] for prompt in pieces]
    check(analyse_breakers(of_prompts(ids=ids), block_size=block), ids)


def check(found, prompts):
    assert (found.hit_rate is None) == (found.reason is not None)
    last = found.hit_rate
    for breaker in found.breakers:
        assert found.hit_rate <= breaker.hit_rate_alone <= breaker.hit_rate_cumulative <= bound(prompts) + 1e-12
        assert last <= breaker.hit_rate_cumulative <= found.ideal_hit_rate
        assert 0 < breaker.cost_share <= 1
        last = breaker.hit_rate_cumulative


@given(st.lists(st.text(max_size=300), max_size=5), st.booleans())
@settings(max_examples=100, deadline=None)
def test_any_text_is_read(texts, show):
    trace = of_prompts([text.encode("utf-8", "replace").decode() for text in texts])
    analyse_breakers(trace, block_size=1, show_text=show)
