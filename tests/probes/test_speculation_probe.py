"""Question 5's speculation: predictions by hand, what the sample is, and the embedded pair itself."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.kv_manager import KVUse
from inferdoc.engine.spec_decode.proposal import DraftCounts
from inferdoc.engine.spec_decode.replay import Acceptance, Replay
from inferdoc.engine.steplog import Step
from inferdoc.errors import InputError
from inferdoc.evidence import Roofline
from inferdoc.models import EMBEDDED
from inferdoc.probes import acceptance, kernels, speculation, token_latency
from inferdoc.probes.context import Collector, LoadedDraft, ProbeContext, Settings
from inferdoc.probes.paired import compare
from inferdoc.probes.plan import make_plan, set_slice
from inferdoc.probes.sweep import Sweep, SweepPoint
from inferdoc.probes.verify_cost import observe_stated_acceptance
from inferdoc.simulator import StepTimes

GIB = 2**30
TIMES = StepTimes(base=0.001, token=0.0001, row=0.0002, context=1e-6, relative_error=0.0)
SEEN = Acceptance(DraftCounts((10, 10), (8, 4), (2, 4)), steps=10, emitted=22)
"""Every step drafts two tokens; 2.2 tokens a step."""
HALF = Acceptance(DraftCounts((5, 5), (5, 5), (0, 0)), steps=10, emitted=20)
"""Every other step drafts two tokens, which stand."""


def make_sweep(verify: dict[tuple[int, int], float]) -> Sweep:
    decode = [SweepPoint(batch, 100, [0.010 * batch] * 3) for batch in (1, 4)]
    ratios = {key: [value - 0.5, value, value + 3] for key, value in verify.items()}
    return Sweep(decode=decode, verify=ratios, without_context=[0.7, 0.75, 0.9], times=TIMES, steps=[])


def make_context(**changes: Any) -> ProbeContext:
    """Plain steps of 10 and 40 ms at batches 1 and 4; checks of two tokens cost 1.2 and 2.0 of them."""
    fixed: Any = SimpleNamespace(vocab_size=100)
    values: dict[str, Any] = {
        **dict.fromkeys(("trace", "loaded", "device", "runner", "memory", "bandwidth", "matmul")),
        "settings": Settings(num_speculative_tokens=2),
        "spec": fixed,
        "base": EngineConfig(max_model_len=512, num_kv_blocks=256, max_num_seqs=4),
        "budget_bytes": 0,
        "kv_capacity_tokens": 4096,
        "sweep": make_sweep({(1, 2): 1.2, (4, 2): 2.0}),
        "real_outputs": True,
        "found": Collector(),
        "progress": lambda text: None,
        "between_runs": lambda: None,
        "deadline": time.perf_counter() + 3600,
        "draft": LoadedDraft(fixed, fixed, TIMES, {1: [0.1, 0.2, 0.9], 4: [0.3, 0.3, 0.3]}),
        "replays": {"ngram": Replay({2: HALF}, 3, "n", propose_s=0.001), "draft": Replay({2: SEEN}, 3, "d")},
    }
    return ProbeContext(**{**values, **changes})


def test_the_predicted_speed_up_is_tokens_over_what_a_step_costs() -> None:
    context = make_context()
    # 2.2 tokens a step; drafting twice 0.2 of a step (the median), checking 1.2.
    assert speculation.predicted(context, "draft", 1, 2) == pytest.approx(2.2 / (2 * 0.2 + 1.2))
    assert speculation.predicted(context, "draft", 4, 2) == pytest.approx(2.2 / (2 * 0.3 + 2.0))
    # Half the steps draft, so checking costs 1 + 0.5 * 0.2; a lookup takes 1 ms for each row of a step of 10 ms.
    assert speculation.predicted(context, "ngram", 1, 2) == pytest.approx(2.0 / (1.1 + 0.1))
    assert speculation.predicted(context, "ngram", 4, 2) == pytest.approx(2.0 / (1.5 + 4 * 0.001 / 0.040))


def test_what_was_not_timed_or_not_replayed_is_not_predicted() -> None:
    context = make_context(draft=None)
    assert speculation.predicted(context, "draft", 1, 2) is None
    assert speculation.predicted(context, "ngram", 1, 4) is None
    assert speculation.predicted(make_context(sweep=make_sweep({})), "ngram", 1, 2) is None


def test_the_best_length_is_chosen_for_each_batch_size() -> None:
    replay = Replay({2: SEEN, 4: replace(SEEN, emitted=25)}, 3, "d")
    context = make_context(
        replays={"draft": replay},
        settings=Settings(num_speculative_tokens=4),
        sweep=make_sweep({(1, 2): 1.2, (1, 4): 1.2, (4, 2): 2.0, (4, 4): 4.0}),
        draft=LoadedDraft(None, None, TIMES, {1: [0.0], 4: [0.0]}),  # type: ignore[arg-type]
    )
    drafted_half = 0.5  # of the 40 places of ten steps with k = 4
    assert speculation.best(context, "draft", 1) == (4, pytest.approx(2.5 / (1 + drafted_half * 0.2)))
    assert speculation.best(context, "draft", 4) == (2, pytest.approx(2.2 / 2.0))


@pytest.mark.parametrize(
    ("speedups", "largest"),
    [
        ({1: 1.5, 2: 1.2, 4: 0.9, 8: 0.7}, 2),
        ({1: 0.9, 2: 1.2}, 0),
        ({1: 1.5, 2: 1.2}, 2),
        ({1: 1.5, 2: 0.9, 4: 1.1}, 1),
        ({1: 1.0}, 0),
    ],
)
def test_off_above_is_the_first_batch_that_does_not_pay(speedups: dict[int, float], largest: int) -> None:
    assert speculation.pays_up_to(speedups) == largest


def test_quantities_hold_the_predictions_and_why_there_is_none() -> None:
    context = make_context(draft=None, replays={"ngram": Replay({2: HALF}, 3, "n"), "draft": Replay(reason="no draft")})
    for method in speculation.METHODS:
        speculation._acceptance(context, method)
        speculation._prediction(context, method)
    found = context.found.quantities
    assert found["latency.ngram_tokens_per_step"].value == 2.0
    assert found["latency.ngram_acceptance"].value == 1.0
    assert found["latency.ngram_predicted_b1"].value == pytest.approx(2.0 / 1.1)
    assert found["latency.ngram_predicted_full"].value == pytest.approx(2.0 / 1.5)
    assert found["latency.ngram_pays_up_to"].value == 4
    assert found["latency.ngram_best_k"].note == "batch 1: 2 (1.82x), batch 4: 2 (1.33x)"
    draft = {id: q for id, q in found.items() if id.startswith("latency.draft")}
    assert len(draft) == 7
    assert all((q.value, q.reason) == (None, "no draft") for q in draft.values())


def test_steps_of_a_run_are_counted_by_row() -> None:
    """Two rows: one plain step, and one whose drafts of 2 and 1 tokens are accepted up to 1 and 1."""
    nothing = KVUse(0, 0, 0, 0)
    plain = Step(0.0, 1.0, 0.0, 0, 2, 0, 2, 0, 9, nothing)
    drafts = DraftCounts.of([(2, 1), (1, 1)])
    run: Any = SimpleNamespace(steps=[plain, replace(plain, drafts=drafts)])
    assert speculation.acceptance_of(run) == Acceptance(drafts, steps=4, emitted=6)


@pytest.mark.parametrize(
    ("outputs", "share"),
    [([[1, 2, 3, 4, 1, 2, 3, 4]], 0.2), ([[1, 2, 3, 4], [1, 2, 3, 4]], 0.0), ([[1, 2, 3]], None), ([[7] * 10], 6 / 7)],
)
def test_repeated_4grams_are_those_seen_before_in_the_same_output(
    outputs: list[list[int]], share: float | None
) -> None:
    assert acceptance.repeated_4grams(outputs) == (None if share is None else pytest.approx(share))


def test_outputs_end_with_their_end_token() -> None:
    assert acceptance.cut_at_end([5, 9, 2, 9], (9, 3)) == [5, 9]
    assert acceptance.cut_at_end([5, 6], (9,)) == [5, 6]
    assert acceptance.cut_at_end([5, 6], ()) == [5, 6]


def trace_of(outputs: Sequence[list[int] | None]) -> Any:
    rows = pl.DataFrame(
        {
            "prompt_ids": [[1, 2, 3]] * len(outputs),
            "output_ids": pl.Series(list(outputs), dtype=pl.List(pl.Int64)),
            "output_tokens": [4] * len(outputs),
        }
    )
    return SimpleNamespace(rows=rows)


def test_made_up_outputs_are_never_replayed() -> None:
    context = make_context(real_outputs=False, trace=trace_of([[1, 2]]), replays={})
    acceptance.replay_outputs(context)
    reasons = {replay.reason for replay in context.replays.values()}
    assert reasons == {"outputs are not real (no trained weights, or no text)"}
    assert speculation.comparisons(context) == []


def test_a_sample_spreads_over_the_trace_and_says_how_large_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = [[i, i + 1, i + 2] for i in range(100)] + [None, [7]]
    monkeypatch.setattr(acceptance, "MOST_TOKENS", 60)  # ten requests of six tokens
    known = acceptance.known_outputs(make_context(trace=trace_of(outputs), draft=None))
    assert [output[0] for _, output in known.pairs] == [0, 11, 22, 33, 44, 55, 66, 77, 88, 99]
    assert known.note == "replayed on the recorded outputs of 10 of 102 requests"


def test_no_drafter_is_compared_that_nothing_was_accepted_of() -> None:
    nothing = Acceptance(DraftCounts((9,), (0,), (9,)), steps=9, emitted=9)
    context = make_context(replays={"ngram": Replay({2: SEEN}, 1, "n"), "draft": Replay({2: nothing}, 1, "d")})
    pairs = speculation.comparisons(context)
    assert [pair.id for pair in pairs] == ["speculative_ngram.alone", "speculative_ngram.saturated"]
    assert all(pair.off.difference(pair.on) == ["speculative_config"] for pair in pairs)
    assert [pair.off.max_num_seqs for pair in pairs] == [1, 4]
    speculation._not_compared(context)
    gain = context.found.quantities["speculative_draft.alone.tpot_mean.gain"]
    assert gain.reason == "no drafted token was accepted on the outputs replayed"


def test_full_batches_are_left_out_where_no_batch_size_is_predicted_to_pay() -> None:
    context = make_context(sweep=make_sweep({(1, 2): 3.0, (4, 2): 3.0}))
    assert [pair.id for pair in speculation.comparisons(context)] == [
        "speculative_ngram.alone",
        "speculative_draft.alone",
    ]
    speculation._not_compared(context)
    gain = context.found.quantities["speculative_draft.saturated.throughput.gain"]
    assert gain.reason == "it is predicted to pay at no batch size, so full batches were not run"
    assert "speculative_draft.alone.tpot_mean.gain" not in context.found.quantities


def test_a_step_without_room_for_drafts_is_a_reason() -> None:
    context = make_context(
        base=EngineConfig(max_model_len=512, num_kv_blocks=256, max_num_seqs=4, max_num_batched_tokens=4)
    )
    assert speculation.comparisons(context) == []
    speculation._not_compared(context)
    assert "--max-num-batched-tokens" in str(
        context.found.quantities["speculative_ngram.saturated.throughput.gain"].reason
    )


def test_a_prediction_knows_acceptance_and_the_drafts_price() -> None:
    """A request of 10 tokens alone: the prompt's step, then drafts that all stand: 3 tokens a step, 9 in 3 steps."""
    sure = Acceptance(DraftCounts((10, 10), (10, 10), (0, 0)), steps=10, emitted=30)
    context = make_context(replays={"draft": Replay({2: sure}, 1, "d")})
    pair = next(p for p in speculation.comparisons(replace(context, replays={"ngram": Replay(), **context.replays})))
    prediction = context.prediction()
    prediction.slice = [SimpleNamespace(prompt=[1] * 8, output_length=10, arrival_s=None)]  # type: ignore[list-item]
    run = speculation.run_to_end(prediction, pair, pair.on).run
    assert len(run.steps) == 4
    assert [step.draft_s for step in run.steps[1:]] == pytest.approx([2 * 0.2 * 0.010] * 3)


def test_shares_and_ratios_of_the_model_are_worked_out_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [SimpleNamespace(kv_heads=2, key_dim=16, value_dim=16)] * 3
    monkeypatch.setattr(kernels, "roofline", lambda context, work: Roofline(fraction=None, reason="not here"))
    runner = SimpleNamespace(specs=specs, kv_bytes_per_token=3 * 2 * 32 * 4)
    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(num_attention_heads=8))
    context = make_context(
        runner=runner, device=SimpleNamespace(kind="cpu"), loaded=SimpleNamespace(model=SimpleNamespace(config=config))
    )
    kernels.observe(context)
    found = context.found.quantities
    assert found["latency.kv_head_sharing"].value == 4
    assert found["latency.mha_kv_bytes_per_token"].value == 3 * 8 * 32 * 4
    assert found["latency.attention_share"].value == pytest.approx(0.25)  # 1 - the median of the rounds
    assert found["latency.launch_share"].reason == "needs a CUDA card"
    assert found["fused_attention.saturated.throughput.gain"].reason is not None


def test_attention_and_graphs_are_compared_where_the_base_has_them() -> None:
    base = EngineConfig(max_model_len=512, num_kv_blocks=256, attention_backend="triton", enforce_eager=False)
    fused, graphs = kernels.comparisons(make_context(base=base))
    assert (fused.off.attention_backend, fused.on.attention_backend) == ("torch", "triton")
    assert fused.off.enforce_eager
    assert fused.on.enforce_eager
    assert (graphs.off.enforce_eager, graphs.on.enforce_eager) == (True, False)
    assert kernels.comparisons(make_context()) == []


@pytest.fixture(scope="module")
def pair_context(prepare_embedded: Callable[..., ProbeContext]) -> ProbeContext:
    """The embedded pair, prepared once."""
    context = prepare_embedded(draft_model=EMBEDDED)
    return replace(context, trace=replace(context.trace, rows=context.trace.rows[:12]))


def test_the_drafts_memory_is_taken_from_the_budget_and_said(pair_context: ProbeContext) -> None:
    draft = pair_context.draft
    assert draft is not None
    taken = draft.loaded.weight_bytes_measured + draft.runner.kv_tokens * draft.runner.kv_bytes_per_token
    assert pair_context.memory.draft == taken
    assert draft.runner.kv_tokens >= pair_context.base.kv_tokens
    assert sum("draft model" in note for note in pair_context.engine_notes) == 1
    alone = 4 * GIB - (pair_context.memory.taken - taken)
    per_token = pair_context.runner.kv_bytes_per_token + draft.runner.kv_bytes_per_token
    assert pair_context.kv_capacity_tokens == pytest.approx(
        (alone - draft.loaded.weight_bytes_measured) / per_token, rel=0.01
    )


def test_one_pass_of_the_draft_finds_what_it_would_have_said_token_by_token(pair_context: ProbeContext) -> None:
    draft = pair_context.draft
    assert draft is not None
    row = pair_context.trace.rows.row(0, named=True)
    prompt, output = row["prompt_ids"], row["output_ids"][:12]
    places = acceptance._model_places(pair_context, draft, prompt, output)
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(draft.loaded.resolved, dtype=torch.float32).eval()
    for at in range(1, len(output)):
        tokens = [*prompt, *output[:at]]
        agreed = 0
        while at + agreed < len(output):
            with torch.inference_mode():
                guess = int(plain(torch.tensor([tokens])).logits[0, -1].argmax())
            if guess != output[at + agreed]:
                break
            tokens.append(guess)
            agreed += 1
        assert places.agreed[at] == agreed


def test_the_embedded_pair_is_measured_and_predicted(pair_context: ProbeContext) -> None:
    context = replace(pair_context, found=Collector(), settings=replace(pair_context.settings, requests=4))
    pairs = token_latency.comparisons(context)
    ids = [pair.id for pair in pairs]
    assert ids[:2] == ["speculative_ngram.alone", "speculative_draft.alone"]
    for method in ("ngram", "draft"):  # by the timings of this machine
        chosen = [speculation.best(context, method, point.batch) for point in context.sweep.decode]
        promising = any(each is not None and each[1] > 1 for each in chosen)
        assert (f"speculative_{method}.saturated" in ids) == promising
    pairs = [
        speculation._pair(context, method, alone=alone) for alone in (True, False) for method in ("ngram", "draft")
    ]
    assert all(step.estimated_s > 0 for step in make_plan(context, pairs).steps)
    set_slice(context, 4)
    for pair in pairs:
        comparison = compare(context, pair, 1)
        assert comparison.failure is None
        assert comparison.outputs is not None
        assert comparison.outputs.identical == comparison.outputs.requests == 4
    token_latency.observe(context)
    found = context.found.quantities
    for method in ("ngram", "draft"):
        tokens = found[f"latency.{method}_tokens_per_step"].value
        assert tokens is not None
        assert 1 < tokens < 5
        assert "measured beside it" in str(found[f"latency.{method}_predicted_b1"].note)
    series = {series.id: series for series in context.found.series}
    assert [line.name for line in series["latency.verify_cost"].lines] == ["batch 1", "batch 2", "batch 4"]
    assert len(series["latency.speculation_by_batch"].lines) == 2
    ends = np.array(speculation._lengths(context))
    assert (ends <= [request.output_length for request in context.slice]).all()


def test_without_recorded_outputs_the_model_writes_some_up_to_its_end_token(pair_context: ProbeContext) -> None:
    rows = pair_context.trace.rows.with_columns(pl.lit(None, dtype=pl.List(pl.Int64)).alias("output_ids"))
    context = replace(pair_context, trace=replace(pair_context.trace, rows=rows), found=Collector(), replays={})
    known = acceptance.known_outputs(context)
    assert known.reason is None
    assert 0 < len(known.pairs) <= 8
    ends = context.loaded.eos_token_ids
    assert ends
    assert all(token not in ends for _, output in known.pairs for token in output[:-1])
    assert known.note.startswith(f"replayed on outputs generated for {len(known.pairs)} of 12 requests")
    assert "4-grams repeat" in known.note


def test_a_draft_of_another_vocabulary_or_size_is_refused(pair_context: ProbeContext) -> None:
    from inferdoc.draft_model import check_draft, refuse_drafting

    target, draft = pair_context.loaded, pair_context.draft
    assert draft is not None
    other: Any = SimpleNamespace(get_vocab=lambda: {"a": 0, "b": 1})
    with pytest.raises(InputError, match="another vocabulary: 0 of the target's"):
        refuse_drafting(target, replace(draft.loaded, tokenizer=other))
    with pytest.raises(InputError, match="parameters"):
        refuse_drafting(draft.loaded, target)
    with pytest.raises(InputError, match="--draft-model none"):
        check_draft(draft.loaded, 10**9, "torch")


def test_acceptance_of_a_sample_has_an_interval_and_that_of_all_requests_is_exact() -> None:
    outputs = [[7, 8, 9] * n for n in range(2, 10)]
    places = [acceptance.ngram_places([7, 8, 9], output, shortest=2, longest=4, most=2) for output in outputs]
    for sampled in (True, False):
        context = make_context(replays={"ngram": Replay.of(places, [2], sampled=sampled)}, draft=None)
        speculation._acceptance(context, "ngram")
        found = context.found.quantities["latency.ngram_tokens_per_step"]
        assert found.exact is not sampled
        assert found.value == sum(len(output) - 1 for output in outputs) / context.replays["ngram"].by_k[2].steps
        if not sampled:
            assert found.interval is None
            continue
        assert found.interval is not None
        # Delete-one jackknife by hand: each request left out in turn, on the log scale.
        each = [(one.emitted, one.steps) for one in context.replays["ngram"].each[2]]
        without = [math.log(sum(e for e, _ in rest) / sum(s for _, s in rest)) for rest in _all_but_one(each)]
        spread = math.sqrt(7 / 8 * sum((w - sum(without) / 8) ** 2 for w in without))
        assert math.log(found.interval.high / found.value) == pytest.approx(2.3646 * spread, rel=1e-4)  # t, 7 degrees


def _all_but_one(each: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    return [each[:i] + each[i + 1 :] for i in range(len(each))]


def test_a_sample_of_few_requests_decides_nothing() -> None:
    places = [acceptance.ngram_places([7, 8, 9], [7, 8, 9, 7, 8], shortest=2, longest=4, most=2)] * 3
    context = make_context(replays={"ngram": Replay.of(places, [2], sampled=True)}, draft=None)
    speculation._acceptance(context, "ngram")
    found = context.found.quantities["latency.ngram_tokens_per_step"]
    assert (found.exact, found.interval) == (False, None)


def test_the_speed_up_by_a_stated_acceptance_is_the_geometric_sum_over_the_check() -> None:
    context = make_context()
    observe_stated_acceptance(context)
    chart = next(series for series in context.found.series if series.id == "latency.stated_acceptance")
    one, four = chart.lines
    assert one.y[5] == pytest.approx((1 + 0.5 + 0.25) / 1.2)
    assert four.y[9] == pytest.approx((1 + 0.9 + 0.81) / 2.0)
