"""``inferdoc gate compare``: two stored results under a policy. Nothing is measured here."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from inferdoc import __version__
from inferdoc.errors import EXIT_INVALID, EXIT_NOT_COMPARABLE, InputError, NotComparableError, PolicyError
from inferdoc.evidence import Tool
from inferdoc.gate.advice import next_step
from inferdoc.gate.baselines import baseline_path, record
from inferdoc.gate.comparability import compare_all, compare_fields, field_text
from inferdoc.gate.diagnosis_change import diagnosis_changes
from inferdoc.gate.matching import match, unmatched
from inferdoc.gate.policy import Policy
from inferdoc.gate.procedure import geometric_mean, overall
from inferdoc.gate.result import (
    Arm,
    Comparability,
    DesignRecord,
    DiagnosisChange,
    Family,
    GateResult,
    GateVerdict,
    MetricResult,
    MetricVerdict,
    PolicyRecord,
)
from inferdoc.gate.sessions import Session
from inferdoc.gate.stored import read_stored
from inferdoc.gate.stored_judging import beyond_limit, judge_candidate, judge_history, judge_stored

Name = Literal["baseline", "candidate"]
Decision = tuple[GateVerdict, int, str]
"""Verdict, exit code, headline."""


def compare_stored(
    base: Path | None, cand: Path, policy: Policy, *, command: str = "inferdoc gate compare"
) -> GateResult:
    """Compare two stored results: each an ``evidence.json``, a folder with one, or a baseline file.

    Args:
        base: ``None``: where the policy keeps the baseline of the candidate's workload and machine.

    Raises:
        InputError: a file that can't be read, a run that is on both sides, or a policy that does not fit what was
            measured.
        NotComparableError: the policy has no baseline yet, breaks no budget, and does not say to record one.
        InvalidRunError: there is none, the policy says to record one, and the candidate is not clean.
    """
    sessions = read_stored(cand)
    place = base if base is not None else baseline_path(policy, sessions[-1])
    comparing = _Comparing(policy, command, place, cand, sessions)
    if base is None and not place.exists():
        return comparing.without_baseline()
    comparing.baseline = read_stored(place)
    return comparing.result()


@dataclass
class _Comparing:
    """One comparison on its way."""

    policy: Policy
    command: str
    place: Path
    """Of the baseline."""
    cand: Path
    candidate: list[Session]
    """Newest last."""
    baseline: list[Session] = field(default_factory=list)
    """Empty where there is none."""
    began: float = field(default_factory=time.perf_counter)
    notes: list[str] = field(default_factory=list)

    @property
    def history(self) -> bool:
        return self.policy.baseline.mode == "history"

    def without_baseline(self) -> GateResult:
        """Budgets need none: one that is broken decides. Else the candidate is recorded, where the policy says so."""
        place, newest, recording = self.place, self.candidate[-1], self.policy.baseline.missing == "record"
        reason = f"{place}: there is no baseline"
        none = Comparability(status="not comparable", reasons=[reason])
        if _is_invalid(newest):
            return self._gate_result(none, _invalid([newest]), [], [])
        matches = match(self.policy, [], self.candidate)
        results = judge_candidate(matches, self.policy.statistics, history=self.history)
        if results:
            decision = overall(results, [], self.policy.exit)
            if decision[0] is GateVerdict.REGRESSED or (recording and decision[0] is not GateVerdict.PASSED):
                self.notes.append("only budgets were judged, and nothing was recorded")
                return self._gate_result(none, decision, results, [])
        if not recording:
            raise NotComparableError(
                f'{reason}. Record one with `inferdoc gate record`, or set [baseline] missing = "record"'
            )
        if newest.diagnosis is None:
            self._refuse_undiagnosed(self.cand)
        record(place, newest, self.policy.baseline.history_max)
        self.baseline = [newest]
        recorded = (GateVerdict.RECORDED, 0, f"there was no baseline: {newest.name} is now {place}")
        return self._gate_result(Comparability(status="comparable"), recorded, results, [])

    def result(self) -> GateResult:
        base, cand = self.baseline, self.candidate
        self._refuse_shared_runs()
        if self.history:
            comparability = compare_all((base, cand), self.policy.comparable)
        else:
            comparability = compare_fields(base[-1], cand[-1], self.policy.comparable)
        if comparability.status == "not comparable":
            first, *more = comparability.reasons
            text = f"not comparable: {first}" + (f" (and {len(more)} more)" if more else "")
            return self._gate_result(comparability, (GateVerdict.NOT_COMPARABLE, EXIT_NOT_COMPARABLE, text), [], [])
        before, after = self._used()
        if invalid := [session for session in (*before, *after) if _is_invalid(session)]:
            return self._gate_result(comparability, _invalid(invalid), [], [])
        matches = match(self.policy, base, cand)
        results = (judge_history if self.history else judge_stored)(matches, self.policy.statistics)
        changes = self._changes()
        self._note(results)
        return self._gate_result(comparability, overall(results, changes, self.policy.exit), results, changes)

    def _used(self) -> tuple[list[Session], list[Session]]:
        """The sessions of each side that are compared."""
        return (self.baseline, self.candidate) if self.history else (self.baseline[-1:], self.candidate[-1:])

    def _refuse_shared_runs(self) -> None:
        before, after = self._used()
        known = {session.run_id for session in before}
        if shared := [session.name for session in after if session.run_id in known]:
            raise InputError(
                f"{self.cand}: {', '.join(shared)} is in {self.place} too: a run compared with itself shows nothing; "
                "give another one"
            )

    def _changes(self) -> list[DiagnosisChange]:
        on_change = self.policy.diagnosis
        before, after = self.baseline[-1].diagnosis, self.candidate[-1].diagnosis
        if before is not None and after is not None:
            return diagnosis_changes(before, after, on_change)
        side = self.place if before is None else self.cand
        self._refuse_undiagnosed(side)
        self.notes.append(f"{side} holds no diagnosis: the answers were not compared")
        return []

    def _refuse_undiagnosed(self, side: Path) -> None:
        policy, path = self.policy.diagnosis, self.policy.path
        if policy.on_diagnosis_change == "fail":
            raise PolicyError(
                f'[diagnosis] on_diagnosis_change = "fail", but {side} holds no diagnosis; record it again, from '
                "evidence",
                where=path if path is None or policy.line is None else f"{path}:{policy.line}",
            )

    def _note(self, results: list[MetricResult]) -> None:
        if not self.history:
            self.notes.append(
                "stored results can't be paired: differences are advisory, budgets and exact counts decide"
            )
        self.notes += unmatched(self.baseline[-1], self.candidate[-1])
        for name, session in (("baseline", self.baseline[-1]), ("candidate", self.candidate[-1])):
            if session.status != "complete":
                self.notes.append(f"the {name} is {session.status}")
            failed = [check.text for check in session.validity.checks if check.passed is False]
            if name == "baseline" and failed:
                self.notes.append(f"the baseline is {session.validity.status}: {'; '.join(failed)}")

    def _gate_result(
        self,
        comparability: Comparability,
        decision: Decision,
        results: list[MetricResult],
        changes: list[DiagnosisChange],
    ) -> GateResult:
        policy, newest = self.policy, self.candidate[-1]
        verdict, code, headline = decision
        return GateResult(
            tool=Tool(version=__version__, python=platform.python_version()),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            duration_s=time.perf_counter() - self.began,
            command=self.command,
            policy=PolicyRecord(path=policy.path, sha256=policy.sha256 or "") if policy.path else None,
            subject=f"{newest.subject.model} on {newest.workload.source}",
            device=_device(newest),
            baseline=self._arm("baseline", self.place, self.baseline),
            candidate=self._arm("candidate", self.cand, self.candidate),
            comparability=comparability,
            design=DesignRecord(
                mode="history" if self.history else "stored",
                pairs=len(self.candidate) if self.history else 0,
                requests=newest.workload.slice_requests,
                seed=newest.seed or 0,
            ),
            family=self._family(results),
            results=results,
            geometric_mean=geometric_mean(results),
            diagnosis_changes=changes,
            checks=newest.validity.checks,
            verdict=verdict,
            exit_code=code,
            headline=headline,
            next_step=self._next_step(verdict, results, changes),
            notes=self.notes,
        )

    def _next_step(self, verdict: GateVerdict, results: list[MetricResult], changes: list[DiagnosisChange]) -> str:
        """As after a run, except where measuring again is what is needed: a comparison measures nothing."""
        undecided = [r for r in results if r.verdict is MetricVerdict.INCONCLUSIVE and r.role == "fail"]
        needed = [result.pairs_needed for result in undecided if result.pairs_needed]
        if verdict is GateVerdict.INCONCLUSIVE and needed:
            names = ", ".join(result.metric for result in undecided)
            return f"record more sessions (inferdoc gate record): some {max(needed)} a side would decide {names}"
        if verdict in (GateVerdict.REGRESSED, GateVerdict.PASSED) and (
            beyond := [r.metric for r in results if _worse(r)]
        ):
            return f"{', '.join(beyond)}: to decide it, run both in pairs (inferdoc gate run)"
        return next_step(verdict, results, changes, self.command)

    def _family(self, results: list[MetricResult]) -> Family | None:
        if not self.history or not self.baseline or not results:
            return None
        alpha = self.policy.statistics.alpha
        tested = [result for result in results if result.role == "fail" and result.rule == "regression"]
        return Family(method="Holm", alpha=alpha, alpha_of_look=alpha, size=len(tested))

    def _arm(self, name: Name, path: Path, sessions: list[Session]) -> Arm:
        if not sessions:
            return Arm(name=name, model="none", source=str(path), sessions=0)
        newest = sessions[-1]
        return Arm(
            name=name,
            model=newest.subject.model,
            source=str(path),
            settings=newest.subject.engine_config,
            sessions=len(sessions) if self.history else 1,
            notes=[newest.name],
        )


def _invalid(sessions: Iterable[Session]) -> Decision:
    names = ", ".join(session.name for session in sessions)
    return GateVerdict.INVALID, EXIT_INVALID, f"a measurement is invalid: {names}"


def _is_invalid(session: Session) -> bool:
    return session.status == "failed" or session.validity.status == "invalid"


def _worse(result: MetricResult) -> bool:
    """Whether stored results differ by more than the policy allows, which does not fail by itself."""
    return result.verdict is MetricVerdict.ADVISORY and beyond_limit(result)


def _device(session: Session) -> str:
    """The card's name; on a CPU the processor's."""
    fields = session.environment.fields
    named = [fields[name] for name in ("gpu", "processor") if name in fields and fields[name].state == "value"]
    return field_text(named[0]) if named else "not known"
