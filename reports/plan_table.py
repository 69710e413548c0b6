"""Plans on the terminal: one table, the notes it refers to, and what the sizes rest on."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from inferdoc.evidence import Basis
from inferdoc.models.listing import PlanEntry, PlanReport
from inferdoc.models.planning import Plan
from inferdoc.models.splitting import Split
from inferdoc.reports.formatting import digits
from inferdoc.reports.terminal import Screen, make_console

_WIDE = 108
"""Columns of a terminal that hold the table; a narrower one has each model's numbers in words."""
_GIB = 2**30
_MIB = 2**20
_NONE = "–"
_SPLITS = 6
"""Splits that are told of a single model."""
_HEADERS = (
    "params 10^9",
    "active 10^9",
    "weights GiB",
    "bf16",
    "8 bit",
    "int4",
    "KV MiB",
    "cards",
    "KV tokens",
    "batch",
    "notes",
)


def print_plans(report: PlanReport, console: Console | None = None) -> None:
    """Print to `console` (default: standard output)."""
    _PlanScreen(console or make_console(), report).print()


def split_text(split: Split) -> str:
    """``1``, ``4 TP4``, ``16 TP8 × PP2``, ``8 TP8 EP``."""
    ways = [("TP", split.tensor_parallel), ("PP", split.pipeline_parallel)]
    named = " × ".join(f"{name}{ranks}" for name, ranks in ways if ranks > 1)
    return f"{split.gpus} {named}".strip() + (" EP" if split.needs else "")


class _PlanScreen(Screen):
    def __init__(self, console: Console, report: PlanReport) -> None:
        super().__init__(console)
        self.report = report
        self.notes: list[str] = []

    def print(self) -> None:
        self._header()
        rows = [(entry, self._cells(entry)) for entry in self.report.models]
        self._wide(rows) if self.console.width >= _WIDE else self._narrow(rows)
        self._legend()
        if self.notes:
            self.heading("NOTES")
            for number, note in enumerate(self.notes, start=1):
                self.line(f" {number:>2} ", note)
        if len(self.report.models) == 1:
            self._splits(self.report.models[0].plan)
        self.heading("RESTS ON")
        for assumption in self.report.assumptions:
            self.line("    ", assumption, style="dim")
        if self.report.skipped:
            self.line("SKIPPED  ", "; ".join(self.report.skipped), head_style="bold", style="dim")

    def _header(self) -> None:
        card, settings = self.report.card, self.report.settings
        share = f"{settings.gpu_memory_utilization:g} of it for weights, overhead and KV"
        told = card.memory_source
        if card.basis is Basis.SPEC:
            kind = "from the spec sheet" if told == card.source else "as others report it"
            told = f"{kind}, not measured here: {told}"
        memory = f"{card.name}, {digits(card.memory_bytes / _GIB)} GiB ({told}), {share}"
        sequences = "one sequence" if settings.batch == 1 else f"{settings.batch:,} sequences"
        asked = [
            f"{sequences} of {settings.context_tokens:,} tokens",
            f"weights {settings.weight_dtype or 'as stored'}",
            f"KV cache {settings.kv_cache_dtype or 'as the checkpoint asks, else 16 bits'}",
            f"step of {settings.step_tokens:,} tokens and {settings.step_sequences:,} sequences",
        ]
        self.line("PLAN  ", memory, head_style="bold")
        self.line("      ", "; ".join(asked))

    def _cells(self, entry: PlanEntry) -> tuple[str, ...]:
        plan = entry.plan
        if plan is None:
            return ()
        about = "" if plan.parameters_exact else "~"
        stored = plan.weight_bytes_by_dtype
        split = plan.split
        return (
            about + digits(plan.parameters / 1e9),
            about + digits(plan.active_parameters / 1e9),
            about + digits(plan.weight_bytes / _GIB),
            *(about + digits(stored[dtype] / _GIB) for dtype in ("bf16", "int8", "int4")),
            _kv(plan),
            _NONE if plan.fewest_split is None else split_text(plan.fewest_split),
            _NONE if split is None else f"{split.kv_tokens:,}",
            _NONE if split is None else f"{split.largest_batch:,}",
            ",".join(map(str, sorted(self._note(note) for note in plan.notes))),
        )

    def _note(self, note: str) -> int:
        if note not in self.notes:
            self.notes.append(note)
        return self.notes.index(note) + 1

    def _wide(self, rows: Iterable[tuple[PlanEntry, tuple[str, ...]]]) -> None:
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        table.add_column("model", overflow="fold")
        for header in _HEADERS:
            justify: JustifyMethod = "left" if header in ("cards", "notes") else "right"
            table.add_column(header.replace(" ", "\n"), overflow="fold", justify=justify)
        for entry, cells in rows:
            table.add_row(self._name(entry), *(Text(self.safe(cell)) for cell in cells))
        self.console.print(table)

    def _narrow(self, rows: Iterable[tuple[PlanEntry, tuple[str, ...]]]) -> None:
        for entry, cells in rows:
            self.console.print(self._name(entry), overflow="fold", crop=False)
            if cells:
                told = zip(_HEADERS, cells, strict=True)
                self.line("  ", "; ".join(f"{header} {cell}" for header, cell in told if cell))

    def _name(self, entry: PlanEntry) -> Text:
        if entry.plan is not None:
            return Text(self.safe(entry.plan.model))
        return Text(self.safe(f"{entry.source}: cannot be sized: {entry.reason}"), style="yellow")

    def _legend(self) -> None:
        gpus = self.report.settings.gpus
        on = "the fewest cards that hold it" if gpus is None else f"{gpus} card{'s' if gpus > 1 else ''}"
        self.line(
            "    ",
            "KV: of a sequence, what grows with its length + i index keys + w what sliding windows keep + f fixed "
            "state; cards: the fewest that hold it, with as much TP as fits; KV tokens and batch: on "
            f"{on}; ~ estimated by formula, or with sizes that are defaults",
            style="dim",
        )

    def _splits(self, plan: Plan | None) -> None:
        if plan is None or plan.split is None:
            return
        of = plan.split.gpus
        self.heading("SPLITS", f"  of {of} card{'s' if of > 1 else ''}, most tensor parallelism first, EP last")
        for split in plan.splits[:_SPLITS] or [plan.split]:
            overhead = split.activation_bytes + split.outside_bytes
            room = "free for KV" if split.kv_free_bytes >= 0 else "lacking"
            self.line(
                f"  {self.safe(split_text(split))}  ",
                f"weights {digits(split.weight_bytes / _GIB)}, overhead {digits(overhead / _GIB)} (modelled), "
                f"{digits(abs(split.kv_free_bytes) / _GIB)} GiB {room}: {split.kv_tokens:,} tokens, "
                f"batch {split.largest_batch:,}"
                + ("" if split.fits else "; does not fit")
                + (f"; needs {split.needs}" if split.needs else ""),
            )


def _kv(plan: Plan) -> str:
    parts = [
        (plan.kv.growing_bytes, ""),
        (plan.kv.index_bytes, "i"),
        (plan.kv.windowed_bytes, "w"),
        (plan.kv.fixed_bytes, "f"),
    ]
    return "+".join(f"{digits(size / _MIB)}{mark}" for size, mark in parts if size) or "0"
