"""Write docs/schemas/gate.schema.json from the contract of a gate's result: run it when `GateResult` changes."""

from __future__ import annotations

import json
from pathlib import Path

from inferdoc.gate.result import GateResult

PATH = Path(__file__).parent.parent / "docs" / "schemas" / "gate.schema.json"


def schema_text() -> str:
    """The JSON Schema of ``gate.json``."""
    schema = GateResult.model_json_schema(by_alias=True)
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=1) + "\n"


if __name__ == "__main__":
    PATH.parent.mkdir(parents=True, exist_ok=True)
    PATH.write_text(schema_text(), encoding="utf-8")
