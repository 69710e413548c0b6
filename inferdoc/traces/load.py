"""Everything about the load of a trace in one object: lengths, arrivals, windows, static batches, demand for K/V."""

from __future__ import annotations

from collections.abc import Sequence

from inferdoc.evidence import Contract
from inferdoc.traces.arrivals import ArrivalAnalysis, analyse_arrivals
from inferdoc.traces.batch_waste import BatchWasteAnalysis, analyse_batch_waste
from inferdoc.traces.demand import DemandAnalysis, analyse_demand
from inferdoc.traces.lengths import LengthAnalysis, analyse_lengths
from inferdoc.traces.service import Service
from inferdoc.traces.trace import Trace
from inferdoc.traces.windows import Windows, split_windows


class LoadAnalysis(Contract):
    lengths: LengthAnalysis
    arrivals: ArrivalAnalysis
    windows: Windows
    batch_waste: BatchWasteAnalysis
    demand: DemandAnalysis


def analyse_load(
    trace: Trace,
    *,
    service: Service | None = None,
    block_sizes: Sequence[int] = (16,),
    max_model_len: int | None = None,
) -> LoadAnalysis:
    """Describe the load of `trace`; a part that it has no data for says why.

    Args:
        service: how long a request takes where the trace does not record it; without it, such requests are left out
            of the demand.
        block_sizes: tokens a block of K/V, at least 1 each.
        max_model_len: tokens that a server without paging would reserve for each request.

    Raises:
        ValueError: a block size or `max_model_len` below 1.
    """
    return LoadAnalysis(
        lengths=analyse_lengths(trace),
        arrivals=analyse_arrivals(trace),
        windows=split_windows(trace),
        batch_waste=analyse_batch_waste(trace),
        demand=analyse_demand(trace, service=service, block_sizes=block_sizes, max_model_len=max_model_len),
    )
