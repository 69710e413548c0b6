"""Reading rule files with their line numbers, ours first and then the user's, which may add or replace by id."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

from pydantic import ValidationError

from inferdoc.errors import RuleError
from inferdoc.evidence import Objective, Question
from inferdoc.rules import schema, wording
from inferdoc.rules.yaml_lines import Document, read_document

OWN_FOLDER = Path(__file__).resolve().parent
OWN_LABEL = "inferdoc/rules"
LEAST_GAIN = "least_worthwhile_gain"
LEAST_LOSS = "least_worthwhile_loss"
HIGH_SEVERITY_GAIN = "high_severity_gain"
MEDIUM_SEVERITY_GAIN = "medium_severity_gain"
SMALL_SLICE = "small_slice_share"
QUALITY_LOSS = "most_quality_loss"
QUALITY_DIVERGENCE = "most_quality_divergence"
NEEDED_CONSTANTS = (LEAST_GAIN, LEAST_LOSS, HIGH_SEVERITY_GAIN, MEDIUM_SEVERITY_GAIN, SMALL_SLICE)


@dataclass(frozen=True)
class LoadedRule:
    """A rule with the question it belongs to, everything it requires, and its ``file:line``."""

    rule: schema.Rule
    question: Question
    requires: tuple[schema.Requirement, ...]
    source: str


@dataclass(frozen=True)
class Pack:
    """All rules and what they refer to. What the user's folder adds comes last; what it replaces keeps its place."""

    version: str
    sha256: str
    files: tuple[str, ...]
    rules: tuple[LoadedRule, ...]
    techniques: dict[str, schema.Technique]
    constants: dict[str, schema.Constant]
    claims: tuple[schema.ClaimEntry, ...]
    objectives: dict[Objective, schema.Weighting]
    leads: dict[Question, str]
    sources: dict[str, str]
    """``<section>:<id>`` to ``file:line``, for example ``techniques:prefix_caching``."""
    replaced: tuple[str, ...] = ()
    """One sentence for each entry of ours that the user's folder replaces."""

    def threshold(self, condition: schema.Condition) -> tuple[float, str]:
        """The number a ``measure`` condition compares with, and where the number comes from."""
        if isinstance(condition.threshold, str):
            constant = self.constants[condition.threshold]
            return constant.value, constant.source
        return condition.threshold, condition.source or ""

    def with_quality_limit(self, loss: float) -> Pack:
        """With the user's own limit of what a technique may lose: a share of the perplexity, as 0.01."""
        source = f"--max-quality-loss {loss:.3g}"
        limits = {
            QUALITY_LOSS: schema.Constant(value=1 + loss, source=source),
            QUALITY_DIVERGENCE: schema.Constant(value=math.log1p(loss), source=f"ln of 1 + {source}"),
        }
        return replace(self, constants=self.constants | limits)

    def rule(self, id: str) -> LoadedRule | None:
        return next((loaded for loaded in self.rules if loaded.rule.id == id), None)


@dataclass
class _Builder:
    """Collects the entries of all files, and every error in them."""

    rules: dict[str, LoadedRule] = field(default_factory=dict)
    techniques: dict[str, schema.Technique] = field(default_factory=dict)
    constants: dict[str, schema.Constant] = field(default_factory=dict)
    claims: dict[str, schema.ClaimEntry] = field(default_factory=dict)
    objectives: dict[Objective, schema.Weighting] = field(default_factory=dict)
    leads: dict[Question, str] = field(default_factory=dict)
    versions: list[str] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    replaced: list[str] = field(default_factory=list)
    errors: list[RuleError] = field(default_factory=list)
    read: list[tuple[schema.RuleFile, Document]] = field(default_factory=list)
    contents: list[tuple[str, bytes]] = field(default_factory=list)

    def read_folder(self, folder: Path, label: str) -> None:
        """Read every ``*.yaml`` and ``*.yml`` of `folder`, in order of name."""
        try:
            paths = sorted(path for path in folder.iterdir() if path.suffix in {".yaml", ".yml"})
        except OSError as error:
            raise RuleError(f"cannot be read ({error.strerror}); give a folder of rule files", where=label) from None
        if not paths:
            raise RuleError("holds no rule file; give a folder with at least one .yaml file", where=label)
        seen: dict[str, str] = {}
        for path in paths:
            name = f"{label}/{path.name}"
            try:
                content = path.read_bytes()
                document = read_document(content, name)
                parsed = schema.RuleFile.model_validate(document.data)
            except OSError as error:
                self.errors.append(RuleError(f"cannot be read ({error.strerror})", where=name))
            except RuleError as error:
                self.errors.append(error)
            except ValidationError as error:
                self.errors.extend(_explain(error, document))
            else:
                self.contents.append((name, content))
                self.read.append((parsed, document))
                self._merge(parsed, document, seen)

    def _merge(self, parsed: schema.RuleFile, document: Document, seen: dict[str, str]) -> None:
        if parsed.pack is not None:
            self.versions.append(parsed.pack)
        if parsed.lead is not None and parsed.question is not None:
            self.leads[parsed.question] = parsed.lead
        for index, rule in enumerate(parsed.rules):
            source = document.where(("rules", index))
            if self._fresh("rules", rule.id, source, seen) and parsed.question is not None:
                requires = (*parsed.requires, *rule.requires)
                self.rules[rule.id] = LoadedRule(rule, parsed.question, requires, source)
        for index, technique in enumerate(parsed.techniques):
            if self._fresh("techniques", technique.id, document.where(("techniques", index)), seen):
                self.techniques[technique.id] = technique
        for name, constant in parsed.constants.items():
            if self._fresh("constants", name, document.where(("constants", name)), seen):
                self.constants[name] = constant
        for index, claim in enumerate(parsed.claims):
            if self._fresh("claims", claim.id, document.where(("claims", index)), seen):
                self.claims[claim.id] = claim
        for objective, weighting in parsed.objectives.items():
            if self._fresh("objectives", objective, document.where(("objectives", objective.value)), seen):
                self.objectives[objective] = weighting

    def _fresh(self, section: str, id: str, source: str, seen: dict[str, str]) -> bool:
        """Whether `id` is new in its folder; an entry of an earlier folder is replaced, and that is noted."""
        key = f"{section}:{id}"
        if key in seen:
            self.errors.append(RuleError(f"{section}: {id!r} is already at {seen[key]}; rename one", where=source))
            return False
        if key in self.sources:
            self.replaced.append(f"{section}: '{id}' at {source} replaces the one at {self.sources[key]}")
        seen[key] = source
        self.sources[key] = source
        return True

    def check(self) -> None:
        """Find references that lead nowhere, over all files together."""
        for parsed, document in self.read:
            if parsed.lead is not None and parsed.lead not in self.rules:
                self._missing(document, ("lead",), "rule", parsed.lead, self.rules)
            for index, requirement in enumerate(parsed.requires):
                self._check_conditions(document, requirement.when.walk(("requires", index, "when")))
            for index, rule in enumerate(parsed.rules):
                place: schema.Path = ("rules", index)
                if rule.technique not in self.techniques:
                    self._missing(document, (*place, "technique"), "technique", rule.technique, self.techniques)
                self._check_conditions(document, (((*place, *path), node) for path, node in rule.conditions()))
                for path, template in rule.templates():
                    self._check_template(document, (*place, *path), template)
            for index, technique in enumerate(parsed.techniques):
                for key, ids in (("conflicts", technique.conflicts), ("replaces", technique.replaces)):
                    for position, id in enumerate(ids):
                        if id not in self.techniques:
                            self._missing(
                                document, ("techniques", index, key, position), "technique", id, self.techniques
                            )

    def _check_conditions(self, document: Document, nodes: Iterable[tuple[schema.Path, schema.Condition]]) -> None:
        for path, node in nodes:
            name = node.threshold if node.measure is not None else None
            if isinstance(name, str) and name not in self.constants:
                key = "at_least" if node.at_least is not None else "below"
                self._missing(document, (*path, key), "constant", name, self.constants)

    def _check_template(self, document: Document, path: schema.Path, template: str) -> None:
        for placeholder in wording.placeholders(template):
            problem = wording.problem(placeholder, self.constants)
            if problem:
                self.errors.append(RuleError(problem, where=document.where(path)))

    def _missing(self, document: Document, path: schema.Path, kind: str, id: str, known: Iterable[str]) -> None:
        message = f"there is no {kind} {id!r}{_near(id, known)}"
        self.errors.append(RuleError(message, where=document.where(path)))

    def pack(self) -> Pack:
        digest = hashlib.sha256()
        for name, content in self.contents:
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        return Pack(
            version="+".join(self.versions),
            sha256=digest.hexdigest(),
            files=tuple(name for name, _ in self.contents),
            rules=tuple(self.rules.values()),
            techniques=self.techniques,
            constants=self.constants,
            claims=tuple(self.claims.values()),
            objectives=self.objectives,
            leads=self.leads,
            sources=self.sources,
            replaced=tuple(self.replaced),
        )


def read_pack(user_dir: Path | None = None) -> tuple[Pack, list[RuleError]]:
    """Our own rules and then those of `user_dir`, with every error found.

    Raises:
        RuleError: `user_dir` cannot be read or holds no rule file.
    """
    builder = _Builder()
    builder.read_folder(OWN_FOLDER, OWN_LABEL)
    if user_dir is not None:
        builder.read_folder(user_dir, str(user_dir))
    builder.check()
    return builder.pack(), builder.errors


def load_pack(user_dir: Path | None = None) -> Pack:
    """Our own rules and then those of `user_dir`, which may add entries of every section or replace ours by id.

    Raises:
        RuleError: a file that does not validate: ``path:line: what, and how to mend``; the first of them all.
    """
    pack, errors = read_pack(user_dir)
    if errors:
        more = f" (and {len(errors) - 1} more: inferdoc rules check {user_dir})" if len(errors) > 1 else ""
        raise RuleError(f"{errors[0]}{more}")
    return pack


def near_matches(id: str, known: Iterable[str]) -> list[str]:
    """Ids that look like `id`: spelled nearly the same, or holding it."""
    names = sorted(set(known))
    close = get_close_matches(id, names, n=5, cutoff=0.6)
    return close + [name for name in names if id and id in name and name not in close][: 5 - len(close)]


def _near(id: str, known: Iterable[str]) -> str:
    close = near_matches(id, known)
    return f"; did you mean '{close[0]}'?" if close else ""


def _explain(error: ValidationError, document: Document) -> Iterator[RuleError]:
    """One `RuleError` for each thing pydantic found, at its line, in plain words."""
    for item in error.errors():
        loc = tuple(part for part in item["loc"] if part != "[key]")
        name = str(loc[-1]) if loc else ""
        place = ".".join(str(part) if str(part).isprintable() else repr(part) for part in loc) or "the file"
        match item["type"]:
            case "extra_forbidden":
                known = _KEYS.get(_owner(loc), ())
                message = f"{place}: unknown key {name!r}" + (_near(name, known) or "; remove it")
            case "missing":
                message = f"{place}: '{name}' is missing; add it"
            case "string_type" if isinstance(item["input"], bool | int | float):
                message = f"{place}: YAML reads this as {item['input']!r}, not as text; put it in quotes"
            case "value_error":
                message = f"{place}: {item['ctx']['error']}"
            case _:
                message = f"{place}: {item['msg']}"
        yield RuleError(message, where=document.where(loc))


def _owner(loc: tuple[str | int, ...]) -> str:
    """The name of the key that holds the mapping in which the last part of `loc` stands."""
    return next((part for part in reversed(loc[:-1]) if isinstance(part, str)), "")


def _names(model: type[schema.Strict]) -> tuple[str, ...]:
    return tuple(info.alias or name for name, info in model.model_fields.items())


_KEYS: dict[str, tuple[str, ...]] = {
    "": _names(schema.RuleFile),
    "rules": _names(schema.Rule),
    "cases": _names(schema.Case),
    "requires": _names(schema.Requirement),
    "effects": _names(schema.Effect),
    "change": _names(schema.Setting),
    "techniques": _names(schema.Technique),
    "complexity": _names(schema.Complexity),
    "claims": _names(schema.ClaimEntry),
    **dict.fromkeys(("when", "all", "any", "unless", "shown"), _names(schema.Condition)),
}
