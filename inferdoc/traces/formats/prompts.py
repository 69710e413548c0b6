"""Prompts one a line: ``prompt``, ``text``, ``texts``, ``text_input`` or ``input_ids``, and what has a known name.

vLLM's ``custom`` (``output_tokens``), trtllm-bench (``task_id``, ``input_ids``, ``output_tokens``), AIPerf's
``single_turn`` (``text``, ``timestamp`` and ``delay`` in ms, ``output_length``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inferdoc.traces import aliases, shown
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.fields import whole_numbers
from inferdoc.traces.formats.format import Format, all_of, any_of, has_any
from inferdoc.traces.formats.requests import Requests
from inferdoc.traces.ledger import Ledger, RowError
from inferdoc.traces.messages import Rendered, render_body, render_prompt
from inferdoc.traces.records import Record

_TEXTS = ("prompt", "text", "texts", "text_input")
_MEDIA = {"image": "image_url", "images": "image_url", "audio": "input_audio", "audios": "input_audio"}
_READ_HERE = ("prompt_text", "prompt_ids", "output_ids", "prefix_blocks", "block_size")
_OF_AIPERF = ("text", "texts")
_EPOCH_AS_MS = 1e9
"""Milliseconds of eleven days: a larger number is a time of day in another unit, read by its size."""


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    rows = list(records)
    names, units = aliases.match({name: None for _, record in rows for name in record if name not in _TEXTS})
    outputs = names.pop("output_text", None)
    names = {role: name for role, name in names.items() if role not in _READ_HERE}
    requests = Requests("prompts", ledger)
    for line, record in rows:
        values: dict[str, Any] = {role: record.get(name) for role, name in names.items()}
        if outputs is not None and isinstance(record.get(outputs), str):
            values["output_text"] = record[outputs]
        try:
            prompt = _prompt(record, line)
            for role, name in (("prompt_ids", "input_ids"), ("output_ids", "output_ids")):
                ids = whole_numbers(record.get(name), name, "q")
                values[role] = None if ids is None else ids.tolist()
            if prompt is None and not values["prompt_ids"]:
                raise RowError(f"no prompt: none of {', '.join(_TEXTS)}, input_ids has one", "a row without a prompt")
        except RowError as error:
            ledger.refuse(line, str(error), error.reason)
            continue
        requests.add(line, values, prompt)
    notes = []
    if "arrival" in names and _is_aiperf(rows, names["arrival"]):
        units["arrival"] = "ms"
        notes.append("timestamp is read as milliseconds, as AIPerf's data sets have it")
    if any("delay" in record for _, record in rows):
        notes.append("delay (ms after the answer before) is no time of arrival: it is not read")
    return requests.draft(names=names, units=units, notes=notes)


def content_of(record: Mapping[str, Any]) -> Any:
    """The text of a prompt, or a list of parts where it has several or media; ``None`` where it has none."""
    given = next((record[name] for name in _TEXTS if record.get(name) is not None), None)
    texts = given if isinstance(given, list) else [given]
    media = [
        {"type": kind, kind: element}
        for name, kind in _MEDIA.items()
        if record.get(name)
        for element in (record[name] if isinstance(record[name], list) else [record[name]])
    ]
    if given is None or not texts:
        return None
    if not all(isinstance(text, str) for text in texts):
        raise RowError(f"prompt is {shown.kind(given)}: expected text", "a prompt that is no text")
    return texts[0] if len(texts) == 1 and not media else [{"type": "text", "text": text} for text in texts] + media


def _prompt(record: Mapping[str, Any], line: int) -> Rendered | None:
    given = record.get("prompt")
    if isinstance(given, list) and given and all(isinstance(message, Mapping) for message in given):
        return render_prompt(given, row=line)
    content = content_of(record)
    return None if content is None else render_body({"content": content}, row=line, position=0)


def _is_aiperf(rows: list[Record], name: str) -> bool:
    if name != "timestamp" or not any(record.get(text) for _, record in rows for text in _OF_AIPERF):
        return False
    times = [record.get(name) for _, record in rows]
    return all(isinstance(time, int | float) and time < _EPOCH_AS_MS for time in times if time is not None)


def _without_blocks(record: Mapping[str, Any]) -> bool:
    return "prefix_blocks" not in aliases.match(record)[0]


FORMAT = Format("prompts", "prompts", all_of(any_of(has_any(*_TEXTS), has_any("input_ids")), _without_blocks), read)
