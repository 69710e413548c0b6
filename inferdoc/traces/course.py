"""The load over the time of a trace in equal parts, for a picture of it."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from inferdoc.evidence import Contract
from inferdoc.traces.clocks import stretches
from inferdoc.traces.trace import Trace

PARTS = 60


class Course(Contract):
    """Load in `PARTS` equal parts of the time from the first arrival to the last."""

    part_s: float | None = None
    requests_per_s: list[float] = Field(default_factory=list)
    tokens_per_s: list[float] | None = None
    """Input and output tokens of the requests that arrive; ``None`` where no lengths are known."""
    reason: str | None = None


def course(trace: Trace) -> Course:
    """The load of a trace with one clock."""
    found, others, reason = stretches(trace)
    if reason is None and (len(found) > 1 or others):
        reason = "segments have clocks of their own"
    last = trace.duration_s
    if reason is not None or not last:
        return Course(reason=reason or "all requests have the same time")
    times = trace.rows["arrival_s"].to_numpy()
    part = np.minimum((times / last * PARTS).astype(np.int64), PARTS - 1)
    width = last / PARTS
    requests = np.bincount(part, minlength=PARTS) / width
    tokens = None
    if trace.has("input_tokens") or trace.has("output_tokens"):
        lengths = trace.rows.select("input_tokens", "output_tokens").sum_horizontal().to_numpy()
        tokens = (np.bincount(part, weights=lengths, minlength=PARTS) / width).tolist()
    return Course(part_s=width, requests_per_s=requests.tolist(), tokens_per_s=tokens)
