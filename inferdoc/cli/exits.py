"""How a command that has an answer tells the shell."""

from __future__ import annotations

import re


class Answer(Exception):  # noqa: N818
    """The command ran to its end and its answer is this exit code."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


def plain(message: str) -> str:
    """An error as it may be printed to a CI's log: no line of it reads as a command of the runner.

    GitHub's runner obeys lines that begin with ``::`` or ``##[``, on either stream, and text of ours may quote others'.
    """
    shown = "".join(c if c == "\n" or c.isprintable() else f"\\x{ord(c):02x}" for c in message)
    return re.sub(r"(?m)^(\s*)(::|##\[)", r"\1| \2", shown)
