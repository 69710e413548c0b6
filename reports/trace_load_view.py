"""The load of a trace on the terminal: lengths, arrivals, windows, static batches, memory."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from inferdoc.reports.formatting import digits, number
from inferdoc.reports.sparkline import narrowed, sparkline
from inferdoc.reports.terminal import Screen
from inferdoc.traces.analysis import TraceAnalysis
from inferdoc.traces.arrivals import SegmentArrivals
from inferdoc.traces.demand import SegmentDemand
from inferdoc.traces.lengths import LengthDistribution
from inferdoc.traces.windows import LoadWindow

_BATCHES = (8, 32, 128)
_MARGIN = 44
"""Columns beside a sparkline."""


class LoadView:
    def __init__(self, screen: Screen, analysis: TraceAnalysis) -> None:
        self.screen = screen
        self.analysis = analysis
        self.load = analysis.load

    def print(self) -> None:
        self._lengths()
        self._arrivals()
        self._batches()
        self._demand()

    def _lengths(self) -> None:
        self.screen.heading("LENGTHS", "  tokens; each bar is a range of lengths on a logarithmic scale")
        both = (("input", self.load.lengths.input), ("output", self.load.lengths.output))
        known = [(name, lengths) for name, lengths in both if lengths.n]
        for name, lengths in both:
            if not lengths.n:
                self.screen.line(f"  {name:<8}", lengths.reason or "not known", style="dim")
        if known:
            self.screen.console.print(self._length_table(known))
        ratio, rank = self.load.lengths.input_output_ratio, self.load.lengths.correlation_rank
        if ratio is not None:
            together = "" if rank is None else f"; rank correlation of input and output {rank:.2f}"
            self.screen.line("  ", f"{digits(ratio)} input tokens for each output token{together}")

    def _length_table(self, known: list[tuple[str, LengthDistribution]]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
        table.add_column("  ", no_wrap=True, min_width=8)
        for header in ("min", "p50", "p90", "p99", "max", "mean", "CV", "longest\n1% hold"):
            table.add_column(header, justify="right", vertical="bottom", overflow="fold")
        if self.screen.console.width >= 90:
            table.add_column("", overflow="fold")
        for name, lengths in known:
            cells = [
                f"  {name}",
                f"{lengths.min_tokens:,}",
                *(_tokens(lengths.percentile(percent)) for percent in (50, 90, 99)),
                f"{lengths.max_tokens:,}",
                _tokens(lengths.mean_tokens),
                "–" if lengths.cv is None else f"{lengths.cv:.2f}",
                "–" if lengths.longest_1pct_token_share is None else f"{lengths.longest_1pct_token_share:.0%}",
            ]
            if self.screen.console.width >= 90 and lengths.histogram is not None:
                cells.append(sparkline([float(n) for n in lengths.histogram.requests], utf=self.screen.utf))
            table.add_row(*(Text(self.screen.safe(cell)) if cell.strip() else Text(cell) for cell in cells))
        return table

    def _arrivals(self) -> None:
        arrivals = self.load.arrivals
        if not arrivals.segments:
            return
        self.screen.heading("LOAD OVER TIME")
        self._course()
        whole = arrivals.whole
        if whole is None:
            parts = f"{len(arrivals.segments) + arrivals.other_segments} parts; the largest:"
            whole = max(arrivals.segments, key=lambda segment: segment.requests)
            rate = f", {digits(whole.rate_per_s)} requests/s" if whole.rate_per_s else ""
            self.screen.line("  parts     ", f"{parts} {whole.requests:,} requests{rate}")
        self.screen.line("  bursts    ", _bursts(whole))
        if whole.rate_note is not None:
            self.screen.line("  rate      ", whole.rate_note)
        if whole.daily is not None:
            daily = whole.daily
            often = {True: ", and it repeats", False: ", but it does not repeat", None: ""}[daily.repeats]
            self.screen.line(
                "  day       ",
                f"the busiest hour ({daily.busiest_hour} h after the first arrival's) has"
                f" {daily.busiest_over_mean:.2g} times the mean rate{often}",
            )
        self._windows()

    def _course(self) -> None:
        course = self.analysis.course
        values = course.tokens_per_s or course.requests_per_s
        if not values or course.part_s is None:
            return
        unit = "tokens/s" if course.tokens_per_s else "requests/s"
        shown = narrowed(values, max(10, self.screen.console.width - _MARGIN))
        bars = sparkline(shown, utf=self.screen.utf)
        self.screen.line("  ", f"|{bars}| {unit} that arrive, up to {digits(max(shown))}")

    def _windows(self) -> None:
        windows = self.load.windows
        self.screen.line("  windows   ", windows.text)
        chosen = [
            (name, found.window)
            for name, found in (("peak", windows.peak), ("off-peak", windows.off_peak))
            if found is not None
        ]
        for name, window in chosen:
            self.screen.line(f"    {name:<9} ", _window(window))

    def _batches(self) -> None:
        waste = self.load.batch_waste
        if waste.reason is not None:
            self.screen.line("STATIC BATCHES  ", waste.reason, head_style="bold", style="dim")
            return
        parts = [
            f"{entry.batch_size}: {entry.arrival_order_share:.1%} ({entry.sorted_nearby_share:.1%},"
            f" {entry.sorted_all_share:.1%})"
            for entry in waste.sizes
            if entry.batch_size in _BATCHES
        ]
        self.screen.line(
            "STATIC BATCHES  ",
            f"slots wasted at a batch of {'; '.join(parts)} (in arrival order; sorted by length among 8 batches' worth;"
            " at best)",
            head_style="bold",
        )

    def _demand(self) -> None:
        demand = self.load.demand
        segments = [segment for segment in demand.segments if segment.live_tokens is not None]
        if not segments:
            reason = demand.reason or "; ".join(filter(None, (segment.reason for segment in demand.segments)))
            self.screen.line("MEMORY  ", f"not known over time: {reason}", head_style="bold", style="dim")
            return
        largest = max(segments, key=lambda segment: segment.requests)
        self.screen.heading("MEMORY", f"  KV of requests that run at the same time; service times {largest.service}")
        if len(demand.segments) + demand.other_segments > 1:
            parts = len(demand.segments) + demand.other_segments
            self.screen.line("  ", f"of the largest of {parts} parts, {largest.requests:,} requests")
        self._of_segment(largest)

    def _of_segment(self, segment: SegmentDemand) -> None:
        tokens, requests = segment.live_tokens, segment.live_requests
        if tokens is None or requests is None:
            return
        self.screen.line(
            "  live      ",
            f"p50 {_tokens(tokens.p50)}, p99 {_tokens(tokens.p99)}, most {_tokens(tokens.max)} tokens; requests p50"
            f" {_tokens(requests.p50)}, p99 {_tokens(requests.p99)}, most {_tokens(requests.max)}",
        )
        for block in segment.blocks:
            self.screen.line(
                "  blocks    ",
                f"of {block.block_size}: most {_tokens(block.tokens.max)} tokens, {block.unwritten_share:.1%} of the"
                " places without a token",
            )
        wasted = [
            f"{entry.waste_share:.1%} where {entry.kind} is reserved"
            for entry in segment.reservations
            if entry.waste_share is not None
        ]
        if wasted:
            self.screen.line("  reserved  ", f"unused: {'; '.join(wasted)}")
        for note in segment.notes:
            self.screen.line("  note      ", note, style="dim")


def _tokens(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if value >= 10 or value == int(value) else digits(value)


def _bursts(arrivals: SegmentArrivals) -> str:
    parts = []
    if arrivals.character is not None:
        within = f" (in windows of {digits(arrivals.character_window_s or 0, exact=True)} s)"
        parts.append(f"{arrivals.character}{within}")
    if arrivals.interarrival_cv is not None:
        parts.append(f"CV of the times between requests {arrivals.interarrival_cv:.2f}")
    known = [entry for entry in arrivals.dispersions if entry.dispersion is not None and entry.window_s is not None]
    if known:
        shown = ", ".join(f"{digits(entry.dispersion or 0)} in {entry.window_s:.3g} s" for entry in known)
        parts.append(f"index of dispersion {shown} (Poisson: 1)")
    if arrivals.clock.resolution_s is not None and arrivals.clock.resolution_s >= 1e-3:
        parts.append(f"the clock steps by {number(arrivals.clock.resolution_s, 's')}")
    return "; ".join(parts) or arrivals.reason or "not known"


def _window(window: LoadWindow) -> str:
    parts = [
        f"{number(window.start_s, 's')} to {number(window.end_s, 's')}",
        f"{window.requests:,} requests",
    ]
    if window.rate_per_s is not None:
        parts.append(f"{digits(window.rate_per_s)} requests/s")
    if window.tokens_per_s is not None:
        parts.append(f"{digits(window.tokens_per_s)} tokens/s")
    lengths = [
        f"{name} {_tokens(mean)}"
        for name, mean in (("input", window.input_mean_tokens), ("output", window.output_mean_tokens))
        if mean is not None
    ]
    if lengths:
        parts.append(f"mean {', '.join(lengths)}")
    return ", ".join(parts) + f" ({window.load_over_mean:.2g} times the mean load)"
