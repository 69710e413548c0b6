"""Results as JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_json(file: Path, result: dict[str, Any]) -> None:
    """Write it whole or not at all: a process that is ended meanwhile leaves what was there before."""
    unfinished = file.with_name(f".{file.name}.unfinished")
    unfinished.write_text(json.dumps(result, indent=2) + "\n")
    unfinished.replace(file)
