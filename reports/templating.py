"""Jinja2 set up for reports: strict, sandboxed, with escaping that a template cannot forget.

A user's folder of templates (``--templates DIR``) is looked in first, so it may replace any of `NAMES`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import BaseLoader, ChoiceLoader, FileSystemLoader, StrictUndefined, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inferdoc.errors import InputError
from inferdoc.evidence import Conclusion, Truth
from inferdoc.reports import formatting, gate_formatting
from inferdoc.reports.definitions import GATE_DEFINITIONS, definitions

OURS = Path(__file__).parent / "templates"
NAMES = (
    *("report.html.j2", "report.md.j2", "report.css", "macros.html.j2"),
    *("gate.html.j2", "gate_section.html.j2", "gate.md.j2"),
)

ICONS = {
    Conclusion.RECOMMENDED: "✓",
    Conclusion.DOES_NOT_PAY: "✕",
    Conclusion.NOT_NEEDED: "–",
    Conclusion.INCONCLUSIVE: "?",
    Conclusion.NOT_MEASURED: "○",
}
OUTCOMES = {Truth.YES: "✓ holds", Truth.NO: "✕ does not hold", Truth.UNDECIDED: "? undecided", None: "context"}
EFFECTS: dict[formatting.Effect, str] = {"better": "▲", "worse": "▼", "no difference shown": "="}


def environment(
    user_templates: Path | None, *, escape: Callable[[Any], Any], autoescape: bool
) -> ImmutableSandboxedEnvironment:
    """The environment of one kind of report. Every value printed by a template goes through `escape`."""
    loader: BaseLoader = FileSystemLoader(OURS)
    if user_templates is not None:
        loader = ChoiceLoader([FileSystemLoader(_checked(user_templates)), loader])
    made = ImmutableSandboxedEnvironment(
        loader=loader,
        autoescape=autoescape,
        undefined=StrictUndefined,
        finalize=escape,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {
        name: getattr(formatting, name)
        for name in (
            *("number", "factor", "point", "interval", "full", "expected", "effect", "bases"),
            *("threshold", "count", "pairs", "measured_on", "scale_text"),
        )
    }
    made.filters |= {name: getattr(gate_formatting, name) for name in gate_formatting.FILTERS}
    made.filters |= {"state": formatting.environment_value, "https": https_links}
    made.globals |= {"icons": ICONS, "outcomes": OUTCOMES, "effects": EFFECTS}
    made.globals |= {"definitions": definitions, "gate_definitions": GATE_DEFINITIONS}
    made.globals |= {"pairs_needed": formatting.PAIRS_NEEDED}
    return made


def render(environment: ImmutableSandboxedEnvironment, name: str, **context: Any) -> str:
    """Render the template `name`.

    Raises:
        InputError: a template of the user fails, with its file and line. A failure of ours is raised as it is.
    """
    try:
        return environment.get_template(name).render(context)
    except TemplateSyntaxError as error:
        raise InputError(f"{error.filename or name}:{error.lineno}: {error.message}; mend the template") from None
    except Exception as error:
        where = _place(error, environment)
        if where is None:
            raise
        raise InputError(f"{where}: {type(error).__name__}: {error}; mend the template") from None


def _place(error: Exception, environment: ImmutableSandboxedEnvironment) -> str | None:
    """``file:line`` of the innermost template in which `error` was raised, when that is not one of ours."""
    frames = traceback.extract_tb(error.__traceback__)
    names = set(environment.loader.list_templates()) if environment.loader else set()
    places = [frame for frame in frames if Path(frame.filename).name in names]
    if not places or Path(places[-1].filename).parent == OURS:
        return None
    return f"{places[-1].filename}:{places[-1].lineno}"


def https_links(refs: list[str]) -> list[str]:
    """The references that may become links: https, and nothing in them that could leave an attribute."""
    return [
        ref for ref in refs if ref.startswith("https://") and ref.isascii() and not set(ref) & set(" \"'<>\\`\t\r\n")
    ]


def _checked(folder: Path) -> Path:
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of templates")
    if not any((folder / name).is_file() for name in NAMES):
        raise InputError(f"{folder}: holds no template; name one of yours {', '.join(NAMES)}")
    return folder
