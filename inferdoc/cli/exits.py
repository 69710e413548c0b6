"""How a command tells the shell and the user what became of it."""

from __future__ import annotations

import sys

from inferdoc.logtext import plain


class Answer(Exception):  # noqa: N818
    """The command ran to its end and its answer is this exit code."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


def say(text: str) -> None:
    """A line on standard error, where there is one: a closed or full one must not change the exit code."""
    try:
        print(plain(text), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        sys.stderr = None  # else Python flushes it once more at the end
