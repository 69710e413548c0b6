"""Errors a user can meet.

InferdocError
├── InputError        bad input: trace, model, flag, rule, output folder       exit code 2
│   ├── TraceError    a trace that cannot be read, with file:line
│   ├── ModelError    a model that cannot be sized, loaded or run
│   ├── RuleError     a rule file that does not validate, with file:line
│   └── PolicyError   a gate's policy that does not validate, with file:line
├── MeasurementError  a measurement that failed; becomes that arm's result, never the end of a run
│   ├── BudgetEndedError  the time given to the diagnosis is over
│   └── UnsupportedHereError  the device lacks what it takes
├── NotComparableError  the gate has nothing to compare with                  exit code 4
└── InvalidRunError     what was measured can't be judged or recorded         exit code 5
"""

from __future__ import annotations

EXIT_REGRESSED = 1
EXIT_BAD_INPUT = 2
EXIT_INCONCLUSIVE = 3
EXIT_NOT_COMPARABLE = 4
EXIT_INVALID = 5
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130


class InferdocError(Exception):
    """Base of every error whose message is meant for the user: what, where, and how to mend it."""


class InputError(InferdocError):
    """Bad input. The CLI prints the message alone and exits with code 2."""

    exit_code = EXIT_BAD_INPUT


class TraceError(InputError):
    """A trace that cannot be read. `where` is ``path`` or ``path:line`` as the user gave it."""

    def __init__(self, message: str, *, where: str | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class ModelError(InputError):
    """A model that cannot be sized, loaded or run; says what still works."""


class RuleError(InputError):
    """A rule file that does not validate. `where` is ``path:line``."""

    def __init__(self, message: str, *, where: str | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class PolicyError(InputError):
    """A gate's policy that does not validate. `where` is ``path:line``, or ``path`` where no line is to blame."""

    def __init__(self, message: str, *, where: str | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class MeasurementError(InferdocError):
    """A measurement failed (out of memory, lengths not as forced). The diagnosis goes on without it."""


class BudgetEndedError(MeasurementError):
    """The time given to the diagnosis is over in the middle of a run; that run does not count."""


class UnsupportedHereError(MeasurementError):
    """What this device cannot do. The message follows *not measured:*, as in ``needs compute capability 8.9``."""


class NotComparableError(InferdocError):
    """The gate has nothing to compare with: no baseline, or no metric that both sides have."""

    exit_code = EXIT_NOT_COMPARABLE


class InvalidRunError(InferdocError):
    """A gated run, or one to be recorded, that can't be used: an arm crashed, or the run was not clean."""

    exit_code = EXIT_INVALID
