"""What the rows of a gate say: one wording of changes, limits and verdicts for every output.

A change is printed as the metric's own (candidate over baseline, less 1): +9.5% of a latency is worse, -9.5% of a
throughput is worse. Only its verdict says so, in a word beside an icon.
"""

from __future__ import annotations

from inferdoc.gate.result import (
    DesignRecord,
    DiagnosisChange,
    FieldComparison,
    GateResult,
    GateVerdict,
    MetricResult,
    MetricVerdict,
)
from inferdoc.reports import formatting

FILTERS = (
    *("amount", "baseline", "values", "change", "change_interval", "evidence_words", "limit", "floor", "p_value"),
    *("mark", "standing", "tone", "change_mark", "change_tone", "gate_mark", "gate_tone"),
    *("remarks", "place", "field_words", "field_outcome", "design_words", "detectable_words", "plural"),
)
"""The functions that templates may use."""

_MARKS = {
    MetricVerdict.PASS: "✓",
    MetricVerdict.IMPROVED: "▲",
    MetricVerdict.REGRESSED: "✕",
    MetricVerdict.BROKEN: "✕",
    MetricVerdict.INCONCLUSIVE: "?",
    MetricVerdict.ADVISORY: "–",
}
_WORDS = {
    MetricVerdict.PASS: "passed",
    MetricVerdict.IMPROVED: "improved",
    MetricVerdict.REGRESSED: "regressed",
    MetricVerdict.BROKEN: "over budget",
    MetricVerdict.INCONCLUSIVE: "inconclusive",
    MetricVerdict.ADVISORY: "advisory",
}
_GATE_MARKS = {
    GateVerdict.PASSED: "✓",
    GateVerdict.REGRESSED: "✕",
    GateVerdict.INCONCLUSIVE: "?",
    GateVerdict.NOT_COMPARABLE: "≠",
    GateVerdict.INVALID: "!",
    GateVerdict.INTERRUPTED: "!",
    GateVerdict.RECORDED: "○",
}
_CHANGE_MARKS = {"fail": "✕", "inconclusive": "?", "warn": "!", "info": "–"}


def amount(value: float | None, unit: str) -> str:
    """A value of a metric in its own unit."""
    return formatting.UNKNOWN if value is None else formatting.number(value, unit)


def baseline(result: MetricResult) -> str:
    """The baseline's value; an empty text for a budget, which needs none."""
    return "" if result.baseline is None and result.rule == "budget" else amount(result.baseline, result.unit)


def values(result: MetricResult) -> str:
    """Both sides in one scale: ``412 → 451 ms``; of a budget without a baseline the candidate alone."""
    if result.baseline is None or result.candidate is None:
        return amount(result.candidate if result.baseline is None else result.baseline, result.unit)
    scale = formatting.axis_scale(result.unit, [result.baseline, result.candidate])
    sides = (formatting.cell(side, result.unit, scale) for side in (result.baseline, result.candidate))
    return " → ".join(sides) + scale.suffix


def change(result: MetricResult) -> str:
    """``+9.5%``, or an empty text where there is no ratio."""
    return "" if result.ratio is None else percent(result.ratio - 1)


def change_interval(result: MetricResult) -> str:
    """``[+7.2%..+11.8%]``, or an empty text where there is none."""
    span = result.interval
    return "" if span is None else f"[{percent(span.low - 1)}..{percent(span.high - 1)}]"


def percent(share: float) -> str:
    """A signed relative change: ``+9.5%``, ``-0.3%``, ``+140%``."""
    return f"{share * 100:+,.0f}%" if abs(share) >= 0.9995 else f"{share * 100:+.1f}%"


def exact_percent(share: float) -> str:
    """A limit as the policy gives it: ``5%``, ``0.05%``."""
    return f"{formatting.digits(share * 100, exact=True)}%"


def worsening(result: MetricResult, ratio: float) -> float:
    """`ratio` as a relative change whose sign says worse (above 0) or better, whatever the metric's direction."""
    return 1 - ratio if result.direction == "higher" else ratio - 1


def limit(result: MetricResult) -> str:
    """``5%``, ``at most 0.1%``, ``at least 20 tok/s``, ``the same``; ``none`` for what is only shown."""
    parts = []
    if result.limit is not None:
        parts.append(exact_percent(result.limit))
    if result.max_value is not None:
        parts.append(f"at most {_exact(result.max_value, result.unit)}")
    if result.min_value is not None:
        parts.append(f"at least {_exact(result.min_value, result.unit)}")
    return ", ".join(parts) or ("the same" if result.rule == "exact" else "none")


def floor(result: MetricResult) -> str:
    """``10 ms``, or an empty text."""
    return "" if result.floor is None else _exact(result.floor, result.unit)


def _exact(value: float, unit: str) -> str:
    # A limit of 0.05% is not "<0.1%", as a measured share would be.
    if unit in ("share", "fraction"):
        return exact_percent(value)
    return formatting.number(value, unit, exact=True)


def p_value(p: float | None) -> str:
    """Two significant digits; an empty text where there is none."""
    if p is None:
        return ""
    return "<0.001" if p < 0.001 else f"{p:.2g}"


def evidence_words(result: MetricResult) -> list[str]:
    """The numbers behind a verdict that are not its change: limit, floor, p and n."""
    adjusted = f" (adjusted {p_value(result.p_adjusted)})" if result.p_adjusted is not None else ""
    return [
        *([f"limit {limit(result)}"] if limit(result) != "none" else []),
        *([f"floor {floor(result)}"] if result.floor is not None else []),
        *([f"p={p_value(result.p)}{adjusted}"] if result.p is not None else []),
        f"n={result.n}",
    ]


def mark(result: MetricResult) -> str:
    """The icon of a row; of what is worse but cannot fail, another one."""
    if result.verdict.fails and result.role != "fail":
        return _CHANGE_MARKS[result.role]
    return _MARKS[result.verdict]


def standing(result: MetricResult) -> str:
    """The verdict in words: ``regressed``, ``regressed (warn)``."""
    word = "differs" if result.rule == "exact" and result.verdict is MetricVerdict.REGRESSED else _WORDS[result.verdict]
    if result.verdict is MetricVerdict.BROKEN and result.min_value is not None and result.max_value is None:
        word = "under budget"
    roles = {"fail": "", "warn": " (warn)", "info": " (info)"}
    return word + (roles[result.role] if result.verdict.fails else "")


def tone(result: MetricResult) -> str:
    """The class of a row's badge."""
    if result.verdict.fails:
        return {"fail": "bad", "warn": "caution", "info": "calm"}[result.role]
    good = (MetricVerdict.PASS, MetricVerdict.IMPROVED)
    return "good" if result.verdict in good else "caution" if result.verdict is MetricVerdict.INCONCLUSIVE else "calm"


def change_mark(changed: DiagnosisChange) -> str:
    """The icon of a changed answer."""
    return _CHANGE_MARKS[changed.outcome]


def change_tone(changed: DiagnosisChange) -> str:
    """The class of a changed answer's badge."""
    return {"fail": "bad", "inconclusive": "caution", "warn": "caution", "info": "calm"}[changed.outcome]


def gate_mark(verdict: GateVerdict) -> str:
    """The icon of the whole gate."""
    return _GATE_MARKS[verdict]


def gate_tone(verdict: GateVerdict) -> str:
    """The class of the whole gate's badge."""
    tones = {GateVerdict.PASSED: "good", GateVerdict.RECORDED: "calm", GateVerdict.INCONCLUSIVE: "caution"}
    return tones.get(verdict, "caution" if verdict is GateVerdict.INTERRUPTED else "bad")


def remarks(result: MetricResult) -> list[str]:
    """What else is known of a row: why, whether fresh pairs agreed, what more pairs would tell."""
    said = [result.reason] if result.reason else []
    if result.confirmation is not None:
        again = result.confirmation
        seen = f" ({percent(again.ratio - 1)})" if again.ratio is not None else ""
        said.append(f"{'' if again.confirmed else 'not '}confirmed on {plural(again.pairs, 'fresh pair')}{seen}")
    if result.verdict is MetricVerdict.INCONCLUSIVE and result.pairs_needed is not None:
        said.append(f"needs n={result.pairs_needed} to decide")
    return said


def place(result: GateResult, line: int | None = None) -> str:
    """Where the policy asked for it: ``inferdoc-gate.toml:14``; an empty text for the built-in defaults."""
    if result.policy is None:
        return ""
    return result.policy.path if line is None else f"{result.policy.path}:{line}"


def field_words(field: FieldComparison) -> str:
    """Both sides of a field: ``550.54 / 560.28``, each in one of its four states."""
    before, after = (formatting.environment_value(side) for side in (field.baseline, field.candidate))
    return before if before == after else f"{before} / {after}"


def field_outcome(field: FieldComparison) -> str:
    """What became of a field: ``must match``, ``declared as varying``, ``not known, refused``."""
    state = {"same": "same", "differs": "differs", "unknown": formatting.UNKNOWN}[field.outcome]
    if field.refuses:
        return f"{state}, must match"
    return f"{state}, {'declared as varying' if field.group == 'may_vary' else 'warns only'}"


def design_words(design: DesignRecord) -> str:
    """How it was measured, in one clause each."""
    if design.mode == "stored":
        return "stored results without pairing: differences are advisory"
    parts = [f"{plural(design.pairs, 'session')} of the candidate"]
    if design.mode == "paired":
        longest = f", {design.max_pairs} at most" if design.max_pairs > design.planned_pairs else ""
        parts = [f"{plural(design.pairs, 'pair')} in ABBA order ({design.planned_pairs} planned{longest})"]
    if design.confirm_pairs:
        parts.append(f"{plural(design.confirm_pairs, 'fresh pair')} to confirm")
    if design.warmup_runs:
        parts.append(f"{plural(design.warmup_runs, 'warm-up run')} not counted")
    if design.exclusions:
        parts.append(f"{plural(len(design.exclusions), 'pair')} excluded")
    if design.requests is not None:
        parts.append(f"{plural(design.requests, 'request')} a run")
    if design.load:
        parts.append(design.load)
    return "; ".join(parts)


def plural(number: int, noun: str) -> str:
    """``1 pair``, ``8 pairs``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def detectable_words(result: GateResult) -> str:
    """The smallest changes that this design and this noise can show; an empty text where that is not known."""
    known = [(row.min_detectable, row.metric) for row in result.results if row.min_detectable is not None]
    if not known:
        return ""
    least, most = min(known), max(known)
    span = f"{exact_percent(most[0])} ({most[1]})"
    if len(known) > 1:
        span = f"{exact_percent(least[0])} ({least[1]}) to {span}"
    beyond = [row.metric for row in result.results if _too_coarse(row)]
    note = f"; coarser than the limit for {', '.join(dict.fromkeys(beyond))}" if beyond else ""
    return f"changes for the worse that it shows with 80% power: {span}{note}"


def _too_coarse(row: MetricResult) -> bool:
    return row.limit is not None and row.min_detectable is not None and row.min_detectable > row.limit
