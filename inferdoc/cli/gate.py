"""``inferdoc gate``: parse, call, write, exit code."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inferdoc.cli.exits import Answer
from inferdoc.errors import InputError

if TYPE_CHECKING:
    from inferdoc.gate.policy import Policy
    from inferdoc.gate.result import GateResult

DEFAULT_POLICY = Path("inferdoc-gate.toml")

app = typer.Typer(
    help="Fail a change that makes serving worse: paired runs, exact tests, and the diagnosis itself. Exit codes: 0 "
    "passed, 1 regressed, 2 bad input, 3 inconclusive, 4 not comparable, 5 a measurement failed.",
    no_args_is_help=True,
)

PolicyPath = Annotated[Path, typer.Option("--policy", "-p", help="The gate's policy (TOML or YAML).")]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder for the results and the arms' logs.")]


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = DEFAULT_POLICY,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a policy to start from: the embedded model against itself, every key explained."""
    from inferdoc.gate.loading import example_policy

    if path.exists() and not force:
        raise InputError(f"{path} exists; name another file, or give --force")
    try:
        path.write_text(example_policy(), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None
    typer.echo(f"{path}: now run  inferdoc gate run --policy {path}")


@app.command()
def run(policy: PolicyPath = DEFAULT_POLICY, output: Output = Path("inferdoc-gate")) -> None:
    """Measure the policy's two arms in pairs on this device, and judge the candidate."""
    from inferdoc.gate.loading import load_policy
    from inferdoc.progress import Progress
    from inferdoc.reports import prepare_output

    read = load_policy(policy)
    prepare_output(output)
    from inferdoc.gate.running import run_gate

    _tell(run_gate(read, output, Progress(), _command()), output)


@app.command()
def compare(
    stored: Annotated[
        list[Path],
        typer.Argument(
            metavar="[BASE] CAND",
            help="Each an evidence.json, a report's folder, or a baseline file. Without BASE: the policy's baseline.",
        ),
    ],
    policy: Annotated[Path | None, typer.Option("--policy", "-p", help="Limits; without it all is shown.")] = None,
    output: Output = Path("inferdoc-gate"),
) -> None:
    """Compare stored results: budgets can fail; differences only with a history of sessions on both sides."""
    from inferdoc.gate.comparing import compare_stored
    from inferdoc.reports import prepare_output

    if len(stored) > 2:
        raise InputError(f"gate compare takes a baseline and a candidate, not {len(stored)} files")
    read = _policy(policy)
    prepare_output(output)
    baseline = stored[0] if len(stored) == 2 else None
    _tell(compare_stored(baseline, stored[-1], read, command=_command()), output)


@app.command()
def record(
    policy: PolicyPath = DEFAULT_POLICY,
    evidence: Annotated[
        Path | None, typer.Option(help="Record this evidence.json instead of running the baseline arm.")
    ] = None,
    candidate: Annotated[
        bool, typer.Option("--candidate", help="Run the candidate arm, into --into: sessions to compare.")
    ] = False,
    into: Annotated[Path | None, typer.Option(help="File to add the session to. Default: by the policy.")] = None,
    output: Output = Path("inferdoc-gate"),
) -> None:
    """Add a session to the stored baseline of this workload and machine; only clean runs enter."""
    from inferdoc.gate.loading import load_policy
    from inferdoc.progress import Progress
    from inferdoc.reports import prepare_output

    if candidate and into is None:
        raise InputError("--candidate needs --into FILE: a candidate's sessions don't belong into the baseline's file")
    read = load_policy(policy)
    prepare_output(output)
    from inferdoc.gate.recording import record_session

    path, sessions = record_session(
        read,
        "candidate" if candidate else "baseline",
        evidence=evidence,
        into=into,
        output=output,
        progress=Progress(),
        command=_command(),
    )
    typer.echo(f"{path}: {sessions} session{'s' if sessions > 1 else ''}")


@app.command()
def calibrate(
    policy: PolicyPath = DEFAULT_POLICY,
    sessions: Annotated[int, typer.Option(min=1, help="A/A sessions of the policy's pairs.")] = 3,
    output: Output = Path("inferdoc-gate"),
) -> None:
    """Run the baseline against itself: the noise of each metric here, false alarms, limits that hold."""
    from inferdoc.gate.loading import load_policy
    from inferdoc.progress import Progress
    from inferdoc.reports import prepare_output

    read = load_policy(policy)
    prepare_output(output)
    from inferdoc.gate.calibrating import calibrate as measure

    path, calibration = measure(read, sessions, output, Progress(), _command())
    from inferdoc.reports.gate_terminal import print_calibration

    print_calibration(calibration, path)


def _policy(path: Path | None) -> Policy:
    """The policy named, else the one that lies here, else the defaults."""
    from inferdoc.gate.loading import load_policy
    from inferdoc.gate.policy import Policy

    if path is None and not DEFAULT_POLICY.exists():
        return Policy()
    return load_policy(path or DEFAULT_POLICY)


def _tell(result: GateResult, output: Path) -> None:
    """Write and print the result, then end with its exit code."""
    import os

    from inferdoc.reports.gate_terminal import print_gate
    from inferdoc.reports.gate_writing import announce, write_gate

    files = write_gate(result, output)
    print_gate(result, [output / file.path for file in files])
    announce(result, os.environ)
    raise Answer(result.exit_code)


def _command() -> str:
    return shlex.join(["inferdoc", *sys.argv[1:]])
