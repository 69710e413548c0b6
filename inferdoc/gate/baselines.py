"""Stored baselines: a file for each workload and machine, with the last sessions of clean runs in it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, ValidationError

from inferdoc.errors import InputError, InvalidRunError
from inferdoc.evidence import Contract, Schema
from inferdoc.files import write_whole
from inferdoc.gate.locking import locked
from inferdoc.gate.policy import Policy
from inferdoc.gate.sessions import Session

SCHEMA = Schema(name="inferdoc.baseline", version="1.0")
_DIGITS = 12
"""Of a fingerprint, in a file's name."""


class BaselineFile(Contract):
    schema_: Annotated[Schema, Field(alias="schema")] = SCHEMA
    sessions: list[Session]
    """Newest last."""

    model_config = ConfigDict(populate_by_name=True)


def baseline_path(policy: Policy, session: Session) -> Path:
    """Where the policy keeps the baseline of this workload on this machine; from the policy file's folder."""
    folder = Path(policy.path).parent if policy.path else Path()
    name = policy.baseline.path.replace("{workload}", _short(session.workload.fingerprint))
    return folder / name.replace("{env}", _short(session.environment.fingerprint))


def _short(fingerprint: str) -> str:
    """Safe as a part of a path, whatever a file calls its fingerprint."""
    return re.sub(r"[^0-9A-Za-z]", "_", fingerprint[:_DIGITS])


def read_baseline(path: Path) -> BaselineFile:
    """Read a baseline file.

    Raises:
        InputError: it is missing, damaged, empty, or of another schema.
    """
    try:
        text = path.read_text(encoding="utf-8")
        baseline = BaselineFile.model_validate_json(text)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); record a baseline with `inferdoc gate record`") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole file"
        raise InputError(
            f"{path}: not a baseline: {where}: {first['msg']}; restore it, or move it away and record a new one"
        ) from None
    schema = baseline.schema_
    if schema.name != SCHEMA.name or schema.version.partition(".")[0] != SCHEMA.version.partition(".")[0]:
        raise InputError(f"{path}: schema {schema.name} {schema.version}; this version reads {SCHEMA.name} 1.x")
    if not baseline.sessions:
        raise InputError(f"{path}: a baseline with no session in it; record one with `inferdoc gate record`")
    return baseline


def record(path: Path, session: Session, history_max: int) -> bool:
    """Enter a clean run as the newest session; the oldest beyond `history_max` go.

    Returns:
        False where this run is in the file already, which is then left as it is.

    Raises:
        InvalidRunError: the run is not clean.
        InputError: the file is damaged, or cannot be written. It is left as it is.
    """
    if problems := not_clean(session):
        raise InvalidRunError(
            f"{session.name} is not recorded as a baseline: {'; '.join(problems)}. Measure again on a quiet machine"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.parent):
            sessions = read_baseline(path).sessions if path.exists() else []
            if any(known.run_id == session.run_id for known in sessions):
                return False
            write_whole(path, _content(BaselineFile(sessions=[*sessions, session][-history_max:])))
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); set another [baseline] path") from None
    return True


def not_clean(session: Session) -> list[str]:
    """What keeps a run from being a baseline: it was cut short, disturbed, or a measurement of it failed."""
    problems = []
    if session.status != "complete":
        problems.append(f"the run is {session.status}")
    if session.validity.status != "valid":
        failed = [check.text.rstrip(".") for check in session.validity.checks if check.passed is False]
        problems.append(f"it is {session.validity.status} ({'; '.join(failed) or 'no check says why'})")
    return [*problems, *(f"failed: {failure}" for failure in session.failures)]


def _content(baseline: BaselineFile) -> bytes:
    text = json.dumps(baseline.model_dump(by_alias=True), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "replace")  # a lone surrogate of a file name can't be UTF-8
