"""How a command that has an answer tells the shell."""

from __future__ import annotations


class Answer(Exception):  # noqa: N818
    """The command ran to its end and its answer is this exit code."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code
