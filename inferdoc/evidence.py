"""The language between the layers: what was measured, on what, and what follows from it.

`Evidence` is written by the probes, read by the rules and the reports, and is a file (``evidence.json``): rules and
reports run again from it with no card and no torch. `Diagnosis` is what the rules make of it (``diagnosis.json``).
Numbers are SI base units (seconds, bytes, tokens) with the unit beside them; a number that is not known is ``None``
with a reason, never 0. This module imports pydantic only.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from inferdoc.errors import InputError

SCHEMA_VERSION = "1.0"


class Contract(BaseModel):
    """Base of all contracts: unknown keys are ignored (additive minor versions), no NaN or Infinity."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class Question(StrEnum):
    """The six questions, in the order of the decision tree; the value is also the probe's and rule file's name."""

    HARDWARE_FIT = "hardware_fit"
    PREFIX_REDUNDANCY = "prefix_redundancy"
    OUTPUT_VARIANCE = "output_variance"
    KV_FRAGMENTATION = "kv_fragmentation"
    TOKEN_LATENCY = "token_latency"
    DISAGGREGATION = "disaggregation"

    @property
    def number(self) -> int:
        return list(Question).index(self) + 1

    @property
    def text(self) -> str:
        return _QUESTION_TEXT[self]


_QUESTION_TEXT = {
    Question.HARDWARE_FIT: "Does the model fit, with room for KV?",
    Question.PREFIX_REDUNDANCY: "Do prompts repeat?",
    Question.OUTPUT_VARIANCE: "Do output lengths vary?",
    Question.KV_FRAGMENTATION: "Is KV memory fragmented?",
    Question.TOKEN_LATENCY: "Is per-token latency the limit?",
    Question.DISAGGREGATION: "Is the scale such that prefill and decode should part?",
}


class Basis(StrEnum):
    """Where a number comes from. Every number in a report carries one."""

    MEASURED = "measured here"
    TRACE = "computed from the trace"
    CONFIG = "from the configuration"
    MODELLED = "modelled"
    SPEC = "from the spec sheet"


class Interval(Contract):
    """A confidence interval; `method` names the statistics (for example ``Wilcoxon signed-rank, exact``)."""

    low: float
    high: float
    level: float = 0.95
    method: str

    @model_validator(mode="after")
    def _in_order(self) -> Interval:
        if self.low > self.high:
            raise ValueError(f"the interval {self.low} to {self.high} is upside down")
        return self


Direction = Literal["higher", "lower"]


class Roofline(Contract):
    """How near to the device's limit the engine was while something was measured.

    A step cannot be shorter than reading what it must read, nor than computing what it must compute, at the rates
    measured on this device. `fraction` is the larger of the two over the time that the steps took, summed over them.
    """

    fraction: float | None
    memory: float | None = None
    """MBU: the part of reading alone."""
    compute: float | None = None
    """The part of computing alone. Attention of prompt tokens beyond the last of a chunk is not counted."""
    reason: str | None = None
    """Why `fraction` is not known."""
    note: str | None = None
    """Which part is missing from `fraction`, which is then a lower bound."""

    @property
    def engine_limited(self) -> bool | None:
        """True below half; ``None`` where it is not known, or only a lower bound is."""
        if self.fraction is None or (self.fraction < 0.5 and (self.memory is None or self.compute is None)):
            return None
        return self.fraction < 0.5


class Quantity(Contract):
    """One number. `value` is ``None`` exactly when `reason` says why it is not known."""

    id: str
    label: str
    value: float | None
    unit: str
    basis: Basis
    interval: Interval | None = None
    n: int | None = None
    """Size of the sample behind the value (runs for a paired effect, requests for a percentile)."""
    direction: Direction | None = None
    """Which way is better, where one is."""
    exact: bool = False
    """True for counts and sizes without sampling error: rules compare the point. A measured effect that is not exact
    and has no interval (too few pairs) leaves a condition undecided."""
    reason: str | None = None
    note: str | None = None
    roofline: Roofline | None = None
    """Of the steps that the value was timed on; the metrics of a comparison share the comparison's own."""


class PairedMetric(Contract):
    """One metric of an off/on comparison: a value for each run, and the paired effect.

    `gain` is how many times better *on* is than *off* (above 1 is better, whatever the metric's direction):
    Hodges-Lehmann over the pairs on the log scale with the exact Wilcoxon interval.
    """

    metric: str
    label: str
    unit: str
    direction: Direction
    off: list[float | None]
    on: list[float | None]
    off_estimate: Quantity
    on_estimate: Quantity
    gain: Quantity


class Outputs(Contract):
    """Whether both arms of a comparison produced the same tokens (greedy, forced lengths)."""

    requests: int
    identical: int
    first_difference: str | None = None


class Comparison(Contract):
    """One technique, off and on, over the same requests, in ABBA order. The unit of replication is the run."""

    id: str
    """``<technique>.<load>``, for example ``prefix_caching.saturated``. Quantities are found under
    ``<id>.<metric>.gain``, ``<id>.<metric>.off`` and ``<id>.<metric>.on`` by `Evidence.lookup`."""
    question: Question
    technique: str
    label: str
    changed: str
    """The one field of the engine configuration that differs, as ``field: off value -> on value``."""
    off_config: dict[str, Any]
    on_config: dict[str, Any]
    load: str
    """``saturated``, or ``open loop at 0.70 of the off arm's saturation (3.1 requests/s)``."""
    requests: int
    kv_tokens: int
    """KV capacity of both arms in tokens (equal by construction)."""
    order: list[Literal["off", "on"]]
    pairs: int
    metrics: dict[str, PairedMetric]
    outputs: Outputs | None = None
    roofline_fraction: Quantity | None = None
    """Over all steps of all counted runs, both arms."""
    engine_limited: bool | None = None
    """True below half of the roofline; ``None`` where that is not known."""
    overloaded: list[Literal["off", "on"]] = []
    """Arms whose queue still grew at the end of an open-loop run."""
    failure: str | None = None
    """Why there is no result, when the measurement failed."""
    notes: list[str] = []


class QualityResult(Contract):
    """What a technique costs in quality: a variant against a base on the same text, each token given those before it.

    The unit of replication is the document. Perplexity is exp of the mean negative log-likelihood a token; KL is
    KL(base || variant) a token in nats; top-1 agreement is the share of tokens whose most likely successor is the same.
    """

    technique: str
    base: str
    """Which model and settings the loss is measured against."""
    variant: str
    """The fields of the engine configuration that differ, as ``field: base value -> variant value``."""
    text: Literal["the trace", "shipped text"]
    documents: int
    tokens: int
    """Scored ones."""
    base_perplexity: float | None = None
    variant_perplexity: float | None = None
    perplexity_ratio: Quantity
    """Variant over base. These three are also plain quantities, ``quality.<technique>.perplexity_ratio|kl|top1``."""
    kl: Quantity
    top1: Quantity
    understated: bool = False
    """The base is a quantized checkpoint: against the model that it was made from the loss is larger."""
    reason: str | None = None
    """Why nothing was measured."""
    notes: list[str] = []


class Line(Contract):
    name: str
    x: list[float]
    y: list[float | None]
    low: list[float] | None = None
    high: list[float] | None = None
    roofline: list[Roofline] | None = None
    """Of each point, where the points are timed steps."""

    @model_validator(mode="after")
    def _same_lengths(self) -> Line:
        parts = (self.y, self.low, self.high, self.roofline)
        if not all(len(part) == len(self.x) for part in parts if part is not None):
            raise ValueError(f"line {self.name!r} has lists of different lengths")
        return self


class Series(Contract):
    """Numbers for one chart and its table."""

    id: str
    question: Question
    title: str
    kind: Literal["line", "bar", "step"]
    x_label: str
    x_unit: str
    y_label: str
    y_unit: str
    x_log: bool = False
    lines: list[Line]
    note: str | None = None


class ProbeResult(Contract):
    """What one probe did."""

    question: Question
    status: Literal["measured", "partial", "not measured"]
    reason: str | None = None
    """Why not, or what is missing."""
    seconds: float = 0.0
    notes: list[str] = []


class EnvironmentField(Contract):
    """A fact about the machine in one of four states; unknown is not zero."""

    state: Literal["value", "not_applicable", "unknown", "error"]
    value: str | float | None = None
    unit: str | None = None
    source: str


class Environment(Contract):
    fields: dict[str, EnvironmentField]
    fingerprint: str


class LeftOut(Contract):
    """Rows of the trace that were not used."""

    reason: str
    rows: int
    first_line: int | None = None
    places: list[str] = []
    """The first of them: ``12``, or ``shard-2.jsonl:12`` in a trace of several files."""


class TraceWindow(Contract):
    """A stretch of the trace in which the load differs from the whole trace's."""

    name: Literal["peak", "off-peak"]
    start_s: float
    end_s: float
    """From the first arrival of the trace."""
    requests: int
    rate_per_s: float | None
    load_over_mean: float
    """Tokens (or requests) a second over the whole trace's."""
    quantities: dict[str, Quantity] = {}
    """What rules ask of the whole trace, worked out over the window alone, by the same ids."""


class Workload(Contract):
    """What was understood of the trace, and what of it was run."""

    source: str
    """File name as given, without its folder."""
    format: str
    time_unit: str | None
    requests: int
    duration_s: float | None
    rate_per_s: float | None
    block_size: int | None
    content: Literal["text", "token ids", "block hashes", "lengths only"]
    left_out: list[LeftOut] = []
    quantities: dict[str, Quantity] = {}
    """``input_tokens_p50`` and the like."""
    load: str | None = None
    """How the load changes over the trace, in a sentence."""
    windows: list[TraceWindow] = []
    slice_requests: int | None = None
    slice_window: str | None = None
    length_scale: float = 1.0
    replicas: int = 1
    fingerprint: str
    notes: list[str] = []


class Subject(Contract):
    model: str
    revision: str | None = None
    """Which weights: the hub's commit, or ``sha256:`` over the configuration and samples of the weight files."""
    architecture: str
    parameters: int
    dtype: str
    load_format: str
    engine: str
    engine_config: dict[str, Any]
    context_length: int
    real_outputs: bool
    """Trained weights and real text: only then do acceptance and quality count."""
    notes: list[str] = []


class Check(Contract):
    name: str
    passed: bool | None
    text: str


class Validity(Contract):
    status: Literal["valid", "degraded", "invalid"]
    checks: list[Check] = []


class PlanStep(Contract):
    """One planned measurement and what became of it."""

    id: str
    question: Question
    label: str
    pairs: int
    estimated_s: float
    actual_s: float | None = None
    dropped: str | None = None
    """Why it was not run, with the seconds it would need."""


class Objective(StrEnum):
    LATENCY = "latency"
    THROUGHPUT = "throughput"
    COST = "cost"


class Slo(Contract):
    """One service-level objective, for example ``ttft_p95 <= 0.5 s``."""

    metric: str
    limit: float
    unit: str


class Run(Contract):
    id: str
    started_at: str
    duration_s: float
    command: str
    seed: int
    objective: Objective
    budget_s: float
    slo: list[Slo] = []
    max_quality_loss: float | None = None
    """The user's own limit: by which share of itself the perplexity may rise."""
    status: Literal["complete", "partial", "failed"]
    errors: list[str] = []


class Tool(Contract):
    version: str
    python: str
    probes: str | None = None
    """Which sources measured: a hash over the probes and the engine."""


class Schema(Contract):
    name: str
    version: str = SCHEMA_VERSION


class Evidence(Contract):
    """Everything that was measured or worked out, with nothing concluded."""

    schema_: Annotated[Schema, Field(alias="schema")] = Schema(name="inferdoc.evidence")
    tool: Tool
    run: Run
    subject: Subject
    environment: Environment
    workload: Workload
    validity: Validity
    plan: list[PlanStep] = []
    probes: list[ProbeResult] = []
    quantities: dict[str, Quantity] = {}
    comparisons: dict[str, Comparison] = {}
    quality: dict[str, QualityResult] = {}
    """By technique."""
    series: list[Series] = []

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, populate_by_name=True)

    def lookup(self, id: str) -> Quantity | None:
        """The quantity `id`, wherever it is kept: a plain one, or ``<comparison>.<metric>.gain|off|on``."""
        return look_up(id, self.quantities, self.comparisons)


def look_up(id: str, quantities: dict[str, Quantity], comparisons: dict[str, Comparison]) -> Quantity | None:
    """A quantity by its id, wherever it is kept; ``None`` where it is in neither."""
    if id in quantities:
        return quantities[id]
    rest, _, part = id.rpartition(".")
    comparison_id, _, metric = rest.rpartition(".")
    comparison = comparisons.get(comparison_id)
    paired = comparison.metrics.get(metric) if comparison else None
    if paired is None:
        return None
    return {"gain": paired.gain, "off": paired.off_estimate, "on": paired.on_estimate}.get(part)


class Conclusion(StrEnum):
    RECOMMENDED = "recommended"
    DOES_NOT_PAY = "does not pay"
    NOT_NEEDED = "not needed"
    INCONCLUSIVE = "inconclusive"
    NOT_MEASURED = "not measured"


class Truth(StrEnum):
    """Three values: a condition whose interval straddles the threshold, or whose measure is unknown, is undecided."""

    YES = "yes"
    NO = "no"
    UNDECIDED = "undecided"


class Fact(Contract):
    """One condition that a rule looked at: the measured quantity, the threshold, where the threshold comes from."""

    quantity: Quantity
    relation: Literal["at least", "below", "known", "shown"]
    """``shown``: printed as context, no threshold."""
    threshold: float | None = None
    threshold_source: str | None = None
    outcome: Truth | None = None


class Finding(Contract):
    """What one rule concluded about one technique."""

    rule_id: str
    rule_version: int
    question: Question
    technique: str
    title: str
    conclusion: Conclusion
    status: Literal["failed", "warned", "passed", "not_applicable", "unknown", "error"]
    severity: Literal["high", "medium", "low", "none"]
    confidence: Literal["high", "medium", "low"]
    text: str
    """One or two sentences with the numbers in them."""
    evidence: list[Fact] = []
    against: list[Fact] = []
    refuted_by: str | None = None
    marks: list[str] = []
    """For example ``engine-limited``, ``scaled workload``, ``cache-resident: no MBU``."""
    by_window: dict[str, Conclusion] = {}
    """What the rule concludes of a window of the trace (``peak``, ``off-peak``), where it is not `conclusion`."""
    rule_source: str
    """``file:line`` of the rule."""


class Change(Contract):
    knob: str
    from_: Annotated[str, Field(alias="from")]
    to: str

    model_config = ConfigDict(extra="ignore", populate_by_name=True)


class Expected(Contract):
    """What a change is expected to do to one metric, as a factor of improvement."""

    metric: str
    label: str
    estimate: float | None
    low: float | None
    high: float | None
    basis: Basis


class Recommendation(Contract):
    id: str
    rank: int
    technique: str
    title: str
    change: Change
    expected: list[Expected]
    adds: Expected | None = None
    """What this step adds to the steps ranked before it, measured as a stack; ``None`` where that was not measured."""
    effort: Literal["low", "medium", "high"]
    risk: str
    quality_risk: str
    conflicts: list[str] = []
    replaces: list[str] = []
    engine_flags: dict[str, str] = {}
    """Flags by engine name (``vllm``, ``sglang``)."""
    verify_command: str
    refs: list[str] = []
    finding: str
    """`rule_id` of the finding it comes from."""


class Verdict(Contract):
    headline: str
    bottleneck: str | None
    confidence: Literal["high", "medium", "low"]
    lines: list[str] = []
    """At most five: next step with its range, SLO status, what could not be told."""


class QuestionAnswer(Contract):
    """The answer to one of the six questions, from the findings under it."""

    question: Question
    conclusion: Conclusion
    text: str


class Claim(Contract):
    """A claim of the framework, printed beside what was measured here."""

    claim: str
    source: str
    measured: Quantity | None
    reason: str | None = None


class RulePack(Contract):
    version: str
    sha256: str
    files: list[str]


class Artifact(Contract):
    path: str
    sha256: str
    bytes: int


class Diagnosis(Contract):
    """What the rules concluded, with the evidence behind each conclusion (``diagnosis.json``)."""

    schema_: Annotated[Schema, Field(alias="schema")] = Schema(name="inferdoc.diagnosis")
    tool: Tool
    rule_pack: RulePack
    run: Run
    subject: Subject
    environment: Environment
    workload: Workload
    validity: Validity
    verdict: Verdict
    answers: list[QuestionAnswer]
    findings: list[Finding]
    recommendations: list[Recommendation]
    claims: list[Claim] = []
    comparison: dict[str, Any] | None = None
    """A gate's result as ``gate.json`` holds it: the gate's contracts build on this module, which can't name them."""
    redaction: str = "prompts and outputs are not included"
    artifacts: list[Artifact] = []
    extensions: dict[str, Any] = {}

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, populate_by_name=True)


def read_evidence(path: Path) -> Evidence:
    """Read ``evidence.json``.

    Raises:
        InputError: the file is missing, is not JSON, or is not evidence of a schema that this version reads.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); give the evidence.json of an earlier run") from None
    try:
        evidence = Evidence.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole file"
        raise InputError(f"{path}: not an evidence file: {where}: {first['msg']}") from None
    major = evidence.schema_.version.partition(".")[0]
    if evidence.schema_.name != "inferdoc.evidence" or major != SCHEMA_VERSION.partition(".")[0]:
        raise InputError(f"{path}: schema {evidence.schema_.name} {evidence.schema_.version}; this version reads 1.x")
    return evidence
