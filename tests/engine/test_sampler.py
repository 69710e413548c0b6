"""Sampling: the right distribution, from numbers that depend on nothing but seed, request and position."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import AutoConfig, AutoModelForCausalLM

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner
from inferdoc.engine.sampler import draw, sample
from inferdoc.engine.sampling import SamplingParams
from inferdoc.engine.scheduler import Row
from inferdoc.errors import InputError

LOGITS = [1.3, -0.4, 2.2, 0.0, 2.2, -3.0, 1.3, 0.7]
SETTINGS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=2.5, top_k=5),
    SamplingParams(temperature=1.0, top_p=0.8),
    SamplingParams(temperature=1.4, top_k=6, top_p=0.7),
]


def row(params: SamplingParams | None, request: int = 0, position: int = 1) -> Row:
    """A row that samples the token at `position`."""
    made = Request(request, [1] * position, 4, sampling=params)
    return Row(made, position, samples=True)


def expected_probabilities(logits: list[float], params: SamplingParams) -> list[float]:
    """Token by token in plain Python: filter the ranking, then normalize what is left."""
    weights = [math.exp(value / params.temperature) for value in logits]
    ranking = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    ranking = ranking[: params.top_k or len(ranking)]
    total = sum(weights[token] for token in ranking)
    kept: list[int] = []
    for token in ranking:
        if kept and sum(weights[t] for t in kept) / total >= params.top_p:
            break
        kept.append(token)
    total = sum(weights[token] for token in kept)
    return [weights[token] / total if token in kept else 0.0 for token in range(len(logits))]


@pytest.mark.parametrize("params", SETTINGS, ids=str)
def test_tokens_have_the_expected_distribution(params):
    """Chi-square over 6000 positions at a fixed seed; what is filtered out never comes."""
    draws = 6000
    logits = torch.tensor(LOGITS).expand(draws, -1)
    rows = [row(params, request=i % 7, position=1 + i // 7) for i in range(draws)]
    counts = np.bincount(sample(logits, rows).numpy(), minlength=len(LOGITS))
    expected = np.array(expected_probabilities(LOGITS, params))
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    assert stats.chisquare(counts[kept], expected[kept] * draws).pvalue > 0.01


def test_the_uniform_numbers_are_uniform_and_differ_by_seed_request_and_position():
    params = SamplingParams(temperature=1.0)
    numbers = [params.uniform(request, position) for request in range(50) for position in range(100)]
    assert stats.kstest(numbers, "uniform").pvalue > 0.01
    assert all(0 <= number < 1 for number in numbers)
    assert len(set(numbers)) == len(numbers)
    assert params.uniform(3, 4) != params.uniform(4, 3) != SamplingParams(temperature=1.0, seed=1).uniform(4, 3)
    assert params.uniform(-1, 4) != params.uniform(1, 4)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.0, top_k=3, top_p=0.5, seed=4),
        SamplingParams(temperature=50.0, top_k=1),
        SamplingParams(temperature=50.0, top_p=1e-9),
        SamplingParams(temperature=1e-4),
    ],
    ids=str,
)
def test_settings_that_leave_one_token_are_greedy(params):
    logits = torch.randn(200, 64, generator=torch.Generator().manual_seed(0))
    rows = [row(params, request=i) for i in range(200)]
    assert torch.equal(sample(logits, rows), logits.argmax(dim=-1))


def test_among_equal_logits_the_lowest_ids_stay():
    logits = torch.tensor([[0.0, 3.0, 3.0, 3.0, 1.0]]).expand(300, -1)
    rows = [row(SamplingParams(temperature=1.0, top_k=2), position=1 + i) for i in range(300)]
    assert set(sample(logits, rows).tolist()) == {1, 2}
    one = [row(SamplingParams(temperature=1.0, top_k=1)), row(None), row(SamplingParams(temperature=9.0, top_p=1e-9))]
    assert sample(logits[:3], one).tolist() == [1, 1, 1]


def test_top_p_reached_exactly_keeps_no_further_token():
    """Four equal tokens: two of them make one half."""
    column = torch.ones(1, 1, dtype=torch.float64)
    token = draw(torch.zeros(1, 4), 0.99 * column, column, 4 * column, 0.5 * column)
    assert token.item() == 1


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53, 1.0])
def test_a_logit_of_minus_infinity_is_never_drawn(uniform):
    """At both ends of the numbers (1: as rounding might leave it), with more tokens kept than can be drawn."""
    logits = torch.tensor([[-torch.inf, 0.1, -torch.inf, 0.2, -torch.inf]])
    column = torch.ones(1, 1, dtype=torch.float64)
    for top_k in (5.0, 4.0, 2.0):
        token = draw(logits, uniform * column, column, top_k * column, column)
        assert token.item() in (1, 3)


def test_rows_do_not_depend_on_each_other():
    """Every mixture of settings gives each row what it gets alone."""
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(12, 40, generator=generator)
    rows = [row([None, *SETTINGS][i % 6], request=i, position=5 + i) for i in range(12)]
    together = sample(logits, rows).tolist()
    assert together == [sample(logits[i : i + 1], rows[i : i + 1]).item() for i in range(12)]
    order = torch.randperm(12, generator=generator).tolist()
    assert sample(logits[order], [rows[i] for i in order]).tolist() == [together[i] for i in order]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_every_type_of_logits_is_drawn_alike(dtype):
    logits = torch.tensor(LOGITS, dtype=dtype).expand(50, -1)
    rows = [row(SETTINGS[4], position=1 + i) for i in range(50)]
    exact = sample(logits.double(), rows)
    assert torch.equal(sample(logits, rows), exact)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", 0),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("seed", 2**63),
    ],
)
def test_values_out_of_range_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=f"{field} is"):
        SamplingParams(**{field: value})


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    torch.manual_seed(1)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    model = AutoModelForCausalLM.from_config(config).double().eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0.0, 0.2)
    return ModelRunner(model, kv_tokens=256)


BASE = EngineConfig(max_model_len=64, num_kv_blocks=64, block_size=4, max_num_seqs=6, max_num_batched_tokens=64)
PARAMS = SamplingParams(temperature=1.1, top_k=30, top_p=0.95, seed=11)


def served(runner: ModelRunner, config: EngineConfig, order: list[int], params: SamplingParams = PARAMS):
    prompts = [[3 * i + 1, 5, 17, 33, 2, 61, 8][: 3 + i] for i in range(5)]
    requests = [Request(i, prompts[i], 14, arrival_s=0.0, sampling=params) for i in range(5)]
    result = Engine(runner, config).run([requests[i] for i in order])
    return [request.output for request in requests], requests, result


@pytest.mark.parametrize(
    "changes",
    [
        {"num_kv_blocks": 11},
        {"max_num_batched_tokens": 2, "max_num_seqs": 2},
        {"max_num_batched_tokens": 7, "enable_prefix_caching": True, "num_kv_blocks": 12},
        {"batching": "static"},
        {"max_num_seqs": 1},
    ],
    ids=str,
)
def test_trap_6_preemption_chunks_order_and_company_leave_sampling_alone(runner, changes):
    expected, _, _ = served(runner, BASE, [0, 1, 2, 3, 4])
    assert len({tuple(output) for output in expected}) == 5
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 1, 3]):
        outputs, requests, _ = served(runner, replace(BASE, **changes), order)
        assert outputs == expected
        if changes.get("num_kv_blocks") == 11:
            assert sum(request.preemptions for request in requests) >= 1


def test_trap_6_each_request_alone_gives_what_it_gives_in_company(runner):
    expected, requests, _ = served(runner, BASE, [0, 1, 2, 3, 4])
    for request in requests:
        alone = Request(request.id, request.prompt, 14, sampling=PARAMS)
        Engine(runner, BASE).run([alone])
        assert alone.output == expected[request.id]


def test_seeds_and_requests_give_different_tokens(runner):
    outputs, _, _ = served(runner, BASE, [0, 1, 2, 3, 4])
    others, _, _ = served(runner, BASE, [0, 1, 2, 3, 4], replace(PARAMS, seed=12))
    greedy, _, _ = served(runner, BASE, [0, 1, 2, 3, 4], SamplingParams())
    assert all(a != b for a, b in zip(outputs, others, strict=True))
    assert all(a != b for a, b in zip(outputs, greedy, strict=True))
    twins = [Request(i, [5, 17, 33], 14, sampling=PARAMS) for i in range(2)]
    Engine(runner, BASE).run(twins)
    assert twins[0].output != twins[1].output
