"""Text for a log that a CI runner reads."""

from __future__ import annotations

import re


def plain(text: str) -> str:
    """`text` in which nothing is a command to GitHub's runner and no character is hidden; lines stay lines.

    The runner obeys ``::`` at the start of a line and ``##[`` anywhere in one (actions/runner, ActionCommand.cs), on
    standard output and error alike, and what we print may quote others' text.
    """
    shown = "".join(c if c == "\n" or c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    return re.sub(r"(?m)^(\s*)::", r"\1| ::", shown).replace("##[", "## [")
