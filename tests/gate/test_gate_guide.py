"""docs/gate.md says what the code does: keys with their defaults, metrics, verdicts, exit codes, commands, links."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from inferdoc import errors
from inferdoc.cli.gate import app
from inferdoc.gate import policy as models
from inferdoc.gate.registry import RUN_METRICS
from inferdoc.gate.result import GateVerdict
from inferdoc.gate.sections import ARM, FIELDS, METRIC, SECTIONS

MODELS: dict[str, type[BaseModel]] = {
    "baseline": models.BaselinePolicy,
    "design": models.DesignPolicy,
    "comparable": models.ComparablePolicy,
    "statistics": models.StatisticsPolicy,
    "diagnosis": models.DiagnosisPolicy,
    "workload": models.WorkloadPolicy,
    "metric": models.MetricPolicy,
}
NOT_WRITTEN = {"line", "units", "lines", "settings"}
"""What loading adds to the models."""


@pytest.fixture(scope="module")
def guide(repository: Path) -> str:
    return (repository / "docs" / "gate.md").read_text(encoding="utf-8")


def section(guide: str, title: str) -> str:
    (body,) = re.findall(rf"^### {re.escape(title)}\n(.*?)(?=^##)", guide, re.MULTILINE | re.DOTALL)
    return body


def defaults(text: str) -> dict[str, str]:
    return dict(re.findall(r"^\| `(\w+)` \| (none|`[^`]*`) \|", text, re.MULTILINE))


def read(cell: str, reader: Any) -> Any:
    """The value of a cell as the policy's own reader takes it from TOML."""
    value = reader(tomllib.loads(f"x = {cell.strip('`')}")["x"])
    return tuple(value) if isinstance(value, list) else value


@pytest.mark.parametrize("name", MODELS)
def test_every_key_stands_there_with_its_default(guide: str, name: str) -> None:
    readers = METRIC if name == "metric" else SECTIONS[name]
    cells = defaults(section(guide, "`[[metric]]`" if name == "metric" else f"`[{name}]`"))
    assert cells.keys() == readers.keys()
    fields = MODELS[name].model_fields
    for key, cell in cells.items():
        field = fields[FIELDS.get(key, key)]
        if cell == "none":
            assert field.is_required() or field.default in (None, ()), key
        else:
            assert read(cell, readers[key]) == field.default, key


def test_the_keys_of_exit_and_cost_stand_there(guide: str) -> None:
    cells = defaults(section(guide, "`[exit]`, `[cost]`"))
    assert cells == {"inconclusive": f"`{models.ExitPolicy().inconclusive}`", "per_hour": "none"}
    assert cells.keys() == {*SECTIONS["exit"], *SECTIONS["cost"]}


def test_every_key_of_an_arm_stands_there(guide: str) -> None:
    rows = re.findall(r"^\| (`[^|]*`) \|", section(guide, "`[arm.baseline]`, `[arm.candidate]`"), re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(ARM)


def test_no_field_of_the_models_is_left_unexplained(guide: str) -> None:
    written: dict[type[BaseModel], set[str]] = {
        model: set(model.model_fields) - NOT_WRITTEN for model in (*MODELS.values(), models.ExitPolicy)
    }
    written |= {model: set(model.model_fields) - NOT_WRITTEN for model in (models.ArmPolicy, models.CostPolicy)}
    by_field = {field: key for key, field in FIELDS.items()}
    for model, fields in written.items():
        for field in fields:
            assert f"`{by_field.get(field, field)}`" in guide, f"{model.__name__}.{field}"


def test_every_metric_stands_there_under_its_load(guide: str) -> None:
    rows = re.findall(r"^\| (`[^|]*) \| (all requests at once|open loop|of the arm)", guide, re.MULTILINE)
    loads = {"all requests at once": "saturated", "open loop": "open", "of the arm": "arm"}
    told: dict[str, str] = {}
    for ids, load in rows:
        quantiles = re.findall(r"`(p\d+)`", ids)
        for id in re.findall(r"`(\w+)`", ids):
            if id.endswith("_"):
                told |= {id + quantile: loads[load] for quantile in quantiles}
            elif id not in quantiles:
                told[id] = loads[load]
    assert told == {id: metric.load for id, metric in RUN_METRICS.items()}


def test_exit_codes_verdicts_and_commands(guide: str) -> None:
    codes = guide.partition("## Exit codes")[2].partition("\n## ")[0]
    told = [int(code) for code in re.findall(r"^\| (\d+) \|", codes, re.MULTILINE)]
    assert told == sorted({0, *(value for name, value in vars(errors).items() if name.startswith("EXIT_"))})
    verdicts = guide.partition("| of the gate |")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| ([a-z ]+) \|", verdicts, re.MULTILINE)) == {verdict.value for verdict in GateVerdict}
    commands = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    assert set(re.findall(r"^\| `gate (\w+)", guide, re.MULTILINE)) == commands


@pytest.mark.parametrize("name", ["docs/gate.md", "examples/ci/README.md", "README.md", "docs/architecture.md"])
def test_links_lead_somewhere(repository: Path, name: str) -> None:
    file = repository / name
    links = re.findall(r"\]\(([^)#]+)", file.read_text(encoding="utf-8"))
    assert [link for link in links if not link.startswith("https:") and not (file.parent / link).exists()] == []
