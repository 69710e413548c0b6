"""The gate's policy (``inferdoc-gate.toml``): what is run, what is compared, which limits hold."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from inferdoc.evidence import Slo
from inferdoc.gate.result import Kind, Role


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BaselinePolicy(_Section):
    mode: Literal["paired", "history", "stored"] = "paired"
    path: str = ".inferdoc/baselines/{workload}/{env}.json"
    missing: Literal["error", "record"] = "error"
    history_max: int = 30
    """Sessions kept."""


class DesignPolicy(_Section):
    pairs: int = 8
    max_pairs: int = 12
    warmup: Literal["until_steady"] | int = "until_steady"
    """Or a fixed number of runs of each arm."""
    restart: Literal["none", "each_arm"] = "none"
    """``each_arm``: the model is loaded again for each run, so that only one of two models is in memory."""
    confirm: int = 5
    """Fresh pairs for what was flagged; 0: none."""
    seed: int = 0


class ComparablePolicy(_Section):
    must_match: tuple[str, ...] = (
        "gpu.model",
        "gpu.form_factor",
        "gpu.count",
        "gpu.mig",
        "model.revision",
        "model.dtype",
        "workload.fingerprint",
        "probe.version",
    )
    may_vary: tuple[str, ...] = ("engine.version", "engine.flags", "source.commit")
    warn: tuple[str, ...] = ("driver", "cuda", "power_limit", "host.cpu", "clocks.locked")
    unknown: Literal["refuse", "warn"] = "refuse"


class StatisticsPolicy(_Section):
    alpha: float = 0.05
    """Family-wise, over the metrics that may fail."""
    correction: Literal["holm"] = "holm"
    interval: float = 0.95


class MetricPolicy(_Section):
    """One ``[[metric]]``; sizes in the metric's own unit, relative limits as shares."""

    id: str
    role: Role = "fail"
    kind: Kind = "timing"
    max_regression: float | None = None
    floor: float | None = None
    max_value: float | None = None
    min_value: float | None = None
    min_requests: int | None = None
    """Of one repeat; ``None``: ten beyond the quantile."""
    line: int | None = None
    """In the policy file."""
    units: dict[str, str] = {}
    """Of a metric that a run does not measure itself: the unit that each of its limits was written in, where one was.
    The limits are in SI; whether the evidence has that unit is for `amounts.check_units` to say."""

    @property
    def has_budget(self) -> bool:
        """Whether a limit holds for the candidate's own value, whatever the baseline was."""
        return self.max_value is not None or self.min_value is not None


class DiagnosisPolicy(_Section):
    on_diagnosis_change: Literal["fail", "warn", "ignore"] = "warn"
    budget_s: float | None = None
    """Time for a whole diagnosis of each arm; ``None``: only what the pairs themselves show."""
    questions: tuple[int, ...] = ()
    line: int | None = None
    """In the policy file, of what it says of changes."""


class WorkloadPolicy(_Section):
    """What both arms serve; paths are taken from the policy file's folder."""

    trace: str | None = None
    """``None``: the bundled one."""
    trace_format: str | None = None
    skip_bad_rows: bool = False
    requests: int | None = None
    """Of one run; ``None``: as many as fit `budget_s`."""
    budget_s: float = 240.0
    """Time for the whole gate, where `requests` is not given."""
    load: float = 0.7
    """Open-loop rate as a share of the baseline's measured saturation."""
    rate: float | None = None
    """Instead of `load`: requests per second, so that stored sessions have one open-loop load."""
    length_scale: str = "1"
    slo: tuple[Slo, ...] = ()
    device: str = "auto"
    memory_bytes: int | None = None


class ArmPolicy(_Section):
    """One arm. Engine settings are named as `EngineConfig` and the flags of ``diagnose`` name them."""

    model: str = "embedded"
    command: str | None = None
    """Run by the shell in the policy's folder before anything is measured; it may build the model and the settings."""
    settings: dict[str, Any] = {}
    """Every other key of the arm, checked."""
    lines: dict[str, int] = {}
    """Line of each key in the policy file."""


class ExitPolicy(_Section):
    inconclusive: Literal[0, 3] = 3


class CostPolicy(_Section):
    per_hour: float
    """Price of the device, in the user's currency."""


class Policy(_Section):
    path: str | None = None
    """As the user named it; ``None``: the built-in defaults."""
    sha256: str | None = None
    baseline: BaselinePolicy = BaselinePolicy()
    design: DesignPolicy = DesignPolicy()
    comparable: ComparablePolicy = ComparablePolicy()
    statistics: StatisticsPolicy = StatisticsPolicy()
    diagnosis: DiagnosisPolicy = DiagnosisPolicy()
    workload: WorkloadPolicy = WorkloadPolicy()
    arms: dict[Literal["baseline", "candidate"], ArmPolicy] = {}
    """Empty where the file has none; the candidate has the baseline's settings where it gives none of its own."""
    metrics: tuple[MetricPolicy, ...] = ()
    exit: ExitPolicy = ExitPolicy()
    cost: CostPolicy | None = None

    def where(self, line: int | None = None) -> str | None:
        """``file:line``, the file alone where no line is to blame, ``None`` for the built-in defaults."""
        return self.path if line is None or self.path is None else f"{self.path}:{line}"
