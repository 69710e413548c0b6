"""What a rule file may hold, as pydantic models: an unknown key or a threshold without a source is refused.

A rule file is YAML with any of these sections: ``question`` + ``lead`` + ``requires`` + ``rules``, ``techniques``,
``constants``, ``claims``, ``objectives``. A condition is a tree of

=====================================  ==========================================================================
``measure`` + ``at_least`` / ``below``  a quantity against a threshold (a number with its ``source``, or a constant)
``all`` / ``any`` / ``unless``          and, or, not
``known``                               whether a quantity could be had at all (yes or no)
``shown``                               yes only when what is inside is decided yes; an undecided harm is not a harm
``objective``                           whether the user's objective is one of these
``slo``                                 whether the user gave an objective for a metric that starts so
=====================================  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from inferdoc.evidence import Conclusion, Objective, Question
from inferdoc.rules.fields import AnObjective, Gain, Identifier, Level, Measure, Reference, Text, Threshold

Path = tuple[str | int, ...]
"""Where a value stands in its file, as keys and positions."""


class Strict(BaseModel):
    """Base of everything a rule file holds."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


_KINDS = ("measure", "all", "any", "unless", "known", "shown", "objective", "slo")


class Condition(Strict):
    """One node of a condition; see the table above. Exactly one kind a node."""

    measure: Measure | None = None
    at_least: Threshold | None = None
    below: Threshold | None = None
    source: Text | None = None
    """Where a number comes from; a constant brings its own."""
    all_: Annotated[list[Condition] | None, Field(alias="all", min_length=1)] = None
    any_: Annotated[list[Condition] | None, Field(alias="any", min_length=1)] = None
    unless: Condition | None = None
    known: Measure | None = None
    shown: Condition | None = None
    objective: Annotated[list[AnObjective] | None, Field(min_length=1)] = None
    slo: Text | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        values = (self.measure, self.all_, self.any_, self.unless, self.known, self.shown, self.objective, self.slo)
        kinds = [kind for kind, value in zip(_KINDS, values, strict=True) if value is not None]
        if len(kinds) != 1:
            found = " and ".join(kinds) or "none"
            raise ValueError(f"a condition has exactly one of {', '.join(_KINDS)}; found {found}")
        given = [name for name in ("at_least", "below", "source") if getattr(self, name) is not None]
        if self.measure is None:
            if given:
                raise ValueError(f"'{given[0]}' goes with 'measure' only")
            return self
        if (self.at_least is None) == (self.below is None):
            raise ValueError("'measure' needs exactly one of 'at_least' and 'below'")
        if isinstance(self.threshold, float) and self.source is None:
            raise ValueError("a threshold needs its 'source': a citation, or 'inferdoc: judgement, because ...'")
        if isinstance(self.threshold, str) and self.source is not None:
            raise ValueError("a constant brings its own source; leave 'source' out")
        return self

    @property
    def threshold(self) -> float | str:
        """The threshold of a ``measure`` node: a number or the name of a constant."""
        value = self.at_least if self.at_least is not None else self.below
        assert value is not None
        return value

    def walk(self, path: Path = ()) -> Iterator[tuple[Path, Condition]]:
        """Every node with its place, this one first."""
        yield path, self
        for key, children in (("all", self.all_), ("any", self.any_)):
            for index, child in enumerate(children or ()):
                yield from child.walk((*path, key, index))
        for key, only in (("unless", self.unless), ("shown", self.shown)):
            if only is not None:
                yield from only.walk((*path, key))


class Requirement(Strict):
    """What must hold before a rule, or all rules of a file, may speak; otherwise *not measured*."""

    when: Condition
    otherwise: Text | None = None
    """Why nothing is said; without it the reason of the unknown quantity is given."""


class Case(Strict):
    """One conclusion and the condition under which it is drawn. Without ``when`` it is what holds otherwise."""

    conclude: Annotated[Conclusion, Field(strict=False)]
    when: Condition | None = None
    text: Text
    bottleneck: Text | None = None
    """What holds the system back when this is so, as a clause for the verdict."""
    severity: Literal["high", "medium", "low", "none"] | None = None
    warn: bool = False
    refuted_by: Text | None = None
    """What would refute this conclusion, where the rule's own does not (opposite conclusions need opposite ones)."""


class Effect(Strict):
    """A gain that the technique may bring, for the expected change and the ranking."""

    gain: Gain
    """``<comparison>.<metric>.gain``: only what was measured off and on may rank advice."""
    serves: Annotated[list[AnObjective], Field(min_length=1)]

    @property
    def metric_name(self) -> str:
        return self.gain.split(".")[-2]


class Setting(Strict):
    """The knob that the advice turns."""

    knob: Text
    from_: Annotated[Text, Field(alias="from")]
    to: Text


class Rule(Strict):
    """One question to the evidence about one technique: the first case that surely holds is the conclusion."""

    id: Identifier
    version: Annotated[int, Field(ge=1)]
    technique: Identifier
    title: Text
    asks: Text
    why: Text
    requires: list[Requirement] = []
    effects: list[Effect] = []
    shows: list[Measure] = []
    """Quantities printed beside the finding as context, without a threshold."""
    change: Setting | None = None
    refuted_by: Text | None = None
    cases: Annotated[list[Case], Field(min_length=1)]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.cases[-1].when is not None:
            raise ValueError("the last case must have no 'when': it is what holds otherwise")
        if any(case.when is None for case in self.cases[:-1]):
            raise ValueError("only the last case may have no 'when': the cases after it could never be reached")
        if self.change is None and any(case.conclude is Conclusion.RECOMMENDED for case in self.cases):
            raise ValueError("a rule that can recommend needs 'change': knob, from, to")
        return self

    def conditions(self) -> Iterator[tuple[Path, Condition]]:
        """Every node of every condition, with its place in the rule."""
        for index, requirement in enumerate(self.requires):
            yield from requirement.when.walk(("requires", index, "when"))
        for index, case in enumerate(self.cases):
            if case.when is not None:
                yield from case.when.walk(("cases", index, "when"))

    def templates(self) -> Iterator[tuple[Path, str]]:
        """Every text that may hold ``{placeholders}``, with its place in the rule."""
        for index, requirement in enumerate(self.requires):
            if requirement.otherwise:
                yield ("requires", index, "otherwise"), requirement.otherwise
        for index, case in enumerate(self.cases):
            yield ("cases", index, "text"), case.text
            if case.bottleneck:
                yield ("cases", index, "bottleneck"), case.bottleneck
        if self.change is not None:
            yield ("change", "from"), self.change.from_
            yield ("change", "to"), self.change.to


class Complexity(Strict):
    level: Level
    points: Annotated[float, Field(gt=0)]
    """What the gain is divided by when advice is ranked."""


class EngineSetting(Strict):
    """How a production engine names the technique. `flags` is empty where it is always on, or cannot be had."""

    flags: str
    meaning: Text


class Technique(Strict):
    """An entry of the catalogue."""

    id: Identifier
    title: Text
    improves: Annotated[list[Text], Field(min_length=1)]
    costs: Text
    complexity: Complexity
    risk: Text
    quality_risk: Text
    engines: dict[str, EngineSetting] = {}
    conflicts: list[Identifier] = []
    replaces: list[Identifier] = []
    refs: Annotated[list[Reference], Field(min_length=1)]
    engine_limited: Literal["marked", "inconclusive"] = "marked"
    """What an engine far from the hardware's limit does to a conclusion about this technique."""
    needs_real_outputs: bool = False
    """Acceptance or quality decide: they count with trained weights and real text only."""


class Constant(Strict):
    value: float
    source: Text


class ClaimEntry(Strict):
    """A claim made elsewhere, printed beside what was measured here."""

    id: Identifier
    claim: Text
    source: Text
    measure: Measure | None = None
    reason: Text | None = None
    """Why nothing was measured, where no quantity answers the claim."""

    @model_validator(mode="after")
    def _answered(self) -> Self:
        if (self.measure is None) == (self.reason is None):
            raise ValueError("a claim has exactly one of 'measure' and 'reason'")
        return self


class Weighting(Strict):
    """How an objective weighs gains when advice is ranked."""

    weights: Annotated[dict[str, Annotated[float, Field(ge=0)]], Field(min_length=1)]
    elsewhere: Annotated[float, Field(ge=0)]
    """Weight of a gain in any other metric."""
    source: Text


class RuleFile(Strict):
    """One YAML file of a pack."""

    pack: Text | None = None
    """The version of the pack, in one of its files."""
    question: Annotated[Question | None, Field(strict=False)] = None
    lead: Identifier | None = None
    """The rule whose conclusion answers the question."""
    requires: list[Requirement] = []
    rules: list[Rule] = []
    techniques: list[Technique] = []
    constants: dict[str, Constant] = {}
    claims: list[ClaimEntry] = []
    objectives: dict[Annotated[Objective, Field(strict=False)], Weighting] = {}

    @model_validator(mode="after")
    def _belongs(self) -> Self:
        if self.rules and self.question is None:
            raise ValueError("a file with 'rules' names its 'question'")
        if self.requires and not self.rules:
            raise ValueError("'requires' at the top goes with 'rules'")
        return self
