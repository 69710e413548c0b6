"""The two arms of a gated run: from the policy to models that are ready to serve the same requests."""

from __future__ import annotations

import gc
import math
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from inferdoc.devices import Device, release
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import RunResult
from inferdoc.errors import InputError, InvalidRunError, PolicyError
from inferdoc.gate.policy import ArmPolicy, Policy
from inferdoc.models import EMBEDDED, read_spec
from inferdoc.options import Options, check_options, dtypes_to_try
from inferdoc.parsing import parse_scale
from inferdoc.preparation import prepare, read_workload
from inferdoc.probes.context import Collector, ProbeContext
from inferdoc.probes.plan import set_slice, set_window
from inferdoc.progress import Progress

Name = Literal["baseline", "candidate"]
NAMES: tuple[Name, Name] = ("baseline", "candidate")
SWITCHES = ("batching", "enable_chunked_prefill", "enable_prefix_caching", "reservation")
"""Settings that change from run to run on one model and pool; every other one is set up with the model."""
_LOG_TAIL = 20
"""Lines of a failed command's log that the error quotes."""


@dataclass(frozen=True)
class ArmPlan:
    """One arm as the policy asks for it, before anything is loaded."""

    name: Name
    options: Options
    switches: dict[str, Any]
    where: str
    """``file:line`` of the arm."""


def plan_arms(policy: Policy, folder: Path, command: str) -> dict[Name, ArmPlan]:
    """Both arms; without arms in the policy both are the embedded model.

    Args:
        folder: what relative paths of the policy are relative to.
    """
    arms = {name: policy.arms.get(name, ArmPolicy()) for name in NAMES}
    return {name: _plan(policy, name, arm, folder, command) for name, arm in arms.items()}


def refuse_one_place(policy: Policy, folder: Path) -> None:
    """Commands run before anything is loaded: a model built over the baseline's would be compared with itself.

    Raises:
        PolicyError: an arm has a command, and both arms name one local model.
    """
    arms = [policy.arms[name] for name in NAMES if name in policy.arms]
    built = [arm for arm in arms if arm.command is not None]
    places = {(folder / arm.model).resolve() for arm in arms if arm.model != EMBEDDED}
    if built and len(arms) == len(NAMES) and len(places) == 1 and all(arm.model != EMBEDDED for arm in arms):
        raise PolicyError(
            f"both arms name the model {arms[0].model!r}, and what one command builds the other arm would read: give "
            "each arm its own path, for example below the folder that INFERDOC_ARM_DIR names",
            where=f"{policy.path}:{built[-1].lines.get('command', 1)}",
        )


def _plan(policy: Policy, name: Name, arm: ArmPolicy, folder: Path, command: str) -> ArmPlan:
    workload = policy.workload
    options = Options(
        model=_location(arm.model, folder),
        trace=folder / workload.trace if workload.trace is not None else None,
        trace_format=workload.trace_format,
        skip_bad_rows=workload.skip_bad_rows,
        slo=workload.slo,
        budget_s=workload.budget_s,
        load=workload.load,
        memory_bytes=workload.memory_bytes,
        length_scale=parse_scale(workload.length_scale, option="length_scale"),
        device=workload.device,
        seed=policy.design.seed,
        command=command,
        **{key: value for key, value in arm.settings.items() if key not in SWITCHES},
    )
    where = f"{policy.path}:{min(arm.lines.values(), default=1)}" if policy.path else "the built-in policy"
    switches = {key: value for key, value in arm.settings.items() if key in SWITCHES}
    return ArmPlan(name, options, switches, where)


def _location(model: str, folder: Path) -> str:
    """A path from the policy's folder where there is one; else as given (``embedded``, a hub id)."""
    return str(folder / model) if model != EMBEDDED and (folder / model).exists() else model


def build(policy: Policy, name: Name, folder: Path, output: Path) -> None:
    """Run the arm's command, where it has one; its output is kept in ``<output>/<name>.log``.

    The command finds the arm's name in ``INFERDOC_ARM`` and a folder for what it makes in ``INFERDOC_ARM_DIR``.

    Raises:
        InvalidRunError: it fails; with the end of its log.
    """
    arm = policy.arms.get(name)
    if arm is None or arm.command is None:
        return
    made = (output / name).resolve()
    made.mkdir(parents=True, exist_ok=True)
    log = output / f"{name}.log"
    with log.open("wb") as stream:
        done = subprocess.run(
            arm.command,
            shell=True,
            cwd=folder,
            env=os.environ | {"INFERDOC_ARM": name, "INFERDOC_ARM_DIR": str(made)},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_TAIL:]
        raise InvalidRunError(
            f"{policy.path}:{arm.lines.get('command', 1)}: the command of arm.{name} ended with {done.returncode}; "
            f"the end of {log}:\n" + "\n".join(f"  {line}" for line in tail)
        )


@dataclass(frozen=True)
class ReadyArm:
    """A loaded arm."""

    plan: ArmPlan
    context: ProbeContext
    config: EngineConfig

    def serve(self, arrivals: list[float] | None) -> RunResult:
        """Run the slice once; without arrivals all requests are there at the start."""
        return self.context.serve(self.config, arrivals)


class Bench:
    """Both arms on one device. Arms that differ in switches alone share one model and one pool.

    Args:
        restart: load an arm's model again for each run, so that only one of two models is in memory.
        between_runs: called after each run.
    """

    def __init__(
        self,
        plans: dict[Name, ArmPlan],
        device: Device,
        *,
        restart: bool,
        progress: Progress,
        between_runs: Callable[[], None],
    ) -> None:
        self.plans = plans
        self.device = device
        self.shared = plans["baseline"].options == plans["candidate"].options
        self.restart = restart and not self.shared
        self.configs: dict[Name, EngineConfig] = {}
        """Of the arms that were loaded."""
        self.current: Name | None = None
        """The arm that was last asked for: the one at fault when something fails."""
        self._progress = progress
        self._between_runs = between_runs
        self._ready: dict[Name, ReadyArm] = {}
        self._requests: int | None = None
        self._rows: list[int] = []

    def choose_slice(self, requests: int) -> None:
        """Both arms serve the same window of so many consecutive requests of the trace.

        Raises:
            PolicyError: the candidate can't serve a request of the baseline's window.
        """
        self._requests = requests
        self._rows = []
        for name in NAMES:
            self._align(self.arm(name))

    def arm(self, name: Name) -> ReadyArm:
        """The arm, loaded where it is not yet.

        Raises:
            InputError: by the arm's place in the policy, with what would do.
        """
        self.current = name
        if name not in self._ready:
            self._ready[name] = self._load(name)
            if self._requests is not None:
                self._align(self._ready[name])
        return self._ready[name]

    def loaded(self, name: Name) -> bool:
        return name in self._ready

    def run_ended(self, name: Name) -> None:
        """Let go of the arm where each run loads it again."""
        if self.restart:
            self._drop(name)

    def _load(self, name: Name) -> ReadyArm:
        plan = self.plans[name]
        other: Name = "candidate" if name == "baseline" else "baseline"
        if self.shared and other in self._ready:
            context = self._ready[other].context
        else:
            if self.restart:
                self._drop(other)
            try:
                context = self._prepare(plan)
            except PolicyError:
                raise
            except InputError as error:
                raise PolicyError(str(error), where=f"{plan.where}: arm.{name}") from None
        try:
            self.configs[name] = replace(context.base, **plan.switches)
            return ReadyArm(plan, context, self.configs[name])
        except InputError as error:
            raise PolicyError(str(error), where=f"{plan.where}: arm.{name}") from None

    def _prepare(self, plan: ArmPlan) -> ProbeContext:
        options = plan.options
        check_options(options, self.device)
        trace = read_workload(options)
        spec = read_spec(
            options.model_location, gguf_file=options.gguf_file, trust_remote_code=options.trust_remote_code
        )
        budget = options.memory_bytes
        if budget is None:
            if self.device.usable_bytes is None:
                raise InputError('the free memory of the device is not known; give [workload] memory = "16GiB"')
            resident = 1 if self.shared or self.restart else len(NAMES)
            budget = self.device.usable_bytes // resident
        # One type only: an arm that fell back to another one would be another arm.
        dtype = dtypes_to_try(options, spec, self.device)[0]
        self._progress.stage(f"arm {plan.name}: {spec.name}")
        context = prepare(
            options,
            dtype,
            trace,
            self.device,
            budget_bytes=budget,
            deadline=math.inf,
            found=Collector(),
            progress=self._progress,
            between_runs=self._between_runs,
        )
        if context is None:
            raise InputError(
                f"the memory budget of {budget:,} bytes leaves no room for the longest request's K/V beside the "
                f"weights in {dtype}: give more [workload] memory, restart = 'each_arm', or a smaller max_model_len"
            )
        return context

    def _align(self, arm: ReadyArm) -> None:
        """Give the arm the window that the first arm chose."""
        context = arm.context
        assert self._requests is not None
        if not self._rows:
            set_slice(context, self._requests)
        else:
            rows = context.trace.rows["row"].to_list()
            if self._rows[0] in rows:
                set_window(context, rows.index(self._rows[0]), min(self._requests, len(rows)))
        assert context.slice_trace is not None or self._rows
        served = context.slice_trace.rows["row"].to_list() if context.slice_trace is not None else []
        self._rows = self._rows or served
        if served != self._rows:
            lacking = sorted(set(self._rows) - set(served))[:5]
            raise PolicyError(
                f"it can't serve row {', '.join(map(str, lacking))} of the trace, which the baseline serves (too long "
                "for its context?); give both arms one max_model_len",
                where=f"{arm.plan.where}: arm.{arm.plan.name}",
            )

    def close(self) -> None:
        """Let go of both arms."""
        contexts = {id(arm.context): arm.context for arm in self._ready.values()}
        self._ready.clear()
        for context in contexts.values():
            context.runner.drop_pool()
        contexts.clear()
        gc.unfreeze()
        release()

    def _drop(self, name: Name) -> None:
        arm = self._ready.pop(name, None)
        if arm is None:
            return
        arm.context.runner.drop_pool()
        del arm
        gc.unfreeze()
        release()
