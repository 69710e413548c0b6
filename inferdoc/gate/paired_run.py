"""Two arms made ready to be run in pairs: loaded, given the same requests, compared as environments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from inferdoc.devices import RunWatch, Watch, find_device
from inferdoc.diagnosis import evidence_of_context
from inferdoc.errors import InputError, PolicyError
from inferdoc.gate.arms import NAMES, Bench, Name, build, plan_arms, refuse_one_place
from inferdoc.gate.calibration import (
    Calibration,
    calibration_path,
    detectability,
    read_calibration,
    refuse_limits_below_noise,
)
from inferdoc.gate.comparability import compare_fields
from inferdoc.gate.judging import Series
from inferdoc.gate.pairing import Pairing
from inferdoc.gate.policy import Policy
from inferdoc.gate.procedure import Values
from inferdoc.gate.registry import RUN_METRICS
from inferdoc.gate.result import Arm, Comparability
from inferdoc.gate.sessions import Session, session_of
from inferdoc.gate.sizing import predicted_seconds, requests_to_run
from inferdoc.progress import Progress


def check_measurable(policy: Policy) -> None:
    """Refuses what no run could answer, before anything is loaded.

    Raises:
        PolicyError: a metric that runs of arms don't measure, or no metric at all.
    """
    if not policy.metrics:
        raise PolicyError("no [[metric]]: nothing would be compared", where=policy.path)
    for metric in policy.metrics:
        where = policy.where(metric.line)
        if metric.id not in RUN_METRICS:
            raise PolicyError(
                f"{metric.id} is not measured by runs of an arm, only compared by `gate compare`; measured are "
                f"{', '.join(RUN_METRICS)}",
                where=where,
            )
        if metric.id == "goodput" and not policy.workload.slo:
            raise PolicyError('goodput needs objectives: give [workload] slo = "ttft_p95=500ms"', where=where)


def metric_series(policy: Policy, values: Values | None = None) -> list[Series]:
    """The metrics of the policy, with the pairs' values where there are any."""
    return [
        Series(
            metric=metric,
            label=RUN_METRICS[metric.id].label,
            unit=RUN_METRICS[metric.id].unit,
            direction=RUN_METRICS[metric.id].direction,
            kind="exact" if metric.kind == "exact" else RUN_METRICS[metric.id].kind,
            baseline=values[metric.id][0] if values else [],
            candidate=values[metric.id][1] if values else [],
        )
        for metric in policy.metrics
    ]


class PairedRun:
    """The arms of a policy on this device.

    Args:
        output: an existing folder for the arms' logs.
        commands: arms whose command is run.

    Raises:
        InputError: policy, trace, model or device can't be run as asked.
        InvalidRunError: the command of an arm failed.
    """

    def __init__(
        self, policy: Policy, output: Path, progress: Progress, command: str, *, commands: Sequence[Name] = NAMES
    ) -> None:
        self.policy = policy
        self.progress = progress
        self.folder = Path(policy.path).resolve().parent if policy.path else Path.cwd()
        if len(commands) > 1:
            refuse_one_place(policy, self.folder)
        for name in commands:
            build(policy, name, self.folder, output)
        self.device = find_device(policy.workload.device)
        self.watch = Watch(self.device)
        self.bench = Bench(
            plan_arms(policy, self.folder, command),
            self.device,
            restart=policy.design.restart == "each_arm",
            progress=progress,
            between_runs=self.watch.sample,
        )
        ids = list(dict.fromkeys(metric.id for metric in policy.metrics))
        self.pairing = Pairing(self.bench, policy, ids, RunWatch(self.device), progress)
        self.requests = 0
        self.sessions: dict[Name, Session] = {}
        self.arms = {name: Arm(name=name, model=plan.options.model) for name, plan in self.bench.plans.items()}
        self.comparability = Comparability(status="comparable")
        self.notes: list[str] = []

    def prepare(self) -> None:
        """Load the arms and choose what they serve; `requests`, `sessions`, `arms` and `comparability` are set."""
        self.requests = requests_to_run(self.bench, self.policy)
        for name in NAMES:
            arm = self.bench.arm(name)
            evidence = evidence_of_context(arm.plan.options, arm.context, arm.config, self.watch)
            self.sessions[name] = session_of(evidence, None)
            pool = f"{arm.config.kv_tokens:,} K/V tokens in the pool"
            self.arms[name] = Arm(
                name=name,
                model=evidence.subject.model,
                settings=arm.config.describe(),
                notes=[pool, *arm.context.engine_notes],
            )
        if self.bench.shared and self.bench.configs["baseline"] == self.bench.configs["candidate"]:
            self.notes.append("both arms are the same model with the same settings: what differs is noise")
        # Both arms run on this device, one after the other: what is not known of it is the same for both.
        fields = self.policy.comparable.model_copy(update={"unknown": "warn"})
        self.comparability = compare_fields(
            self.sessions["baseline"], self.sessions["candidate"], fields, self._declared()
        )

    def _declared(self) -> set[str]:
        """Fields that the arms differ in because the policy gives them different models."""
        base, candidate = (self.bench.plans[name].options for name in NAMES)
        declared = {"engine.flags"}
        if base.dtype != candidate.dtype:
            declared.add("model.dtype")
        if any(getattr(base, key) != getattr(candidate, key) for key in ("model", "gguf_file", "load_format")):
            declared |= {"model.name", "model.revision", "model.dtype"}
        return declared

    def check_noise(self) -> None:
        """Say what the design can show, by the calibration where there is one.

        Raises:
            PolicyError: a limit is below the calibrated noise.
        """
        calibration = self._calibration()
        for line in detectability(self.policy, calibration):
            self.progress.say(line)
        if calibration is not None:
            refuse_limits_below_noise(self.policy, calibration)
        seconds = predicted_seconds(self.bench, self.policy)
        self.progress.say(f"{self.requests} requests a repeat; some {seconds:.0f} s, if every pair is needed")

    @property
    def calibration_file(self) -> Path:
        base = self.sessions["baseline"]
        return calibration_path(self.folder, base.workload.fingerprint, base.environment.fingerprint)

    def _calibration(self) -> Calibration | None:
        found = read_calibration(self.calibration_file)
        if found is None or found.requests == self.requests:
            return found
        self.notes.append(
            f"the calibration of {found.recorded_at[:10]} ran {found.requests} requests a repeat and this gate "
            f"{self.requests}, so its noise was not used"
        )
        return None


def refuse_stored_mode(policy: Policy) -> None:
    """Raises:
    InputError: the policy's mode compares stored results, which are not paired.
    """
    if policy.baseline.mode != "paired":
        raise InputError(
            f'{policy.path}: [baseline] mode = "{policy.baseline.mode}" compares stored results with `inferdoc gate '
            'compare`; paired runs take mode = "paired"'
        )
