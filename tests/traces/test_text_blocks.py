"""Texts without token ids: what they share follows from bytes and from each prompt's recorded count."""

from __future__ import annotations

import random

import numpy as np
import pytest

from inferdoc.traces import read_trace
from inferdoc.traces.anonymize import anonymize
from inferdoc.traces.files import write_trace
from inferdoc.traces.prefix_analysis import analyse_prefixes
from inferdoc.traces.prefix_tree import grow
from inferdoc.traces.prompt_blocks import text_blocks

KEY = b"k" * 32
COUNTED = (
    "otel/prefix_sharing_example.json",
    "langfuse/openai-agents-2025-09-30.trace.json",
    "guidellm/benchmarks_v0.8.1.json",
)


def shared_bytes(a, b):
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    return same


def expected_hits(texts, counts, size):
    """Shared bytes / bytes of the prompt x recorded tokens, in whole blocks, with the last token computed."""
    raw = [(text or "").encode() for text in texts]
    hits = []
    for i, (mine, count) in enumerate(zip(raw, counts, strict=True)):
        most = max((shared_bytes(mine, other) for other in raw[:i]), default=0)
        whole = most * count // (len(mine) * size) if mine else 0
        hits.append(min(whole, (count - 1) // size) * size)
    return hits


@pytest.mark.parametrize("name", COUNTED)
def test_hit_rates_are_of_recorded_tokens_and_outlive_anonymizing(shared, tmp_path, name):
    trace = read_trace(shared / "traces" / name)
    counts = trace.rows["input_tokens"].to_list()
    assert None not in counts
    hits = sum(expected_hits(trace.rows["prompt_text"].to_list(), counts, 16))
    analysis = analyse_prefixes(trace)
    assert (analysis.prompt_tokens, analysis.estimated) == (sum(counts), False)
    assert analysis.block_sizes[0].hit_tokens == hits > 0
    made = anonymize(trace, KEY)
    write_trace(made.trace, tmp_path / "a.jsonl", made.notes)
    sizes = [entry.block_size for entry in analysis.block_sizes]
    again = analyse_prefixes(read_trace(tmp_path / "a.jsonl"), block_sizes=sizes)
    for field in ("prompt_tokens", "block_sizes", "unique_prompt_share", "common_prefix_tokens", "routing"):
        assert getattr(again, field) == getattr(analysis, field)


def test_made_up_texts_of_many_bytes_a_token(trace_of):
    draw = random.Random(5)
    texts, counts = [], []
    for _ in range(300):
        old = draw.choice(texts) if texts and draw.random() < 0.8 else ""
        text = old[: draw.randint(0, len(old))] + "".join(draw.choices("aü€😀", k=draw.randint(1, 120)))
        texts.append(text)
        counts.append(max(1, round(len(text.encode()) / draw.uniform(3, 3.2))))
    found = text_blocks(trace_of(prompt_text=texts, input_tokens=counts), 4)
    tree = grow(found)
    assert not found.estimated
    assert found.count.tolist() == [count // 4 for count in counts]
    hits = tree.hit_blocks(tree.seen_before) * 4
    expected = np.array(expected_hits(texts, counts, 4))
    # An earlier prompt that ends where the later one goes on has as many blocks as its own count makes, no more.
    assert (hits <= expected).all()
    assert (hits != expected).mean() < 0.1
    assert hits.sum() == pytest.approx(expected.sum(), rel=0.01)


def test_a_prompt_without_text_or_count(trace_of):
    found = text_blocks(trace_of(prompt_text=[None, None, "x" * 128, "x" * 128], input_tokens=[32, 32, None, None]), 16)
    assert (found.tokens.tolist(), found.estimated) == ([32, 32, 32, 32], True)
    assert grow(found).seen_before.tolist() == [0, 0, 0, 2]
    assert found.notes == (
        "no tokenizer has encoded the texts: prompts are compared in bytes, 4 for a token (assumed)",
        "2 prompts have no text: such a prompt shares nothing and counts as one token where its length is not recorded",
    )
