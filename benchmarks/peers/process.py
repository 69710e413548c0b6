"""The benchmark's side: a worker process, stopped by signal whenever it is not its turn."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class WorkerError(Exception):
    """A worker could not load, failed in a job, or gave no answer in time; the message says which."""


@dataclass(frozen=True)
class Job:
    """What one job took and gave."""

    seconds: float
    tokens: list[list[int]]

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.tokens)) / self.seconds


class Worker:
    """An engine in a process of its own, with its children one process group.

    Between two calls the whole group is stopped (SIGSTOP), so that no idle engine's thread spins beside the one that is
    measured.

    Args:
        command: interpreter and script.
        settings: the first line that the script reads.
        environment: variables on top of this process's own.
        load_timeout_s: for loading.

    Raises:
        WorkerError: it could not be started or did not load.
    """

    def __init__(
        self,
        command: Sequence[str],
        settings: Mapping[str, Any],
        environment: Mapping[str, str],
        load_timeout_s: float = 300.0,
    ) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._unread = b""
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        except OSError as error:
            self._log.close()
            raise WorkerError(f"cannot be started: {error.strerror}") from None
        self.facts: dict[str, Any] = self._ask(settings, load_timeout_s)["ready"]

    def run(self, prompts: list[list[int]], new_tokens: int, timeout_s: float = 300.0) -> Job:
        """Do a job.

        Raises:
            WorkerError: it failed; the process is gone.
        """
        reply = self._ask({"prompts": prompts, "new_tokens": new_tokens}, timeout_s)
        lengths = [len(tokens) for tokens in reply["tokens"]]
        if lengths != [new_tokens] * len(prompts):
            self._fail(f"{sum(lengths)} tokens came back of {len(prompts)} x {new_tokens}: it did other work")
        return Job(reply["seconds"], reply["tokens"])

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        """End the process and its children; nothing happens where they have ended."""
        if not self.ended:
            self._signal(signal.SIGKILL)
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None and not stream.closed:
                stream.close()

    def _ask(self, message: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._fail("the process ended")
        reply: dict[str, Any] = json.loads(self._read_line(timeout_s))
        if "error" in reply:
            self._fail(reply["error"])
        self._signal(signal.SIGSTOP)
        return reply

    def _read_line(self, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        end = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                self._fail(f"no answer in {timeout_s:g} s")
            received = os.read(self._process.stdout.fileno(), 1 << 20)
            if not received:
                self._fail("the process ended")
            self._unread += received
        line, self._unread = self._unread.split(b"\n", 1)
        return line

    def _fail(self, reason: str) -> None:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        self.close()
        raise WorkerError(reason if not last or last in reason else f"{reason} ({last})")

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def end_on_signal() -> None:
    """Let a time limit from outside (SIGTERM) end this process as an error would, so that its workers end with it."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def cores() -> int:
    """Cores that this process may use; each engine gets all of them as threads."""
    return len(os.sched_getaffinity(0))


def python_of(environment: Path) -> Path:
    return environment / "bin" / "python"
