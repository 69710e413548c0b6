"""Writing files, each whole or not at all: the four of a diagnosis here, those of a gate in `gate_writing`."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from pathlib import Path
from typing import Any

from inferdoc.errors import InputError
from inferdoc.evidence import Artifact, Contract, Diagnosis, Evidence
from inferdoc.files import write_whole
from inferdoc.reports.html import render_html
from inferdoc.reports.markdown import render_markdown
from inferdoc.reports.text import without_surrogates


def prepare_output(out: Path) -> None:
    """Make the folder `out` where it is missing and try that it can be written to: best before anything is measured.

    Raises:
        InputError: it cannot be made or written to.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=out):
            pass
    except OSError as error:
        raise InputError(f"{out}: cannot be written to ({error.strerror}); choose another folder with -o") from None


def write_all(evidence: Evidence, diagnosis: Diagnosis, out: Path, templates: Path | None = None) -> list[Artifact]:
    """Write evidence.json, report.html, report.md and diagnosis.json (which lists the other three) into `out`.

    The evidence goes first, so that what was measured is kept even when a user's template is wrong.

    Raises:
        InputError: `out` cannot be written to, or a template of `templates` is wrong.
    """
    prepare_output(out)
    written = [write(out / "evidence.json", to_json(evidence))]
    written.append(write(out / "report.html", render_html(evidence, diagnosis, templates=templates)))
    written.append(write(out / "report.md", render_markdown(evidence, diagnosis, templates=templates)))
    listed = diagnosis.model_copy(update={"artifacts": list(written)})
    written.append(write(out / "diagnosis.json", to_json(listed)))
    return written


def to_json(contract: Contract, *, sort_keys: bool = False) -> str:
    """`contract` as JSON in ASCII: no NaN, no Infinity and no lone surrogate, which other readers refuse."""
    plain = _portable(contract.model_dump(mode="python", by_alias=True))
    text = json.dumps(plain, indent=1, allow_nan=False, default=str, sort_keys=sort_keys) + "\n"
    return text.replace("##[", "#\\u0023[")  # the same to a reader, and no command in a log that it is printed to


def _portable(value: Any) -> Any:
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {without_surrogates(str(key)): _portable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_portable(item) for item in value]
    return value


def write(path: Path, text: str) -> Artifact:
    """Put `text` into the file `path` in one step: an earlier file of that name stays whole until then.

    Raises:
        InputError: it cannot be written.
    """
    content = text.encode("utf-8")
    try:
        write_whole(path, content)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); choose another folder with -o") from None
    return Artifact(path=path.name, sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
