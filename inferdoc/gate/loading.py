"""Reading a policy file (``inferdoc-gate.toml``, or YAML with the same keys), with every error at its line."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from inferdoc.errors import PolicyError, RuleError
from inferdoc.gate.comparability import FIELDS as COMPARABLE
from inferdoc.gate.metric_limits import read_metrics
from inferdoc.gate.policy import (
    ArmPolicy,
    BaselinePolicy,
    ComparablePolicy,
    CostPolicy,
    DesignPolicy,
    DiagnosisPolicy,
    ExitPolicy,
    Policy,
    StatisticsPolicy,
    WorkloadPolicy,
)
from inferdoc.gate.problems import Problems
from inferdoc.gate.sections import ARM, FIELDS, SECTIONS
from inferdoc.gate.toml_lines import read_toml
from inferdoc.gate.values import near
from inferdoc.rules.yaml_lines import Document, read_document

SCHEMA = 1
GROUPS = ("must_match", "may_vary", "warn")
_TOP = ("schema", *SECTIONS, "metric", "arm")


def load_policy(path: Path) -> Policy:
    """The policy of a file; what it leaves out has its default.

    Raises:
        PolicyError: unreadable, not TOML or YAML, or not a policy; with ``file:line`` of everything that is wrong.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PolicyError(f"cannot be read ({error.strerror}); give a policy file", where=str(path)) from None
    document = _read(path, content)
    problems = Problems(document)
    _check_top(problems)
    sections = {name: _section(problems, name) for name in SECTIONS}
    _check_design(problems, sections["design"])
    _check_comparable(problems, sections["comparable"])
    if {"load", "rate"} <= sections["workload"].keys():
        problems.add(("workload", "rate"), "rate: stands in place of load; leave one out")
    metrics = read_metrics(problems)
    arms = _arms(problems)
    for index, table in enumerate(document.data["metric"] if metrics else ()):
        if isinstance(table, dict) and table.get("id") == "cost_per_million_tokens" and "cost" not in document.data:
            problems.add(("metric", index, "id"), "a cost needs the device's price; add [cost] with per_hour")
    problems.refuse()
    return Policy(
        path=str(path),
        sha256=hashlib.sha256(content).hexdigest(),
        baseline=BaselinePolicy(**sections["baseline"]),
        design=DesignPolicy(**sections["design"]),
        comparable=ComparablePolicy(**sections["comparable"]),
        statistics=StatisticsPolicy(**sections["statistics"]),
        diagnosis=DiagnosisPolicy(**sections["diagnosis"], line=_line_of_diagnosis(problems)),
        workload=WorkloadPolicy(**sections["workload"]),
        arms=arms,
        metrics=metrics,
        exit=ExitPolicy(**sections["exit"]),
        cost=CostPolicy(**sections["cost"]) if sections["cost"] else None,
    )


def example_policy() -> str:
    """A policy to start from, with comments."""
    return files("inferdoc.gate").joinpath("example.toml").read_text(encoding="utf-8")


def _read(path: Path, content: bytes) -> Document:
    if path.suffix == ".toml":
        return read_toml(content, str(path))
    if path.suffix not in {".yaml", ".yml"}:
        raise PolicyError("not a policy: its name must end in .toml, .yaml or .yml", where=str(path))
    try:
        return read_document(content, str(path), kind="a gate's policy", keys="'schema' and 'metric'")
    except RuleError as error:
        raise PolicyError(str(error).removeprefix(f"{error.where}: "), where=error.where) from None
    except RecursionError:
        raise PolicyError("nested too deeply", where=f"{path}:1") from None


def _check_top(problems: Problems) -> None:
    data = problems.document.data
    for key in map(str, data):
        if key not in _TOP:
            home = next((f"[{name}]" for name, keys in SECTIONS.items() if key in keys), None)
            hint = f"it belongs to {home}" if home else near(key, _TOP)
            problems.add((key,), f"a policy has no section or key {key!r}; {hint}")
    if "schema" not in data:
        problems.add((), f"schema is missing; write schema = {SCHEMA} at the top")
    elif type(data["schema"]) is not int or data["schema"] != SCHEMA:
        problems.add(
            ("schema",), f"schema {data['schema']!r} is not known to this version, which reads schema {SCHEMA}"
        )


def _section(problems: Problems, name: str) -> dict[str, Any]:
    table = problems.document.data.get(name, {})
    values = problems.read((name,), table, SECTIONS[name], f"[{name}]")
    if name == "cost" and isinstance(table, dict) and name in problems.document.data and "per_hour" not in table:
        problems.add((name,), "[cost] has no per_hour; give the price of an hour of the device")
    return {FIELDS.get(key, key): value for key, value in values.items()}


def _check_design(problems: Problems, values: dict[str, Any]) -> None:
    """`max_pairs` is not below `pairs`; where the file leaves it out, `pairs` may raise it."""
    written = problems.document.data.get("design", {})
    pairs = values.get("pairs", DesignPolicy().pairs)
    if "max_pairs" in values and values["max_pairs"] < pairs:
        problems.add(("design", "max_pairs"), f"max_pairs: is {values['max_pairs']}, below pairs ({pairs})")
    elif isinstance(written, dict) and "max_pairs" not in written:
        values["max_pairs"] = max(pairs, DesignPolicy().max_pairs)


def _check_comparable(problems: Problems, values: dict[str, Any]) -> None:
    """Known fields, each in one list. What the file names in one is taken out of the defaults of the others."""
    homes: dict[str, str] = {}
    for group in GROUPS:
        for index, name in enumerate(values.get(group, ())):
            place = ("comparable", group, index)
            if name not in COMPARABLE:
                problems.add(place, f"{group}: there is no field {name!r}; {near(str(name), COMPARABLE)}")
            elif name in homes:
                where = "twice in" if homes[name] == group else f"in {homes[name]} and in"
                problems.add(place, f"{group}: {name!r} stands {where} {group}; keep one")
            else:
                homes[name] = group
    for group in GROUPS:
        if group in values:
            values[group] = tuple(values[group])
        elif homes:
            values[group] = tuple(name for name in getattr(ComparablePolicy(), group) if name not in homes)


def _line_of_diagnosis(problems: Problems) -> int | None:
    """Where a change of the diagnosis was made to count; ``None`` where the file leaves it to the defaults."""
    given = problems.document.data.get("diagnosis")
    return problems.line(("diagnosis", "on_diagnosis_change")) if given is not None else None


def _arms(problems: Problems) -> dict[Literal["baseline", "candidate"], ArmPolicy]:
    """Both arms, or none; what the candidate leaves out, but for its command, is the baseline's."""
    if "arm" not in problems.document.data:
        return {}
    tables = problems.document.data["arm"]
    if not isinstance(tables, dict) or not tables:
        problems.add(("arm",), "write the arms as [arm.baseline] and [arm.candidate]")
        return {}
    names: tuple[Literal["baseline"], Literal["candidate"]] = ("baseline", "candidate")
    for name in map(str, tables):
        if name not in names:
            problems.add(("arm", name), f"there is no arm {name!r}; {near(name, names)}")
    arms: dict[Literal["baseline", "candidate"], ArmPolicy] = {}
    inherited: dict[str, Any] = {}
    for arm in names:
        values = problems.read(("arm", arm), tables.get(arm, {}), ARM, f"[arm.{arm}]")
        lines = {key: problems.line(("arm", arm, key)) for key in values}
        command = values.pop("command", None)
        inherited = {**inherited, **values}
        settings = {key: value for key, value in inherited.items() if key != "model"}
        model = {"model": inherited["model"]} if "model" in inherited else {}
        arms[arm] = ArmPolicy(**model, command=command, settings=settings, lines=lines)
    return arms
