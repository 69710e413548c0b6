"""``inferdoc rules``: check a folder of rules, and explain a rule."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferdoc.errors import EXIT_BAD_INPUT, RuleError

app = typer.Typer(help="Check your own rules, and read what a rule asks and why.", no_args_is_help=True)


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder with rule files (*.yaml).")],
) -> None:
    """Validate the rule files of DIR together with the built-in ones; print every error with its line."""
    from inferdoc.rules import read_pack

    try:
        pack, errors = read_pack(folder)
    except RuleError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_BAD_INPUT) from None
    for found in errors:
        typer.echo(f"error: {found}", err=True)
    if errors:
        typer.echo(f"{len(errors)} error{'s' if len(errors) != 1 else ''} in {folder}", err=True)
        raise typer.Exit(EXIT_BAD_INPUT)
    own = [source for source in pack.sources.items() if source[1].startswith(f"{folder}/")]
    counts = {section: sum(key.startswith(f"{section}:") for key, _ in own) for section in _SECTIONS}
    files = sum(name.startswith(f"{folder}/") for name in pack.files)
    summary = ", ".join(f"{count} {section}" for section, count in counts.items() if count)
    typer.echo(f"{folder}: {files} file{'s' if files != 1 else ''}, {summary or 'nothing in them'}")
    for sentence in pack.replaced:
        typer.echo(f"  {sentence}")
    typer.echo(f"with the built-in pack: {len(pack.rules)} rules, {len(pack.techniques)} techniques")


_SECTIONS = ("rules", "techniques", "constants", "claims", "objectives")


@app.command()
def explain(
    rule: Annotated[str, typer.Argument(metavar="ID", help="Id of a rule, for example prefix-caching.")],
    folder: Annotated[
        Path | None, typer.Option("--rules", metavar="DIR", help="Your own rules, read after the built-in ones.")
    ] = None,
) -> None:
    """Say what a rule asks, why, on which thresholds, and where they come from."""
    from inferdoc.rules import load_pack
    from inferdoc.rules.explanation import explain as explanation
    from inferdoc.rules.loading import near_matches

    try:
        pack = load_pack(folder)
    except RuleError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_BAD_INPUT) from None
    loaded = pack.rule(rule)
    if loaded is None:
        known = [candidate.rule.id for candidate in pack.rules]
        near = near_matches(rule, known)
        hint = f"did you mean {', '.join(near)}?" if near else f"known rules: {', '.join(known)}"
        typer.echo(f"error: there is no rule '{rule}'; {hint}", err=True)
        raise typer.Exit(EXIT_BAD_INPUT)
    typer.echo(explanation(loaded, pack))
