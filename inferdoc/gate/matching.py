"""Which stored measurement each metric of a policy is, on both sides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NoReturn

from inferdoc.errors import PolicyError
from inferdoc.gate.amounts import check_units, same_unit
from inferdoc.gate.policy import MetricPolicy, Policy
from inferdoc.gate.registry import RUN_METRICS
from inferdoc.gate.sessions import Measured, Session

_STORED_NAMES = {"output_tok_s": "throughput"}
"""What evidence calls a metric of ``gate run`` that it names otherwise."""


@dataclass(frozen=True)
class Match:
    """One metric, with its measurement in each session, newest last; ``None`` where a session lacks it."""

    metric: MetricPolicy
    baseline: list[Measured | None]
    candidate: list[Measured | None]

    @property
    def known(self) -> Measured:
        """The newest there is, for its label, unit and direction."""
        return next(item for item in reversed([*self.baseline, *self.candidate]) if item is not None)


def only_budget(metric: MetricPolicy) -> bool:
    """Whether the candidate alone decides it."""
    return metric.has_budget and metric.max_regression is None and metric.kind != "exact"


def match(policy: Policy, base: Sequence[Session], cand: Sequence[Session]) -> list[Match]:
    """The policy's metrics; without any, every measurement that the newest sessions of both have and that can be better
    or worse, for information.

    Args:
        base: empty where there is no baseline; the policy is then matched with the candidate alone.

    Raises:
        PolicyError: by line, for an id that the newest session of a side lacks, a unit or a limit that does not fit the
            measurement.
    """
    if not policy.metrics:
        ids = [id for id in base[-1].measurements if _shown(id, base[-1], cand[-1])] if base else []
        metrics: Iterable[MetricPolicy] = [MetricPolicy(id=id, role="info") for id in ids]
    else:
        metrics = policy.metrics
    return [_match(metric, policy, base, cand) for metric in metrics]


def unmatched(base: Session, cand: Session) -> list[str]:
    """What one side measured and the other did not, in words."""
    notes = []
    for name, mine, other in (("baseline", base, cand), ("candidate", cand, base)):
        alone = [id for id in _directed(mine) if id not in other.measurements]
        if alone:
            more = f" and {len(alone) - 5} more" if len(alone) > 5 else ""
            notes.append(f"measured in the {name} alone, so not compared: {', '.join(alone[:5])}{more}")
    return notes


def _directed(session: Session) -> list[str]:
    return [id for id, item in session.measurements.items() if item.direction is not None and item.value is not None]


def _shown(id: str, base: Session, cand: Session) -> bool:
    before, after = base.measurements[id], cand.measurements.get(id)
    return after is not None and before.direction is not None and before.value is not None


def _match(metric: MetricPolicy, policy: Policy, base: Sequence[Session], cand: Sequence[Session]) -> Match:
    before, after = ([session.measurements.get(metric.id) for session in side] for side in (base, cand))
    _refuse_lost(metric, policy, "candidate", cand)
    if base and not only_budget(metric):
        _refuse_lost(metric, policy, "baseline", base)
    found = Match(metric, before, after)
    known = found.known
    items = [item for item in (*before, *after) if item is not None]
    if other := [item.unit for item in items if not same_unit(item.unit, known.unit)]:
        _refuse(metric, policy, f"'{metric.id}' is in {known.unit} on one side and in {other[0]} on the other")
    check_units(metric, known.unit, where=policy.path or "the policy")
    if metric.kind == "exact" and any(item.kind != "exact" for item in items):
        _refuse(metric, policy, f"'{metric.id}' is measured with noise, so no two runs agree exactly: leave kind out")
    if metric.max_regression is not None and known.direction is None:
        _refuse(
            metric,
            policy,
            f"neither more nor less of '{metric.id}' is better, so it has no regression: give max_value or min_value",
        )
    return found


def _refuse_lost(metric: MetricPolicy, policy: Policy, name: str, sessions: Sequence[Session]) -> None:
    """Older sessions that had it say nothing of the newest one, which has lost it."""
    newest = sessions[-1]
    if metric.id not in newest.measurements:
        which = f" in its newest session ({newest.name})" if len(sessions) > 1 else ""
        _refuse(metric, policy, f"the {name} has no measurement '{metric.id}'{which}; {_hint(metric.id, newest)}")


def _hint(id: str, session: Session) -> str:
    """The nearest ids that there are; for a metric of ``gate run``, those that evidence has of it."""
    there = list(session.measurements)
    close = get_close_matches(id, there, n=3, cutoff=0.5)
    if id in RUN_METRICS:
        ending = f".{_STORED_NAMES.get(id, id)}.off"
        close = [known for known in there if known.endswith(ending)][:3] or close
    if not close:
        close = _evenly(there)
    return f"there is {', '.join(close)}" if close else "it measured nothing"


def _evenly(ids: Sequence[str]) -> list[str]:
    """Some of them, from all over the list."""
    return list(ids[:: max(1, len(ids) // 5)][:5])


def _refuse(metric: MetricPolicy, policy: Policy, problem: str) -> NoReturn:
    where = policy.where(metric.line)
    raise PolicyError(problem, where=where)
