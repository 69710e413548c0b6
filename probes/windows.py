"""What the rules ask of the whole trace, asked of its peak and its off-peak alone: the best setting can change."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from inferdoc.evidence import Basis, TraceWindow
from inferdoc.probes.context import Collector, ProbeContext
from inferdoc.probes.hardware_fit import observe_demand
from inferdoc.probes.output_variance import observe_lengths
from inferdoc.traces import window_hits
from inferdoc.traces.windows import LoadWindow, Windows


def observe_windows(context: ProbeContext, found: Windows) -> list[TraceWindow]:
    """The peak and the off-peak of the context's trace, where it has them, with their own quantities."""
    windows = []
    if found.peak is not None:
        windows.append(_observed(context, "peak", found.peak.window))
    if found.off_peak is not None:
        windows.append(_observed(context, "off-peak", found.off_peak.window))
    return windows


def _observed(context: ProbeContext, name: Literal["peak", "off-peak"], window: LoadWindow) -> TraceWindow:
    own = replace(context, trace=context.trace.window(window.first_request, window.requests), found=Collector())
    observe_demand(own)
    observe_lengths(own)
    hits = window_hits(context.trace, window.first_request, window.requests, context.base.block_size)
    own.found.add(
        "prefix.ideal_hit_rate",
        f"ideal hit rate in the {name}, after everything before it (unlimited cache)",
        hits.hit_rate,
        "share",
        Basis.TRACE,
        exact=True,
        reason=hits.reason,
    )
    return TraceWindow(
        name=name,
        start_s=window.start_s,
        end_s=window.end_s,
        requests=window.requests,
        rate_per_s=window.rate_per_s,
        load_over_mean=window.load_over_mean,
        quantities=own.found.quantities,
    )
