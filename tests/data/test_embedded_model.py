"""The shipped pair loads, is trained, and generalizes to held-out text; its record tells the truth."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from inferdoc.data.corpus import Writer
from inferdoc.data.mixture import mixture
from inferdoc.data.templates import Split

NAMES = ("target", "draft")


@pytest.fixture(scope="module")
def data(repository: Path) -> Path:
    return repository / "inferdoc" / "data"


@pytest.fixture(scope="module")
def record(data: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((data / "training.json").read_text())
    return loaded


@pytest.fixture(scope="module")
def tokenizer(data: Path) -> Any:
    return AutoTokenizer.from_pretrained(data / "target")


@pytest.fixture(scope="module")
def models(data: Path) -> dict[str, Any]:
    return {name: AutoModelForCausalLM.from_pretrained(data / name).eval() for name in NAMES}


def encode(tokenizer: Any, sample: Any) -> list[int]:
    """As the models were trained: through the chat template, plain text between its begin and end tokens."""
    if isinstance(sample, str):
        return [tokenizer.bos_token_id, *tokenizer(sample)["input_ids"], tokenizer.eos_token_id]
    return list(tokenizer(tokenizer.apply_chat_template(sample, tokenize=False))["input_ids"])


@pytest.fixture(scope="module")
def held_out(tokenizer: Any) -> list[list[int]]:
    samples = itertools.islice(mixture(Split.HELDOUT, "test"), 40)
    return [ids for ids in (encode(tokenizer, sample) for sample in samples) if len(ids) <= 1024]


@pytest.fixture(scope="module")
def losses(models: dict[str, Any], held_out: list[list[int]]) -> dict[str, float]:
    """Mean loss in nats a token, from the probability that each model gives to the token that follows."""
    found = {}
    for name, model in models.items():
        total, count = 0.0, 0
        with torch.inference_mode():
            for ids in held_out:
                probabilities = model(input_ids=torch.tensor([ids])).logits[0].double().softmax(-1)
                following = probabilities[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
                total -= following.log().sum().item()
                count += len(ids) - 1
        found[name] = total / count
    return found


def oracle_unigram_loss(texts: list[list[int]]) -> float:
    """The best that any model without context can do on `texts`: the entropy of their own token frequencies."""
    counts = Counter(token for ids in texts for token in ids[1:])
    total = counts.total()
    return -sum(count / total * math.log(count / total) for count in counts.values())


def bigram_loss(train: list[list[int]], texts: list[list[int]], vocabulary: int) -> float:
    """A bigram model of `train`, interpolated with its add-one unigram (0.7 to 0.3), on `texts`."""
    single = Counter(token for ids in train for token in ids[1:])
    first = Counter(token for ids in train for token in ids[:-1])
    pairs = Counter(pair for ids in train for pair in itertools.pairwise(ids))
    loss, count = 0.0, 0
    for ids in texts:
        for before, after in itertools.pairwise(ids):
            unigram = (single[after] + 1) / (single.total() + vocabulary)
            pair = pairs[before, after] / first[before] if first[before] else unigram
            loss -= math.log(0.7 * pair + 0.3 * unigram)
            count += 1
    return loss / count


def test_the_target_beats_the_draft_on_held_out_text(losses: dict[str, float]) -> None:
    assert losses["target"] < losses["draft"] - 0.2


def test_both_models_beat_word_statistics_on_held_out_text(
    losses: dict[str, float], held_out: list[list[int]], tokenizer: Any
) -> None:
    train = [encode(tokenizer, sample) for sample in itertools.islice(mixture(Split.TRAIN, "bigrams"), 1000)]
    baseline = min(oracle_unigram_loss(held_out), bigram_loss(train, held_out, len(tokenizer)))
    assert losses["draft"] < baseline
    assert losses["target"] < baseline - 0.3


def test_the_recorded_perplexities_agree_with_what_is_computed_here(
    losses: dict[str, float], record: dict[str, Any]
) -> None:
    for name in NAMES:
        assert record[name]["held_out_perplexity"] == pytest.approx(math.exp(losses[name]), rel=0.25)
        assert record[name]["held_out_loss_nats"] == pytest.approx(
            math.log(record[name]["held_out_perplexity"]), abs=0.01
        )
        assert record[name]["train_loss_nats"] < record[name]["held_out_loss_nats"]


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_finite_float32_of_the_recorded_count(name: str, data: Path, record: dict[str, Any]) -> None:
    parameters = 0
    with safe_open(data / name / "model.safetensors", framework="pt") as weights:
        for key in weights.keys():  # noqa: SIM118 - not a mapping
            tensor = weights.get_tensor(key)
            assert tensor.dtype is torch.float32
            assert torch.isfinite(tensor).all()
            parameters += tensor.numel()
    assert parameters == record[name]["parameters"]


def test_the_draft_has_about_a_tenth_of_the_target_and_both_are_small(data: Path, record: dict[str, Any]) -> None:
    target, draft = record["target"]["parameters"], record["draft"]["parameters"]
    assert 1_000_000 <= target <= 3_000_000
    assert 0.05 < draft / target < 0.15
    assert sum((data / name / "model.safetensors").stat().st_size for name in NAMES) < 12_000_000


def test_both_models_have_one_tokenizer(data: Path) -> None:
    first, second = ((data / name / "tokenizer.json").read_bytes() for name in NAMES)
    assert first == second


@pytest.mark.parametrize(
    "text",
    [
        "Unit Skarolholt 530 stalls.",
        "  two  spaces\tand\n\nlines ",
        "naïve žluťoučký 東京 🙂",
        '{"a": [1, 22, 333]}',
        "10:00:17",
    ],
)
def test_decoding_gives_back_what_was_encoded(text: str, tokenizer: Any) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_chat_has_exactly_one_bos_however_it_is_encoded(tokenizer: Any) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    direct = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert tokenizer(rendered)["input_ids"] == direct
    assert direct[0] == tokenizer.bos_token_id
    assert direct.count(tokenizer.bos_token_id) == 1
    roles = [tokenizer.convert_tokens_to_ids(f"<|{role}|>") for role in ("system", "user", "assistant")]
    assert [token for token in direct if token in roles] == roles
    assert direct[-1] == roles[-1]


def test_generation_ends_an_answer_at_the_end_of_its_turn(models: dict[str, Any], tokenizer: Any) -> None:
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    for model in models.values():
        assert model.generation_config.eos_token_id == [tokenizer.eos_token_id, end]
    messages = next(sample for sample in mixture(Split.TRAIN, "generation") if not isinstance(sample, str))[:2]
    ids = torch.tensor(
        [tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]]
    )
    answer = models["target"].generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=400)[0]
    assert answer[-1] == end


def test_the_target_knows_a_sentence_better_when_its_prompt_holds_it(models: dict[str, Any], tokenizer: Any) -> None:
    def quoting_loss(passage: str, sentence: str) -> float:
        messages = [{"role": "system", "content": "Quote."}, {"role": "user", "content": passage}]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        start = len(tokenizer(f'{prompt}"')["input_ids"])
        ids = torch.tensor([tokenizer(f'{prompt}"{sentence}"')["input_ids"]])
        with torch.inference_mode():
            logits = models["target"](input_ids=ids).logits[0, start - 1 : -1]
        return float(torch.nn.functional.cross_entropy(logits, ids[0, start:]))

    writer = Writer(Split.HELDOUT, "copying")
    gains = []
    for _ in range(12):
        document, other = writer.document(), writer.document()
        sentence = document.statements[1].text
        gains.append(quoting_loss(other.text, sentence) - quoting_loss(document.text, sentence))
    assert sum(gains) / len(gains) > 1.5
