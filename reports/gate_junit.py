"""A gate's result as JUnit XML, which every CI service reads: a test case for each limit and each changed answer.

failure: regressed or over budget. error: not comparable, or the measurement is invalid. skipped: inconclusive,
advisory, or only told.
"""

from __future__ import annotations

from xml.etree import ElementTree

from inferdoc.gate.result import DiagnosisChange, GateResult, GateVerdict, MetricResult
from inferdoc.reports import gate_formatting as words
from inferdoc.reports.gate_outline import GateOutline, gate_outline
from inferdoc.reports.text import xml_safe

_CLASS = "inferdoc.gate"
_ERRORS = (GateVerdict.NOT_COMPARABLE, GateVerdict.INVALID, GateVerdict.INTERRUPTED)
_TALLIES = ("failure", "error", "skipped")


def render_junit(result: GateResult) -> str:
    """The whole document: XML 1.0 whatever stands in the result."""
    told = gate_outline(result)
    suite = ElementTree.Element("testsuite", name=_CLASS, timestamp=xml_safe(result.started_at))
    _properties(
        suite,
        {
            "verdict": result.verdict.value,
            "exit_code": str(result.exit_code),
            "subject": result.subject,
            "device": result.device,
            "design": words.design_words(result.design),
            "detectable": words.detectable_words(result),
            "policy": words.place(result),
            "command": result.command,
            "version": result.tool.version,
        },
    )
    _whole(suite, result, told)
    for row in told.rows:
        _metric(suite, result, row, failing=row in told.failing)
    for changed in told.changes:
        _change(suite, result, changed)
    cases = suite.findall("testcase")
    tally = {f"{name}s" if name != "skipped" else name: str(_count(cases, name)) for name in _TALLIES}
    tally |= {"tests": str(len(cases)), "time": f"{result.duration_s:.3f}"}
    suite.attrib.update(tally)
    document = ElementTree.Element("testsuites", {"name": "inferdoc", **tally})
    document.append(suite)
    ElementTree.indent(document, " ")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(document, encoding="unicode")}\n'


def _whole(suite: ElementTree.Element, result: GateResult, told: GateOutline) -> None:
    """The comparison as such: its time is that of all the runs, which the metrics share."""
    case = _case(suite, result, "comparison", seconds=result.duration_s)
    detail = "\n".join((*told.troubles, *(f"{c.name}: {c.text}" for c in told.failed_checks), result.next_step))
    if result.verdict in _ERRORS:
        _outcome(case, "error", result.verdict.value, result.headline, detail)
    elif result.verdict is GateVerdict.RECORDED:
        _outcome(case, "skipped", result.verdict.value, result.headline, detail)


def _metric(suite: ElementTree.Element, result: GateResult, row: MetricResult, *, failing: bool) -> None:
    case = _case(suite, result, f"{row.metric} ({row.rule})", line=row.policy_line)
    shown = {
        "label": row.label,
        "verdict": words.standing(row),
        "role": row.role,
        "baseline": words.baseline(row),
        "candidate": words.amount(row.candidate, row.unit),
        "change": f"{words.change(row)} {words.change_interval(row)}".strip(),
        "limit": words.limit(row),
        "floor": words.floor(row),
        "p": words.p_value(row.p),
        "p_adjusted": words.p_value(row.p_adjusted),
        "n": str(row.n),
        "remarks": "; ".join(words.remarks(row)),
    }
    _properties(case, shown)
    change = f"{words.values(row)} {shown['change']}".strip()
    message = f"{row.label}: {words.standing(row)}: {change}; {'; '.join(words.evidence_words(row))}"
    detail = "\n".join((*words.remarks(row), f"{result.command}"))
    if failing:
        _outcome(case, "failure", row.verdict.value, message, detail)
    elif words.tone(row) != "good":
        _outcome(case, "skipped", row.verdict.value, message, "")


def _change(suite: ElementTree.Element, result: GateResult, changed: DiagnosisChange) -> None:
    name = f"{changed.question.value}/{changed.technique}: {changed.kind}"
    case = _case(suite, result, name, line=changed.policy_line)
    _properties(case, {"title": changed.title, "before": changed.before, "after": changed.after, "text": changed.text})
    if changed.outcome == "fail":
        _outcome(case, "failure", changed.kind, changed.text, result.command)
    elif changed.outcome != "info":
        _outcome(case, "skipped", changed.kind, changed.text, "")


def _case(
    suite: ElementTree.Element, result: GateResult, name: str, *, line: int | None = None, seconds: float = 0.0
) -> ElementTree.Element:
    where = {} if result.policy is None else {"file": xml_safe(result.policy.path)}
    if where and line is not None:
        where["line"] = str(line)
    attributes = {"classname": _CLASS, "name": xml_safe(name), "time": f"{seconds:.3f}", **where}
    return ElementTree.SubElement(suite, "testcase", attributes)


def _properties(parent: ElementTree.Element, values: dict[str, str]) -> None:
    properties = ElementTree.SubElement(parent, "properties")
    for name, value in values.items():
        if value:
            ElementTree.SubElement(properties, "property", name=name, value=xml_safe(value))


def _outcome(case: ElementTree.Element, kind: str, type: str, message: str, detail: str) -> None:
    outcome = ElementTree.SubElement(case, kind, message=xml_safe(message))
    if kind != "skipped":
        outcome.set("type", type)
    outcome.text = "\n".join(map(xml_safe, detail.splitlines())) or None


def _count(cases: list[ElementTree.Element], kind: str) -> int:
    return sum(case.find(kind) is not None for case in cases)
