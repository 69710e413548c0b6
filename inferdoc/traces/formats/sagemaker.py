"""Amazon SageMaker Data Capture: request and response bodies as JSON strings or Base64, times of one second.

Streamed responses are not captured, so such calls have no output tokens.
Format: https://docs.aws.amazon.com/sagemaker/latest/dg/model-monitor-data-capture-endpoint.html
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any

from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.calls import Calls
from inferdoc.traces.formats.format import Format, has
from inferdoc.traces.formats.logged_bodies import output_text, prompt_text, usage_of
from inferdoc.traces.formats.values import at, decoded
from inferdoc.traces.ledger import Ledger, RowError
from inferdoc.traces.records import Record

NO_PROMPT = "captured inputs that are no prompt of a text model"
_NAMES = {"arrival": "inferenceTime", "input_tokens": "usage.prompt_tokens", "output_tokens": "usage.completion_tokens"}


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    calls = Calls(ledger)
    uncaptured = 0
    for line, record in records:
        capture = record.get("captureData")
        try:
            request, response = (_body(at(capture, side), side) for side in ("endpointInput", "endpointOutput"))
        except RowError as error:
            ledger.refuse(line, str(error), error.reason)
            continue
        prompt = prompt_text(request, line=line) if isinstance(request, Mapping) else None
        if prompt is None:
            calls.leave_out(line, NO_PROMPT)
            continue
        uncaptured += response is None
        row = {
            "arrival": at(record, "eventMetadata", "inferenceTime"),
            "model": at(request, "model"),
            "prompt_text": prompt,
            "output_text": output_text(response, line=line) if response is not None else None,
            **usage_of(response),
        }
        calls.add(line, row, identity=at(record, "eventMetadata", "eventId"))
    calls.notes.append("times have a resolution of one second: burstiness below it cannot be seen")
    if uncaptured:
        calls.notes.append(f"{uncaptured:,} calls have no captured response: SageMaker does not capture streamed ones")
    return calls.draft("sagemaker", _NAMES)


def _body(side: Any, name: str) -> Any:
    """The body of a request or a response; ``None`` where none was captured.

    Raises:
        RowError: data that is not Base64 though it says so, or no JSON.
    """
    data = at(side, "data")
    if data in (None, ""):
        return None
    text = data
    if str(at(side, "encoding")).upper() == "BASE64":
        try:
            text = base64.b64decode(str(data), validate=True).decode()
        except ValueError:
            raise RowError(f"{name}.data is not text in Base64", f"{name}.data is not text in Base64") from None
    if isinstance(text, str) and not text.lstrip().startswith(("{", "[")):
        return text
    body = decoded(text)
    if body is None:
        raise RowError(f"{name}.data is not valid JSON: it may be cut off", f"{name}.data is not valid JSON")
    return body


FORMAT = Format("sagemaker", "SageMaker Data Capture", has("captureData", "eventMetadata"), read)
