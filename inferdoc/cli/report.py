"""``inferdoc report``: write the reports again from an earlier run's evidence, without a model and without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    evidence: Annotated[Path, typer.Argument(help="evidence.json of an earlier run", show_default=False)],
    rules: Annotated[
        Path | None, typer.Option(help="folder of your own rules, read after ours", show_default=False)
    ] = None,
    templates: Annotated[
        Path | None, typer.Option(help="folder of your own templates, used instead of ours", show_default=False)
    ] = None,
    gate: Annotated[
        Path | None, typer.Option(help="gate.json to tell in the report's comparison section", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="folder to write to; default: where the evidence is")
    ] = None,
) -> None:
    """Conclude and report again from evidence that was measured earlier."""
    from inferdoc.evidence import read_evidence
    from inferdoc.gate.result import read_gate_result
    from inferdoc.reports import print_diagnosis, write_all
    from inferdoc.rules import diagnose, load_pack

    measured = read_evidence(evidence)
    concluded = diagnose(measured, load_pack(rules))
    if gate is not None:
        concluded.comparison = read_gate_result(gate).model_dump(by_alias=True)
    folder = output if output is not None else evidence.parent
    write_all(measured, concluded, folder, templates)
    print_diagnosis(measured, concluded, folder)
