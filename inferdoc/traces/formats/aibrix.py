"""AIBrix workload: JSONL, one line a moment, with ``timestamp`` in ms and ``requests[]``.

Names of fields come as ``Prompt Length`` and, newer, as ``prompt_length``; an output length may be null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inferdoc.traces import shown
from inferdoc.traces.columns import words
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.format import Format, all_of, has
from inferdoc.traces.formats.requests import Requests
from inferdoc.traces.ledger import Ledger, RowError
from inferdoc.traces.messages import Rendered, render_prompt
from inferdoc.traces.records import Record

_ROLES = {
    "promptlength": "input_tokens",
    "outputlength": "output_tokens",
    "sessionid": "session",
    "model": "model",
}
_NAMES = {"arrival": "timestamp", "input_tokens": "Prompt Length", "output_tokens": "Output Length"}


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    requests = Requests("aibrix", ledger)
    empty: list[int] = []
    moments = 0
    for line, record in records:
        found = record.get("requests")
        moments += 1
        if not isinstance(found, list):
            ledger.refuse(line, f"requests is {shown.kind(found)}: expected a list", "requests is not a list")
            continue
        if not found:
            empty.append(line)
        for request in found:
            try:
                values, prompt = _values(request, len(requests) + 1)
            except RowError as error:
                ledger.refuse(line, str(error), error.reason)
                continue
            requests.add(line, values | {"arrival": record.get("timestamp")}, prompt)
    ledger.leave_out(empty, "moments without requests")
    notes = [f"{moments:,} moments with {len(requests):,} requests"]
    return requests.draft(names=_NAMES, units={"arrival": "ms"}, notes=notes)


def _values(request: Any, row: int) -> tuple[dict[str, Any], Rendered | None]:
    if not isinstance(request, Mapping):
        raise RowError(f"a request is {shown.kind(request)}: expected an object", "a request of no object")
    values = {role: value for name, value in request.items() if (role := _ROLES.get("".join(words(name)))) is not None}
    given = request.get("prompt")
    if isinstance(given, list):
        return values, render_prompt(given, row=row)
    if given is not None and not isinstance(given, str):
        raise RowError(f"prompt is {shown.kind(given)}: expected text", "a prompt that is no text")
    return values, None if given is None else Rendered(given)


FORMAT = Format(
    "aibrix",
    "AIBrix workload",
    all_of(has("timestamp", "requests"), lambda record: isinstance(record["requests"], list)),
    read,
)
