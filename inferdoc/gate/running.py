"""``inferdoc gate run``: two arms in pairs on one device, decided by `procedure`."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from inferdoc.devices import asked_bytes, describe, is_out_of_memory, release
from inferdoc.diagnosis import INTERRUPTED, collect_evidence, this_tool
from inferdoc.errors import EXIT_INTERRUPTED, EXIT_INVALID, InputError, InvalidRunError, MeasurementError, PolicyError
from inferdoc.evidence import Conclusion, Diagnosis
from inferdoc.gate.advice import next_step
from inferdoc.gate.arms import NAMES
from inferdoc.gate.diagnosis_change import diagnosis_changes
from inferdoc.gate.judging import judge
from inferdoc.gate.paired_run import PairedRun, check_measurable, metric_series, refuse_stored_mode
from inferdoc.gate.pairing import values_of
from inferdoc.gate.policy import Policy
from inferdoc.gate.procedure import Outcome, design_problems, geometric_mean, overall, run_procedure
from inferdoc.gate.result import (
    DesignRecord,
    DiagnosisChange,
    GateResult,
    GateVerdict,
    MetricResult,
    MetricVerdict,
    PolicyRecord,
)
from inferdoc.gate.technique import switched_changes
from inferdoc.progress import Progress
from inferdoc.rules import diagnose, load_pack

_LOG_TAIL = 12
"""Lines of a crash that the result quotes; the whole is in the log."""


def run_gate(policy: Policy, output: Path, progress: Progress, command: str) -> GateResult:
    """Measure both arms and judge them.

    Args:
        output: an existing folder for the arms' logs.

    Returns:
        A result in any case once something was measured: one of a run that was interrupted or failed says so.

    Raises:
        InputError: policy, trace, model or device can't be run as asked; or limits below the calibrated noise.
        InvalidRunError: the command of an arm failed.
        KeyboardInterrupt: before anything was measured.
    """
    check_measurable(policy)
    refuse_stored_mode(policy)
    if problems := design_problems(metric_series(policy), policy.design, policy.statistics):
        raise PolicyError("; ".join(problems), where=policy.path)
    gate = _Gate(PairedRun(policy, output, progress, command), output, command)
    with gate.run.watch:
        gate.measure()
    gate.conclude()
    progress.close()
    return gate.result()


@dataclass
class _Gate:
    """One gate on its way: what is known so far, and a result made of it at any time."""

    run: PairedRun
    output: Path
    command: str
    began: float = field(default_factory=time.perf_counter)
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    outcome: Outcome | None = None
    changes: list[DiagnosisChange] = field(default_factory=list)
    ended: tuple[GateVerdict, int, str] | None = None
    """Verdict, exit code and headline where the metrics have no say: interrupted, or a measurement failed."""

    @property
    def policy(self) -> Policy:
        return self.run.policy

    def measure(self) -> None:
        """Load the arms, warm up, then run pairs until `procedure` has decided."""
        run, policy = self.run, self.policy
        with self._ending():
            run.prepare()
            if run.comparability.status == "not comparable":
                return
            run.check_noise()
            run.progress.stage("warming up")
            run.pairing.warm_up()
            self.outcome = run_procedure(metric_series(policy), policy.design, policy.statistics, run.pairing.draw)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """What ends the measurement early becomes the result's verdict; bad input stays an error."""
        exhausted, asked = False, None
        try:
            yield
        except KeyboardInterrupt:
            if not self.run.pairing.pairs:
                raise
            told = f"; the pairs say: {overall(self._results(), [], self.policy.exit)[2]}" if self.outcome else ""
            headline = f"interrupted: what had been measured is here{told}"
            self.ended = (GateVerdict.INTERRUPTED, EXIT_INTERRUPTED, headline)
        except InputError:
            raise
        except (InvalidRunError, MeasurementError) as error:
            self._failed(str(error))
        except Exception as error:
            exhausted, asked = is_out_of_memory(error), asked_bytes(error)
            if not exhausted:
                self._failed(self._crash(error))
        if exhausted:  # the error and the frames that it held are gone by now
            release()
            self._failed(describe(asked, self.run.device))

    def _crash(self, error: Exception) -> str:
        log = self.output / "crash.log"
        log.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        tail = log.read_text(encoding="utf-8").splitlines()[-_LOG_TAIL:]
        return f"{type(error).__name__}: {error}; the end of {log}:\n" + "\n".join(tail)

    def _failed(self, problem: str) -> None:
        arm = self.run.bench.current
        headline = f"the {arm} failed: {problem}" if arm else problem
        self.ended = (GateVerdict.INVALID, EXIT_INVALID, headline)

    def conclude(self) -> None:
        """What the pairs, or whole diagnoses of both arms, say about the six questions."""
        policy = self.policy.diagnosis
        if self.outcome is None or policy.on_diagnosis_change == "ignore":
            return
        with self._ending():
            self.changes += switched_changes(self.run, load_pack(), policy)
            if policy.budget_s is not None:
                before, after = self._diagnoses(policy.budget_s)
                self.changes += diagnosis_changes(before, after, policy)

    def _diagnoses(self, budget_s: float) -> list[Diagnosis]:
        """A whole diagnosis of each arm, in the memory that the pairs used.

        Raises:
            MeasurementError: one did not come to its end, so that nothing can be compared.
            KeyboardInterrupt: interrupted.
        """
        pack, progress, bench = load_pack(), self.run.progress, self.run.bench
        bench.close()
        found: list[Diagnosis] = []
        for name in NAMES:
            bench.current = name
            progress.stage(f"diagnosing the {name}")
            options = replace(
                bench.plans[name].options,
                budget_s=budget_s,
                questions=self.policy.diagnosis.questions,
                requests=found[0].workload.slice_requests if found else None,  # the same work in both
            )
            try:
                evidence = collect_evidence(
                    options, progress, lambda partial: [r.technique for r in diagnose(partial, pack).recommendations]
                )
            except InputError as error:
                raise MeasurementError(f"its diagnosis could not be made: {error}") from None
            if INTERRUPTED in evidence.run.errors:
                raise KeyboardInterrupt
            if evidence.run.errors:
                raise MeasurementError(f"its diagnosis is {evidence.run.status}: {'; '.join(evidence.run.errors)}")
            found.append(diagnose(evidence, pack))
        unknown = [
            str(before.question.number)
            for before, after in zip(found[0].answers, found[1].answers, strict=True)
            if before.conclusion is after.conclusion is Conclusion.NOT_MEASURED
        ]
        if unknown:
            self.run.notes.append(f"not measured in either diagnosis: question {', '.join(unknown)}")
        return found

    def result(self) -> GateResult:
        run, policy = self.run, self.policy
        results = self._results()
        if run.comparability.status == "not comparable":
            verdict, code, _ = overall([], [], policy.exit)
            headline = f"not comparable: {run.comparability.reasons[0]}"
        else:
            verdict, code, headline = self.ended or overall(results, self.changes, policy.exit)
        base = run.sessions.get("baseline")
        return GateResult(
            tool=this_tool(),
            started_at=self.started_at,
            duration_s=time.perf_counter() - self.began,
            command=self.command,
            policy=PolicyRecord(path=policy.path, sha256=policy.sha256) if policy.path and policy.sha256 else None,
            subject=f"{base.subject.model} on {base.workload.source}" if base else run.arms["baseline"].model,
            device=run.device.name,
            baseline=run.arms["baseline"],
            candidate=run.arms["candidate"],
            comparability=run.comparability,
            design=self._design(),
            family=self.outcome.family if self.outcome else None,
            results=results,
            geometric_mean=geometric_mean(results),
            diagnosis_changes=self.changes,
            checks=run.watch.checks(),
            verdict=verdict,
            exit_code=code,
            headline=headline,
            next_step=next_step(verdict, results, self.changes, self.command),
            notes=run.notes,
        )

    def _results(self) -> list[MetricResult]:
        """Of the procedure and of the budgets; of a run that ended early the values, undecided."""
        pairing = self.run.pairing
        values = values_of(pairing.pairs, pairing.ids)
        if self.outcome is None:
            filled = metric_series(self.policy, values)
            judged = judge(filled, statistics=self.policy.statistics, alpha_of_look=0.0, paired=True)
            undecided = {"verdict": MetricVerdict.INCONCLUSIVE, "reason": "the run ended before it was decided"}
            return [result.model_copy(update=undecided) for result in judged]
        return [*self.outcome.results, *self.outcome.budgets]

    def _design(self) -> DesignRecord:
        design, pairing = self.policy.design, self.run.pairing
        return DesignRecord(
            mode="paired",
            pairs=len(pairing.pairs),
            planned_pairs=design.pairs,
            max_pairs=design.max_pairs,
            confirm_pairs=self.outcome.confirm_pairs if self.outcome else 0,
            order=pairing.order,
            warmup_runs=pairing.warmup_runs,
            exclusions=pairing.exclusions,
            requests=self.run.requests,
            load="; ".join(filter(None, ["all requests at once", pairing.open_label])),
            seed=design.seed,
        )
