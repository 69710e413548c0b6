"""Numbers and remarks that describe a trace: lengths, how its clock steps, how its rate changes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from inferdoc.evidence import Basis, Quantity
from inferdoc.traces.counts import Counts, count_column

REQUESTS_FOR_PERCENTILE = {50: 6, 90: 36, 95: 72, 99: 368}
"""Fewest requests for which order statistics give a 95% interval of that percentile."""
_LABELS = {"input_tokens": "prompt length", "output_tokens": "output length"}


def quantities(rows: pl.DataFrame) -> list[Quantity]:
    """Percentiles (linear interpolation) and mean of the lengths, and prompt tokens for each output token."""
    found = []
    for column, label in _LABELS.items():
        lengths = count_column(rows, column)
        for percent, needed in REQUESTS_FOR_PERCENTILE.items():
            value, reason = None, _too_few(lengths, column, needed)
            if reason is None:
                value = lengths.percentile(percent)
            found.append(_quantity(f"{column}_p{percent}", f"{label}, p{percent}", value, "tokens", lengths.n, reason))
        reason = _too_few(lengths, column, 1)
        mean = lengths.mean if reason is None else None
        found.append(_quantity(f"{column}_mean", f"{label}, mean", mean, "tokens", lengths.n, reason))
    both = rows.select("input_tokens", "output_tokens").drop_nulls()
    total_out = int(both["output_tokens"].sum())
    ratio = int(both["input_tokens"].sum()) / total_out if total_out else None
    reason = None if total_out else "prompt and output lengths are not both known"
    label = "prompt tokens for each output token, ratio of the sums"
    found.append(_quantity("input_output_ratio", label, ratio, "", both.height, reason))
    return found


def _too_few(lengths: Counts, column: str, needed: int) -> str | None:
    if not lengths.n:
        return f"the trace has no {column.replace('_tokens', '')} lengths before a tokenizer has counted them"
    if lengths.n < needed:
        return f"{lengths.n} requests: a 95% interval needs {needed}"
    return None


def _quantity(id: str, label: str, value: float | None, unit: str, n: int, reason: str | None) -> Quantity:
    return Quantity(id=id, label=label, value=value, unit=unit, basis=Basis.TRACE, n=n, exact=True, reason=reason)


def clock_notes(arrival_s: npt.NDArray[np.float64]) -> list[str]:
    """Remarks on sorted arrival times: a coarse clock, one burst, a rate that is not one number."""
    if len(arrival_s) < 2:
        return []
    distinct = int(np.count_nonzero(arrival_s[1:] > arrival_s[:-1])) + 1
    if distinct == 1:
        return ["all requests arrive at the same time: there is no arrival rate"]
    notes = []
    if distinct < len(arrival_s) and (arrival_s % 1 == 0).all():
        notes.append("timestamps have whole seconds: order and bursts within a second are unknown")
    elif distinct * 2 <= len(arrival_s):
        gaps = np.diff(arrival_s)
        steps = gaps[gaps > 0]
        notes.append(
            f"timestamps step by about {np.median(steps):.2g} s ({distinct:,} distinct in {len(arrival_s):,} requests):"
            " bursts shorter than a step are an artefact of the clock"
        )
    if len(arrival_s) >= 100:
        counts, _ = np.histogram(arrival_s, bins=10)
        rates = counts / (float(arrival_s[-1]) / 10)
        if rates.max() > 10 * rates.min():
            notes.append(
                f"the arrival rate is not steady: {rates.min():.2g} to {rates.max():.2g} requests/s"
                " over tenths of the trace"
            )
    return notes
