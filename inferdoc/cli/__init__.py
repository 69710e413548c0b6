"""The command line. One file a command; nothing heavy is imported before a command runs."""

from __future__ import annotations

import sys
import tempfile
import traceback

import typer

from inferdoc import __version__
from inferdoc.cli.diagnose import diagnose
from inferdoc.cli.doctor import doctor
from inferdoc.cli.exits import Answer, say
from inferdoc.cli.gate import app as gate_app
from inferdoc.cli.plan import plan
from inferdoc.cli.report import report
from inferdoc.cli.rules import app as rules_app
from inferdoc.cli.trace import app as trace_app
from inferdoc.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, InputError, InvalidRunError, NotComparableError

app = typer.Typer(
    name="inferdoc",
    help="Measures which LLM inference optimizations pay for your model and your traffic.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(diagnose)
app.command()(plan)
app.command()(report)
app.command()(doctor)
app.add_typer(gate_app, name="gate")
app.add_typer(rules_app, name="rules")
app.add_typer(trace_app, name="trace")


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line: 0 it ran, 2 bad input, 70 our own fault, 130 interrupted; of a gate also 1, 3, 4 and 5.

    Only an `Answer` ends with 1: a failure of ours, of Python or of the shell's pipe never reads as a regression.
    """
    try:
        app()
    except Answer as answer:
        sys.exit(answer.exit_code)
    except (InputError, NotComparableError, InvalidRunError) as error:
        say(f"error: {error}")
        sys.exit(error.exit_code)
    except SystemExit as ended:
        sys.exit(EXIT_INTERNAL if ended.code == 1 or isinstance(ended.code, str) else ended.code)
    except KeyboardInterrupt:
        say("interrupted before anything was measured")
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:
        say(f"internal error: {type(error).__name__}: {error}\n{_logged()}")
        sys.exit(EXIT_INTERNAL)


def _logged() -> str:
    """Where the traceback of the present exception was put."""
    try:
        with tempfile.NamedTemporaryFile("w", prefix="inferdoc-", suffix=".log", delete=False) as log:
            traceback.print_exc(file=log)
    except OSError:
        return "please report it; its traceback could not be stored"
    return f"please report it with {log.name}"
