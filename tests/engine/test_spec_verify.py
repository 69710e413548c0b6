"""The check of drafts: greedy is exact, sampling has the target's distribution, whatever it was drafted from."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from inferdoc.engine.request import Request
from inferdoc.engine.sampler import sample_at
from inferdoc.engine.sampling import SamplingParams
from inferdoc.engine.scheduler import Row
from inferdoc.engine.spec_decode.proposal import Draft
from inferdoc.engine.spec_decode.verify import verify

TOKENS = 7
SETTINGS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.5),
    SamplingParams(temperature=1.5, top_k=5, top_p=0.9),
]


def filtered(logits: list[float], params: SamplingParams) -> list[float]:
    """Temperature, top-k and top-p, token by token in plain Python."""
    weights = [math.exp(value / params.temperature) for value in logits]
    ranking = sorted(range(len(logits)), key=lambda token: (-logits[token], token))[: params.top_k or len(logits)]
    whole = sum(weights[token] for token in ranking)
    kept: list[int] = []
    for token in ranking:
        if kept and sum(weights[t] for t in kept) / whole >= params.top_p:
            break
        kept.append(token)
    total = sum(weights[token] for token in kept)
    return [weights[token] / total if token in kept else 0.0 for token in range(len(logits))]


def row(draft: Draft | None, params: SamplingParams | None, request: int = 0, prompt: int = 3) -> Row:
    """A row whose last computed token stands at the end of `prompt` tokens."""
    made = Request(request, [1] * prompt, 40, sampling=params)
    made.num_computed = prompt - 1
    return Row(made, 1 + (len(draft.tokens) if draft else 0), samples=True, draft=draft)


class Chains:
    """Two Markov chains over few tokens: the target's and the drafter's, each with logits by the token before."""

    def __init__(self, params: SamplingParams) -> None:
        rng = np.random.default_rng(5)
        self.logits = rng.normal(0, 1.5, (TOKENS, TOKENS))
        self.p = np.array([filtered(line.tolist(), params) for line in self.logits])
        self.q = np.array([filtered(line.tolist(), params) for line in self.logits + rng.normal(0, 1, self.p.shape)])


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("params", SETTINGS, ids=str)
def test_tokens_have_the_target_s_distribution_given_those_before(params, k):
    """Each emitted token, given the one before it, follows the target's chain; drafts stand as often as p, q meet."""
    chains, rng = Chains(params), np.random.default_rng(k)
    count, start = 3000, 2
    rows, logits = [], []
    for number in range(count):
        path = [start]
        for _ in range(k):
            path.append(int(rng.choice(TOKENS, p=chains.q[path[-1]])))
        draft = Draft(path[1:], torch.from_numpy(chains.q[path[:-1]]))
        rows.append(row(draft, params, request=number))
        logits.append(chains.logits[path])
    emitted = verify(torch.from_numpy(np.concatenate(logits)), rows)
    pairs: Counter[tuple[int, int]] = Counter()
    for each, tokens in zip(rows, emitted, strict=True):
        assert tokens[:-1] == each.draft.tokens[: len(tokens) - 1]
        pairs.update(zip([start, *tokens], tokens, strict=False))
    statistic, freedom = 0.0, 0
    for before in range(TOKENS):
        seen = np.array([pairs[before, token] for token in range(TOKENS)])
        expected = chains.p[before] * seen.sum()
        assert seen[expected == 0].sum() == 0, "a token came that the settings leave out"
        enough = expected >= 5
        if enough.sum() > 1:
            inside, outside = seen[enough], seen[~enough].sum()
            statistic += ((inside - expected[enough]) ** 2 / expected[enough]).sum()
            rest = expected[~enough].sum()
            statistic += (outside - rest) ** 2 / rest if rest else 0
            freedom += enough.sum() - 1 + bool(rest)
    assert freedom > 10
    assert stats.chi2.sf(statistic, freedom) > 0.01
    overlap = np.minimum(chains.p[start], chains.q[start]).sum()
    stood = sum(len(tokens) > 1 for tokens in emitted)
    assert stats.binomtest(stood, count, overlap).pvalue > 0.01


@pytest.mark.parametrize("params", SETTINGS, ids=str)
def test_drafts_without_probabilities_give_the_tokens_that_plain_decoding_draws(params):
    chains, rng = Chains(params), np.random.default_rng(0)
    rows, logits = [], []
    for number in range(300):
        path = [2, *rng.integers(0, TOKENS, 3).tolist()]
        rows.append(row(Draft(path[1:]), params, request=number))
        logits.append(chains.logits[path])
    emitted = verify(torch.from_numpy(np.concatenate(logits)), rows)
    stood = 0
    for each, own, tokens in zip(rows, logits, emitted, strict=True):
        places = [(each.request, position) for position in (3, 4, 5, 6)]
        plain = sample_at(torch.from_numpy(own), places).tolist()
        expected = []
        for drafted, drawn in zip([*each.draft.tokens, None], plain, strict=True):
            expected.append(drawn)
            if drafted != drawn:
                break
        assert tokens == expected
        stood += len(tokens) - 1
    assert stood > 30


def test_a_certain_draft_is_accepted_as_often_as_the_target_would_draw_it():
    """q = 1: accepted with probability p(x), else replaced by p without x; together that is p."""
    params, count = SamplingParams(temperature=1.0), 4000
    chains = Chains(params)
    rows = [row(Draft([4]), params, request=number) for number in range(count)]
    emitted = verify(torch.from_numpy(np.concatenate([chains.logits[[2, 4]]] * count)), rows)
    first = np.bincount([tokens[0] for tokens in emitted], minlength=TOKENS)
    assert stats.chisquare(first, chains.p[2] * count).pvalue > 0.01
    assert sum(len(tokens) == 2 for tokens in emitted) == first[4]


def test_drafts_of_equal_probabilities_always_stand():
    params = SamplingParams(temperature=1.0)
    chains = Chains(params)
    rows = [row(Draft([4], torch.from_numpy(chains.p[[2]])), params, request=number) for number in range(200)]
    emitted = verify(torch.from_numpy(np.concatenate([chains.logits[[2, 4]]] * 200)), rows)
    assert all(tokens[0] == 4 and len(tokens) == 2 for tokens in emitted)


def peaks(*tokens: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(tokens), TOKENS).double()


def test_greedy_accepts_while_the_argmax_is_the_same():
    rows = [row(Draft([1, 2, 3]), None), row(None, None), row(Draft([5, 5]), None), row(Draft([6]), None)]
    logits = peaks(1, 2, 4, 0, 3, 4, 5, 1, 6, 2)
    assert verify(logits, rows) == [[1, 2, 4], [3], [4], [6, 2]]


def test_synthetic_acceptance_overrules_the_model_and_ends_with_its_token():
    rows = [row(Draft([1, 2, 3], accepted=accepted), None) for accepted in (0, 2, 3)]
    logits = peaks(*[6, 5, 4, 0] * 3)
    assert verify(logits, rows) == [[6], [1, 2, 4], [1, 2, 3, 0]]


def test_rows_of_all_kinds_in_one_step_get_what_they_get_alone():
    params = SamplingParams(temperature=1.0)
    chains = Chains(params)
    rows = [
        row(Draft([1, 4], torch.from_numpy(chains.q[[2, 1]])), params, 0),
        row(None, params, 1),
        row(Draft([3, 0, 1]), None, 2),
        row(Draft([3, 0]), params, 3),
        row(Draft([2, 0, 6], torch.from_numpy(chains.q[[2, 2, 0]])), params, 4),
        row(None, None, 5),
        row(Draft([1], accepted=1), params, 6),
    ]
    paths = [[2, *(each.draft.tokens if each.draft else [])] for each in rows]
    logits = [torch.from_numpy(chains.logits[path]) for path in paths]
    together = verify(torch.cat(logits), rows)
    assert together == [verify(own, [each])[0] for own, each in zip(logits, rows, strict=True)]


def test_a_draft_model_with_fewer_logits_than_the_target_is_judged_too():
    params = SamplingParams(temperature=1.0)
    chains = Chains(params)
    narrow = torch.tensor([[0.5, 0.5, 0.0, 0.0]], dtype=torch.float64)
    rows = [row(Draft([number % 2], narrow), params, number) for number in range(2000)]
    logits = torch.cat([torch.from_numpy(chains.logits[[2, number % 2]]) for number in range(2000)])
    first = np.bincount([tokens[0] for tokens in verify(logits, rows)], minlength=TOKENS)
    assert stats.chisquare(first, chains.p[2] * 2000).pvalue > 0.01
