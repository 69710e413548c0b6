"""Quality on the user's text, against transformers' own forward and numpy's float64; intervals against known truths."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import polars as pl
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from inferdoc.devices import find_device
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.runner import ModelRunner
from inferdoc.engine.scheduler import Batch
from inferdoc.errors import InputError, MeasurementError
from inferdoc.evidence import QualityResult, Truth
from inferdoc.models import bundled_trace_path, embedded_path, load_model, sequence_start
from inferdoc.probes.calibration import Divergence, calibration_divergence, observe_calibration
from inferdoc.probes.context import Collector, ProbeContext, Settings
from inferdoc.probes.quality import MIN_TOKENS, measure_quality
from inferdoc.probes.texts import Document, documents_of, shipped_documents
from inferdoc.rules.conditions import compare
from inferdoc.statistics import cluster_ratio_interval, share_of_nothing_seen
from inferdoc.traces import read_trace, tokenize

BASE = EngineConfig(max_model_len=1024, num_kv_blocks=64, max_num_batched_tokens=512)
INT8 = replace(BASE, weights="int8_weight_only")
FP8 = replace(BASE, kv_cache_dtype="fp8")
VOCABULARY = 97


def rounded(weight: torch.Tensor, levels: int = 127) -> torch.Tensor:
    """Each row to 2 * levels + 1 equal steps."""
    scale = weight.abs().amax(dim=1, keepdim=True) / levels
    return (weight / scale).round() * scale


def round_linears(model: torch.nn.Module, levels: int = 127) -> None:
    """In place, without the head."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            module.weight.data = rounded(module.weight.data, levels)


class StandIn(ModelRunner):
    """Stands for what the engine does under `weights` and `kv_cache_dtype`: rows of weights are rounded to `levels`,
    and after each step the K/V in the pages is rounded to e4m3."""

    def __init__(self, model: torch.nn.Module, kv_tokens: int, levels: int = 127) -> None:
        self._original = {n: p.detach().clone() for n, p in model.named_parameters()}
        self._levels = levels
        self.asked: list[EngineConfig] = []
        super().__init__(model, kv_tokens)

    def configure(self, config: EngineConfig) -> None:
        self.asked.append(config)
        super().configure(replace(config, weights="native", kv_cache_dtype="auto"))
        for name, parameter in self.model.named_parameters():
            parameter.data = self._original[name].clone()
        if config.weights != "native":
            round_linears(self.model, self._levels)

    def logits(self, batch: Batch, at: Any = None) -> torch.Tensor:
        result = super().logits(batch, at)
        if self.asked[-1].kv_cache_dtype == "fp8":
            for pages in self._pages:
                for tensor in (pages.keys, pages.values):
                    tensor.copy_(tensor.to(torch.float8_e4m3fn).to(tensor.dtype))
        return result


def make_context(
    runner: Any,
    *,
    vocabulary: int = VOCABULARY,
    trained: bool = True,
    tokenizer: Any = None,
    quantization: str | None = None,
    dequantized_from: str | None = None,
    left_s: Iterator[float] | None = None,
    trace: Any = None,
    seed: int = 0,
) -> ProbeContext:
    class Context(SimpleNamespace):
        @property
        def left_s(self) -> float:
            return math.inf if left_s is None else next(left_s)

    return cast(
        ProbeContext,
        Context(
            runner=runner,
            spec=SimpleNamespace(name="tiny", vocab_size=vocabulary, quantization=quantization),
            loaded=SimpleNamespace(
                trained=trained,
                tokenizer=tokenizer,
                dtype="float32",
                model=SimpleNamespace(config=SimpleNamespace(), quantized_by=dequantized_from),
            ),
            found=Collector(),
            settings=Settings(seed=seed),
            device=find_device("cpu"),
            progress=lambda text: None,
            trace=trace,
        ),
    )


@pytest.fixture(scope="module")
def tiny() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.25,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def random_texts() -> list[Document]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(60, 180, 8)
    return [Document(rng.integers(0, VOCABULARY, n).tolist(), int(n) // 3) for n in lengths]


@pytest.fixture(scope="module")
def embedded() -> Any:
    return load_model(embedded_path(), dtype="float32")


@pytest.fixture(scope="module")
def bundled(embedded: Any) -> Any:
    tokenizer = embedded.tokenizer
    trace = read_trace(bundled_trace_path())
    return tokenize(
        trace,
        lambda texts: tokenizer(texts, add_special_tokens=False)["input_ids"],
        begin=sequence_start(tokenizer),
    )


def reference(model: Any, variant: Any, documents: Sequence[Document]) -> dict[str, Any]:
    """Both perplexities, KL and top-1 agreement from whole sequences, softmax in numpy's float64."""
    model.set_attn_implementation("sdpa")
    variant.set_attn_implementation("sdpa")
    sums, differing, tokens = np.zeros(3), 0, 0
    for document in documents:
        ids, rows = torch.tensor([document.tokens]), slice(document.scored_from - 1, -1)
        logs = []
        for arm in (model, variant):
            with torch.inference_mode():
                logits = arm(ids, use_cache=False).logits[0, rows].numpy().astype(np.float64)
            shifted = logits - logits.max(axis=1, keepdims=True)
            logs.append(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
        p, q = logs
        targets = np.asarray(document.tokens[document.scored_from :])
        at = np.arange(len(targets))
        sums += [-p[at, targets].sum(), -q[at, targets].sum(), (np.exp(p) * (p - q)).sum()]
        differing += int((p.argmax(1) != q.argmax(1)).sum())
        tokens += len(targets)
    mean = sums / tokens
    return {
        "tokens": tokens,
        "base": np.exp(mean[0]),
        "variant": np.exp(mean[1]),
        "kl": mean[2],
        "top1": Fraction(tokens - differing, tokens),
    }


def assert_equal(result: QualityResult, expected: dict[str, Any]) -> None:
    assert result.reason is None
    assert result.tokens == expected["tokens"]
    assert result.base_perplexity == pytest.approx(expected["base"], rel=1e-4)
    assert result.variant_perplexity == pytest.approx(expected["variant"], rel=1e-4)
    assert result.perplexity_ratio.value == pytest.approx(expected["variant"] / expected["base"], rel=1e-4)
    assert result.kl.value == pytest.approx(expected["kl"], rel=1e-3)
    assert result.top1.value == pytest.approx(float(expected["top1"]), abs=1e-12)


# Against transformers


def test_a_tiny_random_model_agrees_with_transformers_in_numpy(tiny, random_texts):
    changed = deepcopy(tiny)
    round_linears(changed, levels=15)
    expected = reference(deepcopy(tiny), changed, random_texts)
    context = make_context(StandIn(deepcopy(tiny), BASE.kv_tokens, levels=15))
    result = measure_quality(context, BASE, INT8, "int8", random_texts)
    assert_equal(result, expected)
    assert 0.5 < expected["top1"] < 0.95, "the variant must differ for this to test anything"
    assert expected["kl"] > 0.01
    assert result.variant == "weights: native -> int8_weight_only"
    assert result.documents == 8
    for name in ("perplexity_ratio", "kl", "top1"):
        quantity = getattr(result, name)
        assert context.found.quantities[f"quality.int8.{name}"] == quantity
        assert quantity.n == 8
        assert quantity.interval is not None
        assert quantity.interval.low < quantity.value < quantity.interval.high
    assert context.found.quality["int8"] == result
    assert QualityResult.model_validate_json(result.model_dump_json()) == result


def test_the_embedded_model_agrees_with_transformers_on_three_requests(embedded, bundled):
    rows = bundled.rows[[3, 57, 200]]
    pairs = zip(rows["prompt_ids"].to_list(), rows["output_ids"].to_list(), strict=True)
    documents = [Document([*prompt, *output], len(prompt) // 2) for prompt, output in pairs]
    changed = deepcopy(embedded.model)
    round_linears(changed)
    expected = reference(deepcopy(embedded.model), changed, documents)
    runner = StandIn(deepcopy(embedded.model), BASE.kv_tokens)
    result = measure_quality(make_context(runner, vocabulary=2048), BASE, INT8, "int8", documents)
    assert_equal(result, expected)
    assert 0 < expected["kl"] < 0.01
    assert result.perplexity_ratio.interval is None
    assert result.perplexity_ratio.note == "no interval: 3 documents, needs 6"
    # A rule must not take a figure without an interval for a fact.
    assert compare(result.perplexity_ratio, below=2.0) is Truth.UNDECIDED
    assert compare(result.kl, below=2.0) is Truth.UNDECIDED


@pytest.mark.parametrize(("chunk", "held"), [(17, 9), (64, 100), (512, 4), (31, 10_000)])
def test_neither_chunks_nor_held_tokens_change_the_result(tiny, random_texts, chunk, held):
    def measure(chunk: int, held: int | None) -> QualityResult:
        runner = StandIn(deepcopy(tiny), BASE.kv_tokens, levels=7)
        arms = (replace(arm, max_num_batched_tokens=chunk, max_num_seqs=1) for arm in (BASE, INT8))
        return measure_quality(make_context(runner), *arms, "int8", random_texts[:6], held_tokens=held)

    whole, parts = measure(512, None), measure(chunk, held)
    assert parts.tokens == whole.tokens
    for name in ("base_perplexity", "variant_perplexity"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-5)
    assert parts.kl.value == pytest.approx(whole.kl.value, rel=1e-4)
    assert parts.top1.value == whole.top1.value


def test_equal_configurations_lose_exactly_nothing(tiny, random_texts):
    result = measure_quality(make_context(StandIn(deepcopy(tiny), BASE.kv_tokens)), BASE, BASE, "same", random_texts)
    for quantity, exact in ((result.perplexity_ratio, 1.0), (result.kl, 0.0), (result.top1, 1.0)):
        assert (quantity.value, quantity.interval.low, quantity.interval.high) == (exact, exact, exact)
    assert result.base_perplexity == result.variant_perplexity
    assert result.variant == ""


def test_the_text_before_a_chunk_is_read_from_the_variants_own_pages(tiny, random_texts):
    """Only a later chunk meets K/V that was rounded after the step that wrote it."""
    whole, chunked = (
        measure_quality(
            make_context(StandIn(deepcopy(tiny), BASE.kv_tokens)),
            replace(BASE, max_num_batched_tokens=chunk),
            replace(FP8, max_num_batched_tokens=chunk),
            "fp8_kv",
            random_texts,
        )
        for chunk in (512, 32)
    )
    assert whole.kl.value == 0
    assert whole.notes[-1] == "the variant computed the same as the base in every token"
    assert chunked.notes == whole.notes[:-1]
    assert chunked.kl.value > 1e-4
    assert chunked.base_perplexity == pytest.approx(whole.base_perplexity, rel=1e-5)


def test_an_arm_is_set_up_once_a_group_and_the_order_alternates(tiny, random_texts):
    runner = StandIn(deepcopy(tiny), BASE.kv_tokens)
    scored = sum(len(text.tokens) - text.scored_from for text in random_texts)
    held = max(len(text.tokens) for text in random_texts)
    measure_quality(make_context(runner), BASE, INT8, "int8", random_texts, held_tokens=held)
    names = [config.weights for config in runner.asked]
    assert names[:4] == ["native", "int8_weight_only", "native", "int8_weight_only"]
    assert scored / held <= len(names) - 1 <= len(random_texts)


# What is scored


def test_long_documents_are_cut_and_those_with_nothing_left_are_left_out_and_both_are_said(tiny, random_texts):
    longest = 100
    small = replace(BASE, max_model_len=longest)
    rng = np.random.default_rng(1)
    prompt_alone = Document(rng.integers(0, VOCABULARY, 120).tolist(), 110)
    documents = [*random_texts, prompt_alone]
    result = measure_quality(
        make_context(StandIn(deepcopy(tiny), BASE.kv_tokens)),
        small,
        replace(INT8, max_model_len=longest),
        "x",
        documents,
    )
    cut = [replace(text, tokens=text.tokens[:longest]) for text in random_texts]
    longer = sum(len(text.tokens) > longest for text in random_texts)
    assert 0 < longer < 8
    assert result.tokens == sum(len(text.tokens) - text.scored_from for text in cut)
    assert result.documents == 8
    assert f"{longer} of 9 texts cut after 100 tokens" in result.notes
    assert "1 of 9 texts left out: nothing to score within 100 tokens" in result.notes
    whole = measure_quality(make_context(StandIn(deepcopy(tiny), BASE.kv_tokens)), BASE, INT8, "x", cut)
    assert result.base_perplexity == pytest.approx(whole.base_perplexity, rel=1e-12)


def test_what_was_scored_is_said(tiny, random_texts):
    texts = [*random_texts[:6], *(replace(text, scored_from=1) for text in random_texts[6:])]
    result = measure_quality(make_context(StandIn(deepcopy(tiny), BASE.kv_tokens)), BASE, BASE, "x", texts)
    assert result.notes == [
        "6 of 8 texts scored on the recorded output alone, given its prompt",
        "2 of 8 texts without a recorded output, scored whole",
    ]


def test_the_trace_gives_one_request_a_session_scored_on_its_output(embedded, bundled):
    rows = bundled.rows[:60]
    sessions = pl.Series("session", ["a", "b", None] * 20)
    trace = replace(bundled, rows=rows.with_columns(sessions))
    context = make_context(None, tokenizer=embedded.tokenizer, trace=trace)
    documents = documents_of(context)
    assert len(documents) == 22, "a session has one, a request without session is its own"
    starts: dict[tuple[int, ...], tuple[int, set[str | None]]] = {}
    for prompt, output, session in zip(
        rows["prompt_ids"].to_list(), rows["output_ids"].to_list(), sessions.to_list(), strict=True
    ):
        starts.setdefault((*prompt, *output), (len(prompt), set()))[1].add(session)
    found = [starts[tuple(document.tokens)] for document in documents]
    assert [document.scored_from for document in documents] == [start for start, _ in found]
    assert all(sum(session in of for _, of in found) == 1 for session in ("a", "b"))
    assert {document.source for document in documents} == {"the trace"}
    assert documents_of(context) == documents
    other_seed = make_context(None, tokenizer=embedded.tokenizer, trace=trace, seed=1)
    assert documents_of(other_seed) != documents
    assert len(documents_of(context, most=5)) == 5


def test_a_request_without_output_is_scored_whole(embedded, bundled):
    rows = bundled.rows.with_columns(pl.lit(None, pl.List(pl.Int64)).alias("output_ids"))
    context = make_context(None, tokenizer=embedded.tokenizer, trace=replace(bundled, rows=rows))
    assert {document.scored_from for document in documents_of(context)} == {1}


def test_a_trace_of_lengths_falls_back_to_the_shipped_text_and_says_so(embedded, bundled):
    rows = bundled.rows.with_columns(
        *(pl.lit(None, bundled.rows.schema[name]).alias(name) for name in ("prompt_text", "prompt_ids"))
    )
    trace = replace(bundled, rows=rows)
    assert trace.content == "lengths only"
    context = make_context(
        StandIn(deepcopy(embedded.model), BASE.kv_tokens), vocabulary=2048, tokenizer=embedded.tokenizer, trace=trace
    )
    documents = documents_of(context, most=12)
    assert documents == shipped_documents(context, most=12)
    result = measure_quality(context, BASE, INT8, "int8", documents)
    assert result.text == "shipped text"
    assert result.tokens == sum(len(document.tokens) - document.scored_from for document in documents)
    # The held-out figures of the embedded model are a perplexity of 113 over all of such texts, answers being the
    # easier part; uniform guesses among its tokens would be 2,048.
    assert 5 < result.base_perplexity < 200
    assert documents_of(make_context(None, trace=trace)) == []


# Why nothing was measured


def test_too_little_text_says_how_many_tokens_are_needed(tiny):
    # A 95% interval of p = 0.99 by the normal approximation is at most one point wide either way from here on.
    assert 1.96 * math.sqrt(0.99 * 0.01 / MIN_TOKENS) <= 0.01 < 1.96 * math.sqrt(0.99 * 0.01 / (MIN_TOKENS - 1))
    context = make_context(StandIn(deepcopy(tiny), BASE.kv_tokens))
    short = [Document(list(range(90)), 1) for _ in range(4)]
    result = measure_quality(context, BASE, INT8, "int8", short)
    assert result.reason is not None
    assert result.reason.startswith("356 tokens, needs 381: ")
    assert (result.tokens, result.base_perplexity, result.kl.value) == (0, None, None)
    assert context.found.quantities["quality.int8.perplexity_ratio"].reason == result.reason
    assert context.runner.asked == [], "nothing is run for what cannot be told"


def test_random_weights_and_a_missing_tokenizer_are_reasons(tiny, random_texts):
    runner = StandIn(deepcopy(tiny), BASE.kv_tokens)
    untrained = measure_quality(make_context(runner, trained=False), BASE, INT8, "int8", random_texts)
    assert untrained.reason == "the weights are random: quality counts with trained ones only"
    mute = measure_quality(make_context(runner), BASE, INT8, "int8", [])
    assert mute.reason == "the model has no tokenizer, so no text can be read"


class Failing(StandIn):
    """Raises `error` when it is set up for another configuration than the base."""

    error: Exception

    def configure(self, config: EngineConfig) -> None:
        super().configure(config)
        if config.weights != "native":
            raise self.error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MeasurementError("needs compute capability 8.9"), "needs compute capability 8.9"),
        (InputError("int4 needs groups of 32"), "int4 needs groups of 32"),
        (
            MemoryError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes"),
            "4096 B asked for",
        ),
    ],
)
def test_an_arm_that_cannot_run_is_the_reason(tiny, random_texts, error, reason):
    runner = Failing(deepcopy(tiny), BASE.kv_tokens)
    runner.error = error
    result = measure_quality(make_context(runner), BASE, INT8, "int8", random_texts)
    assert reason in result.reason
    assert result.kl.value is None
    assert result.kl.reason == result.reason


def test_other_errors_are_not_swallowed(tiny, random_texts):
    runner = Failing(deepcopy(tiny), BASE.kv_tokens)
    runner.error = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError):
        measure_quality(make_context(runner), BASE, INT8, "int8", random_texts)


class Broken(StandIn):
    """Its variant's logits are changed by `damage`."""

    damage: Any

    def logits(self, batch: Batch, at: Any = None) -> torch.Tensor:
        result = super().logits(batch, at).clone()
        if self.asked[-1].weights != "native":
            self.damage(result)
        return result


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda logits: logits.fill_(math.nan), "the variant's logits are broken: its mean loss is nan nats a token"),
        (lambda logits: logits.mul_(1e5), "the variant's logits are broken: its mean loss is "),
        (lambda logits: logits[:, 96].fill_(-math.inf), "the variant rules out tokens that the base does not"),
    ],
)
def test_broken_logits_are_a_reason_and_never_a_number(tiny, random_texts, damage, reason):
    texts = [replace(text, tokens=[token % 96 for token in text.tokens]) for text in random_texts]
    runner = Broken(deepcopy(tiny), BASE.kv_tokens)
    runner.damage = damage
    result = measure_quality(make_context(runner), BASE, INT8, "int8", texts)
    assert result.reason.startswith(reason)
    assert result.variant_perplexity is None


def test_a_token_that_both_arms_rule_out_adds_nothing(tiny, random_texts):
    class Masked(StandIn):
        def logits(self, batch: Batch, at: Any = None) -> torch.Tensor:
            result = super().logits(batch, at).clone()
            result[:, 96] = -math.inf
            return result

    texts = [replace(text, tokens=[token % 96 for token in text.tokens]) for text in random_texts]
    result = measure_quality(make_context(Masked(deepcopy(tiny), BASE.kv_tokens)), BASE, INT8, "int8", texts)
    assert result.reason is None
    assert 0 < result.kl.value < 0.1


def test_the_end_of_the_budget_leaves_what_was_scored_or_says_what_is_missing(tiny, random_texts):
    texts = [replace(text, scored_from=1) for text in random_texts]
    one_at_a_time = max(len(text.tokens) for text in texts)

    def measure(groups: int) -> QualityResult:
        left = iter([1.0] * groups + [0.0])
        context = make_context(StandIn(deepcopy(tiny), BASE.kv_tokens), left_s=left)
        return measure_quality(context, BASE, INT8, "int8", texts, held_tokens=one_at_a_time)

    some, none = measure(5), measure(0)
    assert some.reason is None
    assert 5 <= some.documents < 8
    assert f"its time ended after {some.documents} of 8 texts" in some.notes
    assert some.tokens == sum(len(text.tokens) - 1 for text in texts[: some.documents])
    assert none.reason.startswith("its time ended after 0 of 8 texts: 0 tokens, needs 381: ")


def test_a_quantized_base_understates_the_loss(tiny, random_texts):
    context = make_context(StandIn(deepcopy(tiny), BASE.kv_tokens), quantization="awq (4 bits)")
    result = measure_quality(context, BASE, INT8, "int8", random_texts)
    assert result.understated
    assert result.base == "tiny in float32, quantized as awq (4 bits)"
    assert result.notes[-1].startswith("understated: ")
    expanded = make_context(context.runner, dequantized_from="gguf")
    assert measure_quality(expanded, BASE, INT8, "int8", random_texts).base == "tiny in float32, quantized as gguf"
    assert expanded.found.quality["int8"].understated
    plain = measure_quality(make_context(context.runner), BASE, INT8, "int8", random_texts)
    assert not plain.understated
    assert plain.base == "tiny in float32"


# Intervals


def test_the_interval_of_equal_sizes_is_students_interval_of_the_mean():
    from scipy import stats

    values = [0.3, -0.1, 0.7, 0.2, 0.4, 0.0, 0.5]
    expected = stats.t.interval(0.95, 6, loc=np.mean(values), scale=stats.sem(values))
    assert cluster_ratio_interval([v * 20 for v in values], [20] * 7) == pytest.approx(expected)
    assert cluster_ratio_interval(values[:5], [1] * 5) is None


@pytest.mark.parametrize(("documents", "least"), [(6, 0.89), (12, 0.905), (40, 0.925)])
def test_intervals_hold_the_known_ratio_about_as_often_as_they_say(documents, least):
    """Documents of 5 to 400 tokens, each with an effect of its own; by tokens the interval would be far too narrow."""
    rng = np.random.default_rng(documents)
    truth, rounds, held, held_by_token = 0.01, 1500, 0, 0
    for _ in range(rounds):
        sizes = np.clip(np.exp(rng.normal(3.6, 0.9, documents)), 5, 400).astype(int)
        effects = truth + 0.04 * rng.standard_normal(documents)
        totals = sizes * effects + np.sqrt(sizes) * 0.1 * rng.standard_normal(documents)
        low, high = cluster_ratio_interval(totals, sizes)
        held += low <= truth <= high
        error = 1.96 * 0.1 / math.sqrt(sizes.sum())
        held_by_token += abs(totals.sum() / sizes.sum() - truth) <= error
    assert least <= held / rounds <= 0.97
    assert held_by_token / rounds < 0.7


@pytest.mark.parametrize(("documents", "least"), [(6, 0.86), (20, 0.88), (60, 0.9)])
def test_intervals_of_what_is_never_negative_hold_too_and_stay_positive(documents, least):
    rng = np.random.default_rng(documents)
    truth, rounds, held = 0.02, 1000, 0
    for _ in range(rounds):
        sizes = np.clip(np.exp(rng.normal(3.6, 0.9, documents)), 5, 400).astype(int)
        means = truth * np.exp(rng.normal(-0.18, 0.6, documents))
        low, high = cluster_ratio_interval(rng.gamma(sizes * 0.5) / 0.5 * means, sizes, positive=True)
        assert low > 0
        held += low <= truth <= high
    assert least <= held / rounds <= 0.97


def test_a_total_that_one_document_carries_alone_is_cut_at_zero():
    low, high = cluster_ratio_interval([0, 0, 3, 0, 0, 0], [10] * 6, positive=True)
    assert low == 0
    assert high > 0.05


def test_agreement_on_all_tokens_of_different_arms_is_no_certainty(tiny, random_texts):
    """Seen agreement of n documents bounds the share: at most 2.5% would hide more."""
    context = make_context(StandIn(deepcopy(tiny), BASE.kv_tokens, levels=100_000))
    result = measure_quality(context, BASE, INT8, "int8", random_texts)
    assert result.kl.value > 0
    assert result.top1.value == 1.0
    assert result.top1.interval.low == pytest.approx(0.025 ** (1 / 8))
    assert result.top1.interval.high == 1.0
    assert (1 - share_of_nothing_seen(8)) ** 8 == pytest.approx(0.025)


# Calibration text


def texts_of(frequencies: np.ndarray, count: int, seed: int) -> list[list[int]]:
    """Documents that each lean to some tokens of their own."""
    rng = np.random.default_rng(seed)
    return [
        rng.choice(len(frequencies), int(rng.integers(40, 200)), p=rng.dirichlet(frequencies * 200)).tolist()
        for _ in range(count)
    ]


def test_the_divergence_is_that_of_scipy():
    from scipy.spatial.distance import jensenshannon

    # Equal documents make every sample the same, so that the numbers are known.
    own, other = [0] * 60 + [1] * 40, [0] * 20 + [1] * 30 + [2] * 50
    result = calibration_divergence([own] * 14, [other] * 14, seed=0)
    expected = jensenshannon([0.6, 0.4, 0], [0.2, 0.3, 0.5], base=2) ** 2
    assert isinstance(result, Divergence)
    assert result.tokens == 600
    assert result.calibration == pytest.approx(expected, rel=1e-12)
    assert result.noise == 0


def test_another_language_is_told_from_a_random_half_of_the_trace():
    rng = np.random.default_rng(0)
    ours, theirs = rng.dirichlet(np.ones(300) * 0.3), rng.dirichlet(np.ones(300) * 0.3)
    texts = texts_of(ours, 60, seed=1)
    foreign = calibration_divergence(texts, texts_of(theirs, 60, seed=2), seed=0)
    assert foreign.excess > 3
    false_alarms = 0
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(60)
        halves = ([texts[i] for i in order[:30]], [texts[i] for i in order[30:]])
        false_alarms += calibration_divergence(*halves, seed=seed).excess > 1
    assert false_alarms <= 3


def test_another_domain_is_told_on_real_text_and_the_threshold_is_named(embedded, bundled):
    """The trace's questions over documents against its support chats, in the embedded tokenizer."""
    kinds = {
        kind: bundled.rows.filter(pl.col("session").str.starts_with(kind))["prompt_ids"].to_list()
        for kind in ("rag", "chat")
    }
    found = Collector()
    observe_calibration(found, kinds["rag"][:80], kinds["rag"][80:], seed=0)
    same = found.quantities["quality.calibration_excess"].value
    observe_calibration(found, kinds["rag"][:80], kinds["chat"], seed=0)
    excess, bits = (found.quantities[f"quality.calibration_{name}"] for name in ("excess", "divergence"))
    assert same < 1 < excess.value
    assert excess.value > 2 * same
    assert 0 < bits.value < 1
    assert "95th percentile of the divergence between two random halves" in bits.note


def test_too_few_documents_or_tokens_to_compare_is_a_reason():
    found = Collector()
    observe_calibration(found, [[1, 2, 3] * 100] * 11, [[1] * 5000], seed=0)
    assert found.quantities["quality.calibration_divergence"].reason == "11 documents, needs 12: two halves of 6"
    observe_calibration(found, [[1, 2, 3] * 100] * 12, [[1] * 380], seed=0)
    assert found.quantities["quality.calibration_excess"].reason == "380 tokens to compare, needs 381"
