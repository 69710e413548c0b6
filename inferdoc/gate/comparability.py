"""Whether two sessions may be compared at all: machine, model, workload and probes, field by field."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Set
from difflib import get_close_matches
from functools import partial

from inferdoc.errors import PolicyError
from inferdoc.evidence import EnvironmentField
from inferdoc.gate.policy import ComparablePolicy
from inferdoc.gate.result import Comparability, FieldComparison, FieldGroup
from inferdoc.gate.sessions import Session
from inferdoc.rules import wording

_ENVIRONMENT = {
    "gpu.model": "gpu",
    "gpu.form_factor": "gpu_form_factor",
    "gpu.count": "gpu_count",
    "gpu.mig": "gpu_mig",
    "driver": "driver",
    "cuda": "cuda",
    "power_limit": "power_limit",
    "clocks.locked": "clocks_locked",
    "torch": "torch",
    "python": "python",
    "source.commit": "source_commit",
}
_WORK = ("workload.slice", "workload.length_scale", "workload.replicas", "run.seed", "run.objective", "run.slo")
"""Checked whatever the policy's ``must_match`` says: another slice of the trace is other work, another arrival seed
another load, another objective another question. ``workload.fingerprint`` covers the rows of the whole trace, its block
size and its scale."""


def _value(value: str | float | None, source: str, *, none: str = "unknown") -> EnvironmentField:
    if value is None:
        return EnvironmentField.model_validate({"state": none, "source": source})
    return EnvironmentField(state="value", value=value, source=source)


def _recorded(session: Session, name: str) -> EnvironmentField:
    return session.environment.fields.get(name) or EnvironmentField(state="unknown", source="not recorded")


def _host(session: Session) -> EnvironmentField:
    """The processor, with as many cores and threads of it as the run had."""
    processor = _recorded(session, "processor")
    if processor.state != "value":
        return processor
    counts = [(name, session.environment.fields.get(name)) for name in ("cores", "threads")]
    parts = [f"{field.value:g} {name}" for name, field in counts if field and isinstance(field.value, int | float)]
    return processor.model_copy(update={"value": ", ".join([str(processor.value), *parts])})


def _slice(session: Session) -> EnvironmentField:
    workload = session.workload
    described = workload.slice_window or (f"{workload.slice_requests} requests" if workload.slice_requests else None)
    return _value(described, "workload", none="not_applicable")


def _objectives(session: Session) -> str:
    limits = [f"{slo.metric} <= {wording.number(slo.limit)} {slo.unit}" for slo in session.slo]
    return ", ".join(sorted(limits)) or "none"


def _canonical(settings: dict[str, object]) -> str:
    return json.dumps(settings, sort_keys=True, default=str)


_GETTERS: dict[str, Callable[[Session], EnvironmentField]] = {
    **{field: partial(_recorded, name=name) for field, name in _ENVIRONMENT.items()},
    "host.cpu": _host,
    "model.name": lambda session: _value(session.subject.model, "subject"),
    "model.revision": lambda session: _value(session.subject.revision, "subject"),
    "model.dtype": lambda session: _value(session.subject.dtype, "subject"),
    "engine.version": lambda session: _value(session.tool.version, "tool"),
    "engine.flags": lambda session: _value(_canonical(session.subject.engine_config), "subject"),
    "probe.version": lambda session: _value(session.tool.probes, "tool"),
    "workload.fingerprint": lambda session: _value(session.workload.fingerprint, "workload"),
    "workload.slice": _slice,
    "workload.length_scale": lambda session: _value(session.workload.length_scale, "workload"),
    "workload.replicas": lambda session: _value(session.workload.replicas, "workload"),
    "run.seed": lambda session: _value(session.seed, "run", none="not_applicable"),
    "run.objective": lambda session: _value(session.objective, "run", none="not_applicable"),
    "run.slo": lambda session: _value(_objectives(session), "run"),
}
FIELDS = tuple(_GETTERS)
"""Every field that a policy may name."""


def compare_fields(
    base: Session, cand: Session, policy: ComparablePolicy, declared: Set[str] = frozenset()
) -> Comparability:
    """Field by field: the same, different, or not known; and what of it refuses the comparison.

    Args:
        declared: fields that the arms of a paired run are meant to differ in.

    Raises:
        PolicyError: the policy names a field that there is not.
    """
    on_cpu = _on_cpu(base) and _on_cpu(cand)
    groups = _groups(policy, declared, on_cpu=on_cpu)
    compared = [_compare(field, group, base, cand, policy) for field, group in groups.items()]
    reasons = [_reason(item, on_cpu=on_cpu) for item in compared if item.refuses]
    reasons += filter(None, [_mixed(base, "baseline"), _mixed(cand, "candidate")])
    varying = [item for item in compared if item.group == "may_vary"]
    return Comparability(
        status="not comparable" if reasons else "comparable",
        fields=[item for item in compared if item.outcome != "same" or item.group == "may_vary"],
        did_not_vary=[item.field for item in varying if item.outcome == "same"],
        reasons=reasons,
    )


def compare_all(sides: tuple[list[Session], list[Session]], policy: ComparablePolicy) -> Comparability:
    """Every session of two histories against the newest of the baseline.

    The fields are those of the two newest; the reasons are of all, each once.
    """
    base, cand = sides
    newest = compare_fields(base[-1], cand[-1], policy)
    reasons = list(newest.reasons)
    for session in (*base[:-1], *cand[:-1]):
        reasons += [f"{session.name}: {reason}" for reason in compare_fields(base[-1], session, policy).reasons]
    return newest.model_copy(
        update={"status": "not comparable" if reasons else "comparable", "reasons": list(dict.fromkeys(reasons))}
    )


def _groups(policy: ComparablePolicy, declared: Set[str], *, on_cpu: bool) -> dict[str, FieldGroup]:
    """The group of each field, in the order of the policy."""
    named: dict[str, FieldGroup] = {}
    order: list[tuple[Iterable[str], FieldGroup]] = [
        (sorted(declared), "may_vary"),
        (policy.must_match, "must_match"),
        (policy.may_vary, "may_vary"),
        (policy.warn, "warn"),
    ]
    for fields, group in order:
        for field in fields:
            if field not in _GETTERS:
                close = get_close_matches(field, _GETTERS, n=1)
                hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(FIELDS)}"
                raise PolicyError(f"there is no field '{field}' to compare{hint}")
            named.setdefault(field, group)
    for field in _WORK:
        named.setdefault(field, "must_match")
    if on_cpu and named.get("host.cpu") != "may_vary":
        named["host.cpu"] = "must_match"
    return named


def _compare(field: str, group: FieldGroup, base: Session, cand: Session, policy: ComparablePolicy) -> FieldComparison:
    before, after = _GETTERS[field](base), _GETTERS[field](cand)
    known = ("value", "not_applicable")
    if before.state not in known or after.state not in known:
        return FieldComparison(
            field=field,
            group=group,
            baseline=before,
            candidate=after,
            outcome="unknown",
            refuses=group == "must_match" and policy.unknown == "refuse",
        )
    same = (before.state, before.value, before.unit) == (after.state, after.value, after.unit)
    if field == "engine.flags" and not same:
        before, after = _differing(base, cand)
    return FieldComparison(
        field=field,
        group=group,
        baseline=before,
        candidate=after,
        outcome="same" if same else "differs",
        refuses=group == "must_match" and not same,
    )


def _differing(base: Session, cand: Session) -> tuple[EnvironmentField, EnvironmentField]:
    """The settings that differ, and no others."""
    sides = base.subject.engine_config, cand.subject.engine_config
    keys = [key for key in sorted({*sides[0], *sides[1]}) if sides[0].get(key) != sides[1].get(key)]
    before, after = ({key: side[key] for key in keys if key in side} for side in sides)
    source = "settings that differ"
    return _value(_canonical(before), source), _value(_canonical(after), source)


def _on_cpu(session: Session) -> bool:
    return _recorded(session, "gpu").state == "not_applicable"


def _mixed(session: Session, side: str) -> str | None:
    """A run on unlike cards has no one device that its numbers are of."""
    names = {name.strip() for name in str(_recorded(session, "gpu_models").value or "").split(",") if name.strip()}
    if len(names) < 2:
        return None
    return (
        f"the {side} ran on unlike GPUs ({', '.join(sorted(names))}): its numbers are of no one device; run on one "
        "kind, for example with CUDA_VISIBLE_DEVICES"
    )


def field_text(field: EnvironmentField) -> str:
    """The value, or in words which of the other three states the field is in."""
    if field.state == "value" and field.value is not None:
        value = field.value if isinstance(field.value, str) else f"{field.value:g}"
        return f"{value} {field.unit}" if field.unit else value
    words = {"not_applicable": "not applicable", "error": "could not be read"}
    return f"{words.get(field.state, 'not known')} ({field.source})"


def _reason(item: FieldComparison, *, on_cpu: bool) -> str:
    """What differs, with both values, and how to mend it."""
    sides = f"{field_text(item.baseline)} (baseline), {field_text(item.candidate)} (candidate)"
    label = f"{item.field} (the device here)" if item.field == "host.cpu" and on_cpu else item.field
    if item.outcome == "unknown":
        mend = 'record both with this version, or set [comparable] unknown = "warn"'
        return f"{label} is not known on both sides: {sides}; {mend}"
    if item.field.startswith("run.") or item.field in _WORK:
        mend = "measure both in the same way"
    elif item.field.startswith("workload."):
        mend = "measure both on the same trace"
    else:
        mend = "record a baseline like the candidate's (inferdoc gate record)"
    return f'{label} differs: {sides}; {mend}, or list "{item.field}" under [comparable] may_vary'
