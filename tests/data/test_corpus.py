"""The two splits of the corpus share no templates, and nothing that is measured on was trained on."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inferdoc.data.corpus import Writer
from inferdoc.data.mixture import mixture
from inferdoc.data.templates import Split, read_wording
from inferdoc.data.trace_generator import generate


def shingles(texts: Iterable[str], words: int) -> set[tuple[str, ...]]:
    """Every run of `words` words, lower case, numbers included."""
    found: set[tuple[str, ...]] = set()
    for text in texts:
        sequence = re.findall(r"\w+", text.lower())
        found.update(zip(*(sequence[offset:] for offset in range(words)), strict=False))
    return found


def texts_of(samples: Iterable[Any]) -> Iterator[str]:
    for sample in samples:
        if isinstance(sample, str):
            yield sample
        else:
            yield from (message["content"] for message in sample)


def strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item)


def trained_on(repository: Path) -> Iterator[str]:
    """All of the text that the shipped models were trained on."""
    record = json.loads((repository / "inferdoc" / "data" / "training.json").read_text())
    return texts_of(itertools.islice(mixture(Split.TRAIN, record["seed"]), record["train_texts"]))


def test_no_eight_words_of_the_trace_or_the_evaluation_occur_in_the_training_text(repository: Path) -> None:
    trace = shingles(texts_of(request["messages"] for request in generate(0)), 8)
    evaluation = shingles(texts_of(itertools.islice(mixture(Split.HELDOUT, "evaluation"), 300)), 8)
    unseen_seed = shingles(texts_of(itertools.islice(mixture(Split.TRAIN, "another seed"), 100)), 8)
    wanted = trace | evaluation | unseen_seed
    found: set[tuple[str, ...]] = set()
    for text in trained_on(repository):
        found |= shingles([text], 8) & wanted
    assert len(trace) > 5_000
    assert not found & trace
    assert not found & evaluation
    # The search does find what two texts share: the worded templates of the training split return with any seed.
    assert len(found & unseen_seed) > 1_000


def test_no_template_stands_in_both_wordings() -> None:
    train = set(strings_in({key: value for key, value in read_wording("train").items() if key != "arguments"}))
    heldout = set(strings_in({key: value for key, value in read_wording("heldout").items() if key != "arguments"}))
    assert {text for text in train & heldout if " " in text} == set()


def test_made_up_names_of_the_splits_cannot_meet() -> None:
    train, heldout = (read_wording(split.value)["names"]["starts"] for split in Split)
    for start in train:
        assert not any(other.startswith(start) or start.startswith(other) for other in heldout)


def test_most_training_samples_have_a_wording_of_their_own() -> None:
    templates = set(strings_in(read_wording("train")["rag_rules"]))
    systems = [
        sample[0]["content"]
        for sample in itertools.islice(mixture(Split.TRAIN, "wordings"), 400)
        if not isinstance(sample, str) and "[1]" in sample[1]["content"]
    ]
    improvised = sum(not any(template in system for template in templates) for system in systems)
    assert len(systems) > 100
    assert 0.6 < improvised / len(systems) < 0.9


def test_shared_phrases_have_at_most_four_words() -> None:
    assert max(len(phrase.split()) for phrase in strings_in(read_wording("shared"))) <= 4


@pytest.mark.parametrize("split", list(Split))
def test_the_same_seed_writes_the_same_text_and_another_seed_another(split: Split) -> None:
    first = list(itertools.islice(mixture(split, 3), 40))
    assert first == list(itertools.islice(mixture(split, 3), 40))
    assert first != list(itertools.islice(mixture(split, 4), 40))


@pytest.mark.parametrize("split", list(Split))
def test_no_slot_stays_unfilled(split: Split) -> None:
    for text in texts_of(itertools.islice(mixture(split, "slots"), 400)):
        assert not re.search(r"\{[a-z_0-9-]+\}", text), text


@pytest.mark.parametrize("split", list(Split))
def test_the_answer_to_a_question_is_a_sentence_of_its_document(split: Split) -> None:
    writer = Writer(split, "quotes")
    for _ in range(50):
        document = writer.document()
        *_, user, answer = writer.rag(writer.rag_system(), [document], 120)
        assert document.text in user["content"]
        facts = [statement for statement in document.statements if statement.question]
        assert any(fact.text in answer["content"] for fact in facts)
        assert all(fact.value in fact.text for fact in facts if fact.value)
