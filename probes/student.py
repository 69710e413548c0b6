"""Distillation, sized and not done: which smaller model of the same family would meet the limit or fit.

With L layers of hidden size H the layers' parameters grow with L and with H squared, embeddings and head with H. A step
is taken to be as much shorter as fewer parameters are read and multiplied, whatever part of the step that is. Only what
decode steps take is sized: where they alone are within the limit, prompts beside them stretch the time per token, and
a smaller model is not the remedy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from inferdoc.evidence import Basis
from inferdoc.models import ModelSpec
from inferdoc.probes.context import Collector, ProbeContext
from inferdoc.probes.objective import per_token

ELSEWHERE = "its training, and its quality after it, have to be measured elsewhere"
_HEADS_ROUND = 64
"""Hidden sizes are multiples of it, as published families' are."""


@dataclass(frozen=True)
class Student:
    """`layers` of the same width have `parameters`; so have, about, as many layers `hidden_size` wide."""

    parameters: int
    layers: int
    hidden_size: int


def shape(spec: ModelSpec, parameters: float) -> Student | None:
    """The largest student of a family within `parameters`; ``None`` where not even one layer is."""
    tables = spec.vocab_size * spec.hidden_size * (1 if spec.tied_embeddings else 2)
    body = spec.parameters - tables
    layers = min(len(spec.layers), math.floor((parameters - tables) / (body / len(spec.layers))))
    if layers < 1:
        return None
    # body w^2 + tables w = parameters, for widths as shares of the present one
    width = (math.sqrt(tables**2 + 4 * body * parameters) - tables) / (2 * body)
    hidden = min(spec.hidden_size, math.floor(spec.hidden_size * width / _HEADS_ROUND) * _HEADS_ROUND)
    return Student(round(tables + body * layers / len(spec.layers)), layers, hidden)


def size(context: ProbeContext) -> None:
    """The student whose decode step at full batch is within the limit, by the step times fitted here."""
    limits = [slo.limit for slo in context.settings.slo if per_token(slo)]
    full = context.sweep.decode[-1]
    step = context.sweep.times.seconds(
        prefill_tokens=0, decode_rows=full.batch, context_tokens=full.batch * full.context
    )
    no_limit = None if limits else "no SLO on the time per token was given"
    context.found.add(
        "fit.step_share",
        f"decode step of {full.batch} requests, no prompt beside them, over the limit on the time per token",
        step / min(limits) if limits else None,
        "ratio",
        Basis.MODELLED,
        exact=True,
        direction="lower",
        reason=no_limit,
        note=f"step times modelled, hold-out error {context.sweep.times.relative_error:.0%}" if limits else None,
    )
    if no_limit or step <= min(limits):
        within = "decode steps alone are within the limit: a smaller model is not what it takes"
        _record(context.found, None, no_limit or within)
        return
    note = (
        f"a decode step of {full.batch} requests takes {step * 1e3:.3g} ms (modelled, hold-out error "
        f"{context.sweep.times.relative_error:.0%}) and the limit is {min(limits) * 1e3:.3g} ms; a step is taken to "
        f"shorten as the parameters do; {ELSEWHERE}"
    )
    student = shape(context.spec, context.spec.parameters * min(limits) / step)
    _record(context.found, student, "not even one layer beside the embeddings would meet the limit", note, context.spec)


def size_to_fit(found: Collector, spec: ModelSpec, *, budget_bytes: int, dtype: str, tokens: int) -> None:
    """The student whose weights and K/V of `tokens` tokens are within the budget, K/V in proportion to the weights."""
    needed = spec.weight_bytes(dtype) + spec.kv_bytes(tokens, dtype=dtype)
    student = shape(spec, spec.parameters * min(1.0, budget_bytes / needed))
    note = f"weights and the KV of {tokens:,} tokens within the budget; {ELSEWHERE}"
    _record(found, student, "not even one layer beside the embeddings would fit", note, spec)


def _record(
    found: Collector, student: Student | None, reason: str, note: str | None = None, spec: ModelSpec | None = None
) -> None:
    share = student.parameters / spec.parameters if student and spec else None

    def add(name: str, label: str, value: float | None, unit: str) -> None:
        missing = reason if value is None else None
        found.add(f"fit.student_{name}", label, value, unit, Basis.MODELLED, exact=True, reason=missing, note=note)

    add(
        "parameters", "largest model of the family that would do", student.parameters if student else None, "parameters"
    )
    add("layers", "its layers, at this model's width", student.layers if student else None, "layers")
    if student and not student.hidden_size:
        student = None
        reason = f"less than {_HEADS_ROUND} wide"
    add(
        "hidden_size", "its width instead, at this model's layers", student.hidden_size if student else None, "elements"
    )
    add("cost", "its time a token over this model's, in proportion to parameters", share, "share")
