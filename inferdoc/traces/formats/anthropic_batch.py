"""Anthropic message batches: requests (``params``), results (``result``), or both, joined by ``custom_id``.

``usage.input_tokens`` leaves out what was read from or written to the cache; assembly adds both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inferdoc.traces import shown
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.batches import FAILED, Batch, identity
from inferdoc.traces.formats.bodies import answer_of, asked
from inferdoc.traces.formats.format import Format, all_of, has, has_any
from inferdoc.traces.formats.requests import mapping
from inferdoc.traces.ledger import Ledger, RowError
from inferdoc.traces.records import Record

_NAMES = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read": "cache_read_input_tokens",
    "cache_creation": "cache_creation_input_tokens",
}
_TYPES = ("succeeded", "errored", "canceled", "expired")


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    batch = Batch()
    for line, record in records:
        try:
            if "params" in record:
                _add_request(batch, line, record)
            else:
                batch.answers.append((line, identity(record), _answer(record)))
        except RowError as error:
            ledger.refuse(line, str(error), error.reason)
    requests, notes = batch.requests("anthropic-batch", ledger)
    return requests.draft(names=_NAMES, notes=notes)


def _add_request(batch: Batch, line: int, record: Mapping[str, Any]) -> None:
    params = mapping(record.get("params"))
    values, prompt = asked(params, line)
    if prompt is None:
        raise RowError(f"params has no messages (keys {shown.keys(params)})", "params without messages")
    batch.limit(params, "max_tokens")
    batch.asked.append((line, identity(record), values, prompt))


def _answer(record: Mapping[str, Any]) -> dict[str, Any]:
    result = mapping(record.get("result"))
    kind = result.get("type")
    if kind not in _TYPES:
        raise RowError(f"result.type is {shown.kind(kind)}: expected {', '.join(_TYPES)}", "a result of no known type")
    if kind != "succeeded":
        return {"error": FAILED}
    message = mapping(result.get("message"))
    usage = mapping(message.get("usage"))
    return {role: usage.get(name) for role, name in _NAMES.items()} | {
        "model": message.get("model"),
        "output_text": answer_of(message),
    }


FORMAT = Format(
    "anthropic-batch", "Anthropic message batch", all_of(has("custom_id"), has_any("params", "result")), read
)
