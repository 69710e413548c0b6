"""What a trace tells of the reuse of its prompts, on the terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from inferdoc.reports.formatting import number
from inferdoc.reports.terminal import Screen
from inferdoc.traces.analysis import TraceAnalysis
from inferdoc.traces.prefix_analysis import BlockSizeReuse, PrefixAnalysis
from inferdoc.traces.reuse import ReusedPrefix

_UNKNOWN = "–"
_TOP = 3
_BREAKERS = 6


class PrefixView:
    def __init__(self, screen: Screen, analysis: TraceAnalysis, *, show_text: bool) -> None:
        self.screen = screen
        self.analysis = analysis
        self.prefixes: PrefixAnalysis = analysis.prefixes
        self.show_text = show_text

    def print(self) -> None:
        prefixes = self.prefixes
        if prefixes.reason is not None:
            self.screen.line("PREFIXES  ", f"unknown: {prefixes.reason}", head_style="bold", style="dim")
        else:
            self._headline()
            self.screen.console.print(self._sizes())
            self._budgets()
            self._whose()
            self._top()
            self._routing()
            for note in prefixes.notes:
                self.screen.line("  note      ", note, style="dim")
        self._breakers()

    def _headline(self) -> None:
        prefixes = self.prefixes
        first = next(entry for entry in prefixes.block_sizes if entry.block_size == prefixes.block_size)
        about = " (lengths estimated from bytes)" if prefixes.estimated else ""
        text = f"an unlimited cache serves {_share(first.hit_rate)} of the prompt tokens in blocks of"
        self.screen.line("PREFIXES  ", f"{text} {first.block_size} tokens{about}", head_style="bold", style="bold")

    def _sizes(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
        headers = ("  block", "hit rate\ntokens", "blocks", "full\nblocks", "requests\nthat hit")
        for header in (*headers, "cache for\n50% of it", "\n90%", "\n99%"):
            table.add_column(header, justify="right", vertical="bottom", overflow="fold")
        for entry in self.prefixes.block_sizes:
            if entry.hit_rate is not None:
                table.add_row(*(Text(self.screen.safe(cell)) for cell in _cells(entry)))
        return table

    def _budgets(self) -> None:
        prefixes = self.prefixes
        unknown = [entry for entry in prefixes.block_sizes if entry.hit_rate is None]
        for entry in unknown:
            self.screen.line(f"  {entry.block_size:>5}  ", entry.reason or "not known", style="dim")
        for entry in prefixes.block_sizes:
            if entry.cache is not None and entry.cache.at:
                points = ", ".join(f"{at.capacity_tokens:,}: {_share(at.hit_rate)}" for at in entry.cache.at)
                self.screen.line(
                    "  budgets   ", f"hit rate by tokens of KV cache, in blocks of {entry.block_size}: {points}"
                )

    def _whose(self) -> None:
        prefixes, parts = self.prefixes, []
        if prefixes.sessions is not None and prefixes.sessions.same_session_share is not None:
            own = prefixes.sessions.same_session_share
            parts.append(f"{own:.0%} of the hits are within a session, {1 - own:.0%} only across")
        if prefixes.unique_prompt_share is not None:
            parts.append(f"{prefixes.unique_prompt_share:.0%} of the prompts are different")
        if prefixes.common_prefix_tokens:
            parts.append(f"all begin with the same {prefixes.common_prefix_tokens:,} tokens")
        anywhere = prefixes.any_position
        if anywhere is not None and anywhere.note is None:
            parts.append(f"{_share(anywhere.hit_rate)} of the tokens repeat at some position ({anywhere.unit})")
        if parts:
            self.screen.line("  reuse     ", "; ".join(parts))

    def _top(self) -> None:
        first = next(entry for entry in self.prefixes.block_sizes if entry.block_size == self.prefixes.block_size)
        for position, entry in enumerate(self.prefixes.most_reused[:_TOP]):
            self.screen.line("  top       " if not position else "            ", _reused(entry, first.hit_tokens))

    def _routing(self) -> None:
        found = [entry for entry in self.prefixes.routing if entry.hit_rate is not None and entry.replicas > 1]
        if not any(entry.hit_rate for entry in found):
            return
        parts = []
        for replicas in sorted({entry.replicas for entry in found}):
            rates = ", ".join(
                f"{entry.policy.value} {_share(entry.hit_rate)}" for entry in found if entry.replicas == replicas
            )
            parts.append(f"{replicas} replicas: {rates}")
        for position, text in enumerate(parts):
            self.screen.line("  routing   " if not position else "            ", text)

    def _breakers(self) -> None:
        order, breakers = self.analysis.component_order, self.analysis.breakers
        if order.sentence is not None:
            self.screen.line("ORDER  ", order.sentence, head_style="bold")
        if breakers.reason is not None:
            return
        rate, ideal = _share(breakers.hit_rate), _share(breakers.ideal_hit_rate)
        if not breakers.breakers:
            self.screen.line("BREAKERS  ", f"none found that would raise the {rate}", head_style="bold")
        else:
            self.screen.heading(
                "BREAKERS", f"  what differs early in prompts that agree later: {rate} now, {ideal} without"
            )
        for entry in breakers.breakers[:_BREAKERS]:
            self.screen.line("  ✕ ", entry.sentence, head_style="red")
            if self.show_text:
                self.screen.line("      ", entry.example, style="dim")
        if len(breakers.breakers) > _BREAKERS:
            self.screen.line("    ", f"{len(breakers.breakers) - _BREAKERS} more with --json", style="dim")
        for note in breakers.notes:
            self.screen.line("  note      ", note, style="dim")


def _share(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    return "<0.1%" if 0 < value < 0.001 else f"{value:.1%}" if value else "0%"


def _cells(entry: BlockSizeReuse) -> list[str]:
    reach = {at.ideal_share: f"{at.capacity_tokens:,}" for at in (entry.cache.reach if entry.cache else ())}
    return [
        f"  {entry.block_size}",
        _share(entry.hit_rate),
        _share(entry.block_hit_rate),
        _share(entry.full_block_hit_rate),
        _share(entry.shared_request_share),
        *(reach.get(share, _UNKNOWN) for share in (0.5, 0.9, 0.99)),
    ]


def _reused(entry: ReusedPrefix, hit_tokens: int | None) -> str:
    share = f" ({entry.saved_tokens / hit_tokens:.0%} of the hits)" if hit_tokens else ""
    parts = [
        f"tokens {entry.from_tokens:,} to {entry.depth_tokens:,} of {entry.requests:,} prompts save"
        f" {entry.saved_tokens:,}{share}"
    ]
    if entry.first_seen_s is not None:
        parts.append(f"first at {number(entry.first_seen_s, 's')}")
    if entry.median_interval_s is not None:
        parts.append(f"again after {number(entry.median_interval_s, 's')}")
    parts.append(f"{entry.median_distance_tokens:,.0f} other tokens between")
    return ", ".join(parts)
