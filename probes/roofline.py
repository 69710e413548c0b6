"""How near the engine comes to the device's limit: what steps had to read and compute, at the rates measured here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from inferdoc.engine.engine import RunResult
from inferdoc.engine.steplog import Step
from inferdoc.evidence import Roofline
from inferdoc.probes.context import ProbeContext

NO_MBU = "cache-resident: no MBU"
NO_RATE = "the matrix rate could not be measured"


@dataclass(frozen=True)
class Work:
    """What a step had to do, and how long it took."""

    seconds: float
    tokens: int
    """Computed, padding included."""
    sampled: int
    """Rows whose logits were surely computed."""
    rows: int
    context_tokens: int
    """K/V tokens of all rows."""

    @classmethod
    def of(cls, step: Step) -> Work:
        decodes = step.decode_rows + step.padded_rows
        # With prompts in the step the log tells only how many requests were running.
        rows = max(step.running, decodes) if step.prefill_tokens else decodes
        checked = decodes + step.drafted
        return cls(step.duration_s, step.prefill_tokens + checked, checked, max(1, rows), step.context_tokens)


def of_runs(context: ProbeContext, runs: Iterable[RunResult]) -> Roofline:
    return roofline(context, [Work.of(step) for run in runs for step in run.steps])


def roofline(context: ProbeContext, steps: Sequence[Work]) -> Roofline:
    """The share of their time that these steps would have taken at the device's limit.

    Where the weights fit the last-level cache memory does not set the pace, and the compute part stands alone.
    """
    if context.predicted:
        return Roofline(fraction=None, reason="modelled steps")
    if not steps:
        return Roofline(fraction=None, reason="no step was timed")
    parts = [(s.seconds, s.tokens, s.sampled, s.rows, s.context_tokens) for s in steps]
    seconds, tokens, sampled, rows, context_tokens = np.array(parts, dtype=float).T
    body, head = context.matrix_parameters
    read = np.full(len(steps), float(context.weight_bytes_read))
    operations = 2 * (body * tokens + head * sampled)
    for spec in context.runner.specs:
        seen = rows * np.minimum(context_tokens / rows, spec.window or np.inf)
        elements = spec.key_dim + spec.value_dim
        read += seen * spec.kv_heads * elements * context.runner.dtype.itemsize
        operations += seen * 2 * context.query_heads * elements
    total = float(seconds.sum())
    reading = None if context.bandwidth.cache_resident else read / context.bandwidth.bytes_per_s
    computing = None if context.matmul is None else operations / context.matmul.flops_per_s
    known = [part for part in (reading, computing) if part is not None]
    missing = [note for note, part in ((NO_MBU, reading), (NO_RATE, computing)) if part is None]
    return Roofline(
        fraction=float(np.max(known, axis=0).sum()) / total if known else None,
        memory=None if reading is None else float(reading.sum()) / total,
        compute=None if computing is None else float(computing.sum()) / total,
        reason=None if known else "; ".join(missing),
        note="; ".join([*missing, "a lower bound"]) if known and missing else None,
    )
