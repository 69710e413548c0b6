"""GenAI-Perf ``profile_export.json``: ``experiments[].requests[]`` with times in ns and the raw request and answer.

There are no token counts: GenAI-Perf makes them with a tokenizer when it reads the file. The first token is the first
piece of the stream with text; pieces that hold only a role, the usage or the end mark are no tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.bodies import answer_of, asked, decoded, usage_of
from inferdoc.traces.formats.format import Format, Refusal, all_of, has, list_with
from inferdoc.traces.formats.requests import Requests, gaps, mapping, numbers
from inferdoc.traces.ledger import Ledger, RowError
from inferdoc.traces.messages import Rendered
from inferdoc.traces.records import Record

_TEXT_FIELDS = ("content", "reasoning_content", "reasoning", "text")


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    requests = Requests("genai-perf", ledger)
    run = 0
    for line, record in records:
        experiments = record.get("experiments")
        for experiment in experiments if isinstance(experiments, list) else [None]:
            found = mapping(experiment).get("requests")
            if not isinstance(found, list):
                ledger.refuse(line, "an experiment without requests", "an experiment without requests")
                continue
            for request in found:
                try:
                    values, prompt = _values(mapping(request), len(requests) + 1)
                except RowError as error:
                    ledger.refuse(line, str(error), error.reason)
                    continue
                requests.add(line, values | {"segment": run}, prompt)
            run += 1
    notes = [
        "GenAI-Perf stores texts, not token counts: lengths come from the model's tokenizer",
        *requests.chunk_notes(),
    ]
    return requests.draft(names={"arrival": "timestamp"}, units={"arrival": "ns"}, notes=notes)


def _values(request: Mapping[str, Any], row: int) -> tuple[dict[str, Any], Rendered | None]:
    body = decoded(mapping(request.get("request_inputs")).get("payload"), "request_inputs.payload")
    told, prompt = asked(body if body is not None else mapping(request.get("request_inputs")), row)
    numbers([request.get("timestamp")], "timestamp")
    stamps = request.get("response_timestamps") or []
    times, outputs = numbers(stamps, "response_timestamps") or [], request.get("response_outputs") or []
    values = told | {"arrival": request.get("timestamp")}
    if not isinstance(outputs, list) or len(outputs) != len(times):
        raise RowError(
            "response_timestamps and response_outputs have different lengths", "times and answers of different lengths"
        )
    if not outputs:
        return values | {"error": "no answer"}, prompt
    events = [(time, _events(output)) for time, output in zip(stamps, outputs, strict=True)]
    told_by_server = [usage_of(event) for _, found in events for event in found if event.get("usage")]
    spoken = [(time, "".join(_text(event) for event in found)) for time, found in events]
    spoken = [(time, text) for time, text in spoken if text]
    if not spoken:
        return values | {"error": "no text in the answer"}, prompt
    # Whole nanoseconds are subtracted before they become seconds: a double holds no epoch ns exactly.
    whole = [request["timestamp"], *(time for time, _ in spoken)]
    steps = [step / 1e9 for step in gaps(whole, "response_timestamps")]
    streamed = len(outputs) > 1
    values |= told_by_server[-1] if told_by_server else {}
    values |= {
        "output_text": "".join(text for _, text in spoken),
        "ttft_s": steps[0] if streamed else None,
        "e2e_s": (whole[-1] - whole[0]) / 1e9,
        "itl_s": steps[1:] if streamed else None,
    }
    return values, prompt


def _events(output: Any) -> list[Mapping[str, Any]]:
    """The JSON objects of one piece: one, or several server-sent events."""
    given = mapping(output)
    if isinstance(given.get("text_output"), str):
        return [{"choices": [{"text": given["text_output"]}]}]
    found: list[Mapping[str, Any]] = []
    for part in str(given.get("response", "")).splitlines():
        part = part.removeprefix("data:").strip()
        try:
            event = json.loads(part)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            found.append(event)
    return found


def _text(event: Mapping[str, Any]) -> str:
    choices = event.get("choices")
    delta = mapping(mapping(choices[0]).get("delta")) if isinstance(choices, list) and choices else {}
    pieces = [delta[name] for name in _TEXT_FIELDS if isinstance(delta.get(name), str)]
    return "".join(pieces) or answer_of(event) or ""


FORMAT = Format(
    "genai-perf", "GenAI-Perf profile export", list_with("experiments", "requests"), read, arrivals_by_tool=True
)
REFUSALS = (
    Refusal(
        "GenAI-Perf summary",
        all_of(
            has("request_throughput", "request_latency"),
            lambda record: not any(name in record for name in ("schema_version", "aiperf_version", "completed")),
        ),
        "aggregates only; give the profile_export.json that GenAI-Perf writes beside it",
    ),
)
