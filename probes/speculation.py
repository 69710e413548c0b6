"""Speculation: what drafts would gain by batch size, worked out from this device's own timings, and what they do gain.

    predicted speed-up = tokens a step x T(B, 1) / (drafting + T(B, k + 1))

A step without a draft (prompt lookup found nothing) costs T(B, 1), so T(B, k + 1) counts by the share of the places
that were drafted. Tokens a step are those of the outputs replayed with k, not of a constant acceptance: the places of a
draft differ. Prompts and the host's own work between steps are not in it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import RunResult
from inferdoc.engine.request import Request
from inferdoc.engine.spec_decode.config import SpeculativeConfig
from inferdoc.engine.spec_decode.replay import Acceptance, Replay
from inferdoc.evidence import Basis, Line, Question, Series
from inferdoc.probes.acceptance import NGRAM, cut_at_end, draft_lengths, repeated_4grams, replay_outputs
from inferdoc.probes.context import ProbeContext
from inferdoc.probes.metrics import measure
from inferdoc.probes.paired import Pair, Trial
from inferdoc.probes.plan import smallest_slice
from inferdoc.probes.verify_cost import check_limit, observe_stated_acceptance, observe_verify_cost
from inferdoc.statistics import RATIO_METHOD, cluster_ratio_interval, median_interval

Method = Literal["ngram", "draft"]
METHODS: dict[Method, str] = {"ngram": "n-gram drafts", "draft": "the draft model"}
_ALONE_REQUESTS, _ALONE_TOKENS = 8, 256
"""Requests that are served one at a time: so many, or as many as have so many output tokens in the trace."""


def comparisons(context: ProbeContext) -> list[Pair]:
    """Off and on, alone and in full batches, of drafters that would emit more than one token a step."""
    if not context.replays:
        replay_outputs(context)
    if context.base.max_num_batched_tokens <= context.base.max_num_seqs:
        return []
    k = context.settings.num_speculative_tokens
    methods = [m for m in METHODS if (seen := context.replays[m].by_k.get(k)) is not None and seen.accepted]
    promising = [method for method in methods if _promises(context, method)]
    return [_pair(context, m, alone=True) for m in methods] + [_pair(context, m, alone=False) for m in promising]


def _promises(context: ProbeContext, method: Method) -> bool:
    """Whether it is predicted to pay anywhere. If not, requests alone are run to check, and full batches are not."""
    chosen = [best(context, method, point.batch) for point in context.sweep.decode]
    return any(each is None or each[1] > 1 for each in chosen)


def _pair(context: ProbeContext, method: Method, *, alone: bool) -> Pair:
    speculative = SpeculativeConfig(
        method=method,
        num_speculative_tokens=context.settings.num_speculative_tokens,
        prompt_lookup_min=NGRAM[0],
        prompt_lookup_max=NGRAM[1],
    )
    limit = {"max_num_seqs": 1} if alone else {}
    technique = f"speculative_{method}"
    return Pair(
        id=f"{technique}.{'alone' if alone else 'saturated'}",
        question=Question.TOKEN_LATENCY,
        technique=technique,
        label=f"{METHODS[method]}, {'one request at a time' if alone else 'full batch'}",
        off=context.config(**limit),
        on=context.config(**limit, speculative_config=speculative),
        # Over all tokens: of requests that copy much and requests that copy little no median tells.
        metrics=("tpot_mean", "throughput") if alone else ("throughput", "tpot_mean"),
        trial=run_to_end,
        load_label="one request at a time" if alone else "saturated",
        notes=(f"{speculative.num_speculative_tokens} tokens drafted a step; outputs end with their end token",),
    )


def run_to_end(context: ProbeContext, pair: Pair, config: EngineConfig) -> Trial:
    """Serve the first requests of the slice up to the model's own end tokens.

    Text forced past its end repeats itself, and repetition is what drafts are best at.
    """
    lengths = _lengths(context)
    if config.max_num_seqs == 1:
        lengths = lengths[: _alone(context)]
    requests = [Request(i, context.slice[i].prompt, length) for i, length in enumerate(lengths)]
    run = context.engine(config).run(requests)
    return Trial(values=measure(run, pair.metrics, []), run=run)


def _alone(context: ProbeContext) -> int:
    sums = np.cumsum([request.output_length for request in context.slice[:_ALONE_REQUESTS]])
    return int(np.searchsorted(sums, _ALONE_TOKENS)) + 1


def _lengths(context: ProbeContext) -> list[int]:
    """Output lengths up to the end token, at most the trace's; the trace's in a prediction."""
    head = context.slice[: smallest_slice(context.base)]
    if context.predicted:
        return [request.output_length for request in head]
    if context.ends is None or context.ends[0] is not context.slice:
        requests = [Request(i, r.prompt, r.output_length) for i, r in enumerate(head)]
        context.engine(context.base).run(requests)
        ends = [len(cut_at_end(request.output, context.loaded.eos_token_ids)) for request in requests]
        context.ends = (context.slice, ends)
    return context.ends[1]


def predicted(
    context: ProbeContext, method: Method, batch: int, k: int, seen: Acceptance | None = None
) -> float | None:
    """Speed-up of decode steps at this batch size with k drafted tokens; ``None`` where some part is not known.

    Args:
        seen: acceptance; by default that of the replayed outputs.
    """
    seen = seen or context.replays[method].by_k.get(k)
    if seen is None or seen.tokens_per_step is None or (batch, k) not in context.sweep.verify:
        return None
    drafted = seen.proposed / (seen.steps * k)
    checking = 1 + drafted * (context.sweep.verify_ratio(batch, k) - 1)
    drafting = _drafting(context, method, batch, k * drafted)
    return None if drafting is None else seen.tokens_per_step / (checking + drafting)


def _drafting(context: ProbeContext, method: Method, batch: int, tokens: float) -> float | None:
    """Seconds of drafting so many tokens for each row, over those of a plain step."""
    if method == "ngram":
        return context.replays[method].propose_s * batch / context.sweep.decode_at(batch).median
    return tokens * context.draft.step_ratio(batch) if context.draft else None


def best(context: ProbeContext, method: Method, batch: int) -> tuple[int, float] | None:
    """The number of drafted tokens that would gain most at this batch size, and its speed-up."""
    known = [(k, p) for k in draft_lengths(context) if (p := predicted(context, method, batch, k)) is not None]
    return max(known, key=lambda pair: pair[1], default=None)


def pays_up_to(speedups: dict[int, float]) -> int:
    """The largest batch size up to which every one of these is above 1; 0 where the smallest is not."""
    largest = 0
    for batch, speedup in sorted(speedups.items()):
        if speedup <= 1:
            break
        largest = batch
    return largest


def observe(context: ProbeContext) -> None:
    if not context.replays:
        replay_outputs(context)
    _not_compared(context)
    for method in METHODS:
        _acceptance(context, method)
        _prediction(context, method)
    _draft_step(context)
    _repetition(context)
    observe_verify_cost(context)
    observe_stated_acceptance(context)
    _charts(context)


def _not_compared(context: ProbeContext) -> None:
    """Why a drafter has no pair."""
    planned = {pair.id for pair in comparisons(context)}
    for method, name in METHODS.items():
        crowded = "a step holds no more than one token for each request (--max-num-batched-tokens)"
        seen = context.replays[method].by_k.get(context.settings.num_speculative_tokens)
        rejected = "no drafted token was accepted on the outputs replayed" if seen and not seen.accepted else crowded
        for load, metric in (("alone", "tpot_mean"), ("saturated", "throughput")):
            if (id := f"speculative_{method}.{load}") not in planned:
                hopeless = f"speculative_{method}.alone" in planned
                reason = "it is predicted to pay at no batch size, so full batches were not run" if hopeless else None
                reason = context.replays[method].reason or reason or rejected
                gain = f"{id}.{metric}.gain"
                context.found.add(gain, f"{name}, {load}: gain", None, "ratio", Basis.MEASURED, reason=reason)


def _acceptance(context: ProbeContext, method: Method) -> None:
    replay, k = context.replays[method], context.settings.num_speculative_tokens
    seen = replay.by_k.get(k, Acceptance())
    nothing = replay.reason or (None if seen.steps else "no output has a second token")
    no_draft = nothing or (None if seen.proposed else "no n-gram ever repeated: nothing was proposed")
    name = METHODS[method]
    for id, label, value, parts, unit, reason in (
        (
            "acceptance",
            f"{name}: accepted / drafted",
            _ratio(seen.accepted, seen.proposed),
            [(one.accepted, one.proposed) for one in replay.each.get(k, [])],
            "share",
            no_draft,
        ),
        (
            "alpha",
            f"{name}: chance that a token is accepted, given that those before it in the draft were",
            seen.alpha,
            [(one.accepted, one.accepted + sum(one.drafts.rejected)) for one in replay.each.get(k, [])],
            "share",
            no_draft or (None if seen.alpha is not None else "nothing was judged"),
        ),
        (
            "tokens_per_step",
            f"{name}: tokens a decode step, the target's own included",
            seen.tokens_per_step,
            [(one.emitted, one.steps) for one in replay.each.get(k, [])],
            "tokens",
            nothing,
        ),
    ):
        context.found.add(
            f"latency.{method}_{id}",
            label,
            value if reason is None else None,
            unit,
            Basis.TRACE if method == "ngram" else Basis.MEASURED,
            interval=_over_requests(parts) if replay.sampled and reason is None else None,
            method=RATIO_METHOD,
            exact=not replay.sampled,
            n=replay.requests or None,
            note=f"{k} drafted; {replay.note}" if replay.note else None,
            reason=reason,
        )


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _over_requests(parts: list[tuple[int, int]]) -> tuple[float, float] | None:
    """Interval of a ratio of sums, for requests that stand for others."""
    counted = [(part, whole) for part, whole in parts if whole]
    return cluster_ratio_interval(*zip(*counted, strict=True), positive=True) if counted else None


def _prediction(context: ProbeContext, method: Method) -> None:
    found, k = context.found, context.settings.num_speculative_tokens
    batches = [point.batch for point in context.sweep.decode]
    name, replay = METHODS[method], context.replays[method]
    reason = replay.reason or "the context is too short to time the check"
    for which, batch, load in (("b1", batches[0], "alone"), ("full", batches[-1], "saturated")):
        value = predicted(context, method, batch, k)
        found.add(
            f"latency.{method}_predicted_{which}",
            f"{name}: predicted speed-up of decode steps at batch {batch}, {k} drafted",
            value,
            "ratio",
            Basis.MODELLED,
            direction="higher",
            reason=None if value is not None else reason,
            note=_beside(context, method, batch, load) if value is not None else None,
        )
    chosen = {batch: each for batch in batches if (each := best(context, method, batch)) is not None}
    by_batch = ", ".join(
        f"batch {b}: {f'{k} ({s:.2f}x)' if s > 1 else f'off ({s:.2f}x)'}" for b, (k, s) in chosen.items()
    )
    found.add(
        f"latency.{method}_best_k",
        f"{name}: drafted tokens a step that gain most alone",
        float(chosen[batches[0]][0]) if batches[0] in chosen else None,
        "tokens",
        Basis.MODELLED,
        exact=True,
        reason=None if batches[0] in chosen else reason,
        note=by_batch or None,
    )
    found.add(
        f"latency.{method}_pays_up_to",
        f"{name}: largest measured batch size at which they are predicted to pay",
        float(pays_up_to({batch: speedup for batch, (_, speedup) in chosen.items()})) if chosen else None,
        "requests",
        Basis.MODELLED,
        exact=True,
        reason=None if chosen else reason,
        note=f"best number of drafted tokens at each: {by_batch}" if by_batch else None,
    )


def _beside(context: ProbeContext, method: Method, batch: int, load: str) -> str:
    """What was measured beside a prediction, and what would have been predicted for those outputs."""
    id = f"speculative_{method}.{load}"
    metric, label = ("tpot_mean", "mean TPOT") if load == "alone" else ("throughput", "throughput, prompts included")
    gain = context.found.lookup(f"{id}.{metric}.gain")
    run = context.runs.get(id, {}).get("on")
    if gain is None or gain.value is None or run is None:
        return "decode steps alone; nothing was measured beside it"
    seen = acceptance_of(run)
    again = predicted(context, method, batch, context.settings.num_speculative_tokens, seen)
    text = f"measured beside it: gain in {label} {gain.value:.2f}x"
    if again is not None and seen.tokens_per_step is not None:
        text += f"; for the outputs of that run, {seen.tokens_per_step:.2f} tokens a step, predicted {again:.2f}x"
    return text


def acceptance_of(run: RunResult) -> Acceptance:
    """Of the decode steps of a run, each row counted as one."""
    total = Acceptance()
    for step in run.steps:
        drafts = step.drafts
        emitted = step.decode_rows + (sum(drafts.accepted) if drafts else 0)
        total += Acceptance(drafts or Acceptance().drafts, step.decode_rows, emitted)
    return total


def _draft_step(context: ProbeContext) -> None:
    ratios = context.draft.step_ratios[1] if context.draft else []
    context.found.add(
        "latency.draft_step_ratio",
        "the draft model's step over the target's at batch 1",
        context.draft.step_ratio(1) if context.draft else None,
        "ratio",
        Basis.MEASURED,
        interval=median_interval(ratios),
        direction="lower",
        n=len(ratios) or None,
        reason=None if context.draft else "no draft model was given (--draft-model)",
        note="the roofline is that of the target's step" if context.draft else None,
        roofline=check_limit(context, 1, 0) if context.draft else None,
    )


def _repetition(context: ProbeContext) -> None:
    recorded = (
        [output for output in context.trace.rows["output_ids"].to_list() if output] if context.real_outputs else []
    )
    share = repeated_4grams(recorded)
    missing = "the trace records no outputs" if context.real_outputs else context.replays["ngram"].reason
    context.found.add(
        "latency.repeated_4grams",
        "repeated 4-grams in recorded outputs",
        share,
        "share",
        Basis.TRACE,
        exact=True,
        n=len(recorded) or None,
        reason=None if share is not None else ("outputs are shorter than 4 tokens" if recorded else missing),
    )


def _charts(context: ProbeContext) -> None:
    batches = [point.batch for point in context.sweep.decode]
    speedups, places = [], []
    for method, name in METHODS.items():
        known = [(float(batch), each[1]) for batch in batches if (each := best(context, method, batch)) is not None]
        if known:
            speedups.append(Line(name=name, x=[x for x, _ in known], y=[y for _, y in known]))
        rates = _longest(context.replays[method]).drafts.conditional_rates()
        if any(rate is not None for rate in rates):
            places.append(Line(name=name, x=[float(i + 1) for i in range(len(rates))], y=rates))
    charts = (
        ("speculation_by_batch", "Predicted speed-up of the best draft length", "batch size", "requests", speedups),
        ("acceptance_by_place", "Accepted, given that the places before were", "place in the draft", "tokens", places),
    )
    for id, title, x_label, x_unit, lines in charts:
        if lines:
            context.found.series.append(
                Series(
                    id=f"latency.{id}",
                    question=Question.TOKEN_LATENCY,
                    title=title,
                    kind="line",
                    x_label=x_label,
                    x_unit=x_unit,
                    y_label="speed-up" if lines is speedups else "accepted",
                    y_unit="ratio" if lines is speedups else "share",
                    x_log=lines is speedups,
                    lines=lines,
                )
            )


def _longest(replay: Replay) -> Acceptance:
    return replay.by_k[max(replay.by_k)] if replay.by_k else Acceptance()
