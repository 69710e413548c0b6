"""Progress on stderr: what is being done and how long it has taken; results never go there."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from inferdoc.logtext import plain


class Progress:
    """Prints stages as lines; on a terminal the step within a stage is rewritten in place.

    Args:
        stream: where to write; ``None`` for stderr.
        quiet: write nothing.
    """

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._began = time.monotonic()
        self._live = self._stream.isatty()
        self._open = False

    def say(self, text: str) -> None:
        """A line of information."""
        self._line(text)

    def stage(self, text: str) -> None:
        """A new stage begins."""
        self._line(f"[{time.monotonic() - self._began:5.0f} s] {text}")

    def step(self, text: str) -> None:
        """A step within the stage; shown only where it can be rewritten."""
        if self._live and not self._quiet:
            self._stream.write(f"\r\x1b[2K[{time.monotonic() - self._began:5.0f} s]   {plain(text[:100])}")
            self._stream.flush()
            self._open = True

    def close(self) -> None:
        """Leave the cursor on a fresh line."""
        if self._open:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()
            self._open = False

    def _line(self, text: str) -> None:
        if not self._quiet:
            self.close()
            self._stream.write(plain(text) + "\n")
            self._stream.flush()
