"""Stored results as the gate reads them: evidence of one run, or a baseline file with the sessions of many."""

from __future__ import annotations

import json
from pathlib import Path

from inferdoc.errors import InputError
from inferdoc.evidence import read_evidence
from inferdoc.gate.baselines import SCHEMA, read_baseline
from inferdoc.gate.sessions import Session, session_of
from inferdoc.rules import diagnose, load_pack


def read_stored(path: Path) -> list[Session]:
    """The sessions at `path` (an ``evidence.json``, a folder with one, or a baseline file), newest last.

    Raises:
        InputError: it cannot be read, or is of another schema.
    """
    file = path / "evidence.json" if path.is_dir() else path
    if _schema_name(file) == SCHEMA.name:
        return read_baseline(file).sessions
    evidence = read_evidence(file)
    return [session_of(evidence, diagnose(evidence, load_pack()))]


def _schema_name(file: Path) -> str | None:
    """``None`` where the file does not say; what is wrong with it then is for `read_evidence` to say."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    except RecursionError:
        raise InputError(f"{file}: nested too deeply to be a stored result; give an evidence.json") from None
    schema = content.get("schema") if isinstance(content, dict) else None
    name = schema.get("name") if isinstance(schema, dict) else None
    return name if isinstance(name, str) else None
