"""The student that would do, by hand; and a student that is there, measured."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inferdoc.draft_model import check_draft_model
from inferdoc.engine.request import Request
from inferdoc.errors import InputError
from inferdoc.evidence import Slo
from inferdoc.models import embedded_draft_path
from inferdoc.options import Options
from inferdoc.probes.context import Collector, ProbeContext, Settings
from inferdoc.probes.student import Student, shape, size, size_to_fit
from inferdoc.progress import Progress
from inferdoc.student import check_student, measure_student

SPEC: Any = SimpleNamespace(
    name="teacher",
    parameters=128_000 + 10 * 128_000,
    vocab_size=100,
    hidden_size=1280,
    tied_embeddings=True,
    layers=(None,) * 10,
    weight_bytes=lambda dtype: 2 * 1_408_000,
    kv_bytes=lambda tokens, dtype: 1000 * tokens,
)


def test_the_shape_keeps_the_embeddings_and_drops_layers_or_narrows_them() -> None:
    # 704,000 = 128,000 + 4.5 layers; or 1,280,000 w^2 + 128,000 w = 704,000, w = (sqrt(221) - 1) / 20 = 0.6933: 887.4
    assert shape(SPEC, 704_000) == Student(parameters=640_000, layers=4, hidden_size=832)


def test_no_student_is_larger_than_its_model_and_none_has_no_layers() -> None:
    assert shape(SPEC, 5e6) == Student(1_408_000, 10, 1280)
    assert shape(SPEC, 255_999) is None


def test_untied_embeddings_count_twice() -> None:
    untied: Any = SimpleNamespace(**{**SPEC.__dict__, "parameters": 1_536_000, "tied_embeddings": False})
    assert shape(untied, 704_000) == Student(256_000 + 3 * 128_000, 3, 768)  # 10 w^2 + 2 w = 5.5: w = 0.6483, 829.8


def make_context(limit: float | None) -> Any:
    times = SimpleNamespace(
        seconds=lambda prefill_tokens, decode_rows, context_tokens: 0.001 * decode_rows + 1e-6 * context_tokens,
        relative_error=0.1,
    )
    full = SimpleNamespace(batch=8, context=250)
    slo = () if limit is None else (Slo(metric="tpot_p95", limit=limit, unit="s"),)
    return SimpleNamespace(
        found=Collector(), settings=Settings(slo=slo), spec=SPEC, sweep=SimpleNamespace(decode=[full], times=times)
    )


def test_the_limit_sets_the_student_by_the_fitted_step_time() -> None:
    context = make_context(0.005)  # the step takes 8 x 1 ms + 2,000 x 1 us = 10 ms: half of the parameters
    size(context)
    values = {id: q.value for id, q in context.found.quantities.items()}
    assert values == {
        "fit.student_parameters": 640_000,
        "fit.student_layers": 4,
        "fit.student_hidden_size": 832,
        "fit.student_cost": pytest.approx(640_000 / 1_408_000),
        "fit.step_share": pytest.approx(2.0),
    }
    note = context.found.quantities["fit.student_parameters"].note or ""
    assert "10 ms" in note
    assert "measured elsewhere" in note


def test_a_limit_that_decode_steps_alone_meet_asks_for_no_student() -> None:
    context = make_context(0.012)
    size(context)
    student = context.found.quantities["fit.student_parameters"]
    assert (student.value, student.reason) == (
        None,
        "decode steps alone are within the limit: a smaller model is not what it takes",
    )
    assert context.found.quantities["fit.step_share"].value == pytest.approx(10 / 12)


def test_without_a_limit_there_is_no_size() -> None:
    context = make_context(None)
    size(context)
    assert {q.reason for q in context.found.quantities.values()} == {"no SLO on the time per token was given"}


def test_what_does_not_fit_is_sized_to_the_budget() -> None:
    found = Collector()
    size_to_fit(found, SPEC, budget_bytes=1_908_000, dtype="bfloat16", tokens=1000)  # half of 2,816,000 + 1,000,000
    assert found.quantities["fit.student_layers"].value == 4


def test_a_student_is_smaller_than_its_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a student is smaller than its model"):
        check_student(Options(student=Options().model_location))


def test_a_student_is_measured_on_its_own_pool_and_the_models_comes_back(prepared: ProbeContext) -> None:
    options = Options(device="cpu", student=str(embedded_draft_path()))
    context = replace(prepared, found=Collector(), deadline=time.perf_counter() + 600)
    check_student(options)
    measure_student(options, context, Progress())
    found = context.found.quantities
    assert found["student.weights_bytes"].value == 4 * found["student.parameters"].value
    assert found["student.kv_bytes_per_token"].value == 512  # 2 layers x 2 x 1 head x 32 x 4 B
    ratio = found["student.perplexity_ratio"]
    assert ratio.value is not None
    assert ratio.value > 1.5  # an eighth of the parameters, same training text
    assert ratio.interval is not None
    assert ratio.interval.low > 1
    assert found["student.tpot_full_batch"].value < math.inf
    assert [line.name for line in context.found.series[-1].lines] == ["model", "student"]
    run = context.engine(context.base).run([Request(0, list(range(20)), 4)])  # the pool is there again
    assert len(run.requests[0].output) == 4


def test_a_student_whose_weights_leave_no_room_is_not_measured_and_says_why(prepared: ProbeContext) -> None:
    options = Options(device="cpu", student=str(embedded_draft_path()))
    # What the model's pool gives way to is less than the student's weights.
    memory = replace(prepared.memory, budget=prepared.memory.taken + 1000, kv_pool=1000)
    context = replace(prepared, found=Collector(), deadline=time.perf_counter() + 600, memory=memory)
    measure_student(options, context, Progress())
    found = context.found.quantities
    for id in ("student.cost", "student.tpot_full_batch", "student.perplexity_ratio"):
        assert found[id].value is None
        assert "leave no room for a sequence" in (found[id].reason or "")
    assert found["student.weights_bytes"].value


def test_a_draft_model_that_is_not_there_or_is_larger_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(InputError, match="nowhere"):
        check_draft_model(Options(draft_model="/nowhere/at-all"))
    swapped = Options(model=str(embedded_draft_path()), draft_model=Options().model_location)
    with pytest.raises(InputError, match="are the two swapped"):
        check_draft_model(swapped)
