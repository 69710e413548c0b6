"""How long requests take: as recorded, or by a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from inferdoc.evidence import Contract

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Service = Callable[[Ints, Ints], tuple[Floats, Floats]]
"""From prompt and output lengths to seconds until the first token and seconds from there to the last."""

COLUMNS = ("row", "arrival_s", "input_tokens", "output_tokens", "ttft_s", "e2e_s", "queue_s")


class ServiceModel(Contract):
    """Constant speeds without queueing, a `Service`: the prompt at one rate, then each further token at another."""

    prefill_tokens_per_s: float = Field(gt=0)
    tpot_s: float = Field(gt=0)

    def __call__(self, prompts: Ints, outputs: Ints) -> tuple[Floats, Floats]:
        return prompts / self.prefill_tokens_per_s, np.maximum(outputs - 1, 0) * self.tpot_s


@dataclass(frozen=True)
class Lives:
    """When requests hold K/V: from `start` the prompt, growing from `first` on by the output until `end`, in s."""

    rows: Ints
    prompts: Ints
    outputs: Ints
    start: Floats
    first: Floats
    end: Floats
    measured: int
    """Requests whose times were recorded."""
    without_first: int
    """Of those, the ones without a time to first token: their output is spread over all of their time."""
    left_out: int
    """Requests without an output length, or without any times."""


def lives_of(rows: pl.DataFrame, service: Service | None) -> Lives:
    """The lives of requests with the columns `COLUMNS`: recorded times where there are any, else by `service`.

    A recorded request starts to hold K/V after its recorded queueing time (at its arrival where none is recorded).
    """
    usable = rows.filter(
        pl.col("input_tokens").is_not_null()
        & pl.col("output_tokens").is_not_null()
        & (pl.col("e2e_s").is_not_null() if service is None else pl.lit(True))
    )
    prompts, outputs = usable["input_tokens"].to_numpy(), usable["output_tokens"].to_numpy()
    start = arrival = usable["arrival_s"].to_numpy()
    n, measured = len(usable), len(usable) - usable["e2e_s"].null_count()
    first = end = arrival
    if service is not None and measured < n:
        until_first, then = service(prompts, outputs)
        first = arrival + until_first
        end = first + then
    without_first = 0
    if measured:
        e2e, ttft, queue = (usable[name].to_numpy() for name in ("e2e_s", "ttft_s", "queue_s"))
        known = ~np.isnan(e2e)
        finished = np.where(known, arrival + e2e, end)
        started = np.where(known, np.minimum(arrival + np.nan_to_num(queue), finished), arrival)
        without_first = int((known & np.isnan(ttft)).sum())
        spoke = np.where(np.isnan(ttft), started, np.clip(arrival + np.nan_to_num(ttft), started, finished))
        start, first, end = started, np.where(known, spoke, first), finished
    return Lives(
        rows=usable["row"].to_numpy(),
        prompts=prompts,
        outputs=outputs,
        start=start,
        first=first,
        end=end,
        measured=measured,
        without_first=without_first,
        left_out=len(rows) - n,
    )
