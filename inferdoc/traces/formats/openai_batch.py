"""OpenAI batch files, input and output; vLLM's ``run-batch`` and several clouds take them too.

The input has bodies of requests, the output ``response.body`` with ``usage`` in no particular order. ``created`` is
the second of completion, so there are no times of arrival. When both files are given they are joined by ``custom_id``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inferdoc.traces import shown
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.batches import FAILED, Batch, identity
from inferdoc.traces.formats.bodies import answer_of, asked, decoded, usage_of
from inferdoc.traces.formats.format import Format, has
from inferdoc.traces.formats.requests import mapping
from inferdoc.traces.ledger import Ledger, RowError
from inferdoc.traces.records import Record

_NO_TEXT = ("/embeddings", "/moderations", "/rerank", "/score", "/images/generations")
_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_NAMES = {
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
    "cached_tokens": "prompt_tokens_details.cached_tokens",
}


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    batch = Batch()
    for line, record in records:
        try:
            if "body" in record:
                _add_request(batch, line, record)
            elif "response" in record or "error" in record:
                _add_answer(batch, line, record)
            else:
                raise RowError("neither body nor response", "neither a request nor an answer")
        except RowError as error:
            ledger.refuse(line, str(error), error.reason)
    alone = bool(batch.answers) and not batch.asked
    requests, notes = batch.requests("openai-batch-output" if alone else "openai-batch", ledger)
    return requests.draft(names=_NAMES, notes=notes)


def _add_request(batch: Batch, line: int, record: Mapping[str, Any]) -> None:
    body = decoded(record["body"], "body")
    if body is None:
        raise RowError("body is null: expected a request", "a request without a body")
    if str(record.get("url", "")).rstrip("/").endswith(_NO_TEXT) or _is_embedding(body):
        batch.not_text.append(line)
        return
    values, prompt = asked(body, line)
    if prompt is None and values["prompt_ids"] is None:
        raise RowError(f"body has no prompt (keys {shown.keys(body)})", "a body without a prompt")
    batch.limit(body, *_LIMITS)
    batch.asked.append((line, identity(record), values, prompt))


def _is_embedding(body: Mapping[str, Any]) -> bool:
    """Without an URL: the Embeddings API has fields of its own, and a list of plain texts as its input."""
    given = body.get("input")
    plain = isinstance(given, list) and bool(given) and not any(isinstance(item, Mapping) for item in given)
    return "messages" not in body and (plain or "encoding_format" in body or "dimensions" in body)


def _add_answer(batch: Batch, line: int, record: Mapping[str, Any]) -> None:
    response = mapping(record.get("response"))
    code = response.get("status_code")
    good = isinstance(code, int) and code < 400
    body = mapping(response.get("body"))
    if record.get("error") or not response or not (good or code is None):
        batch.answers.append((line, identity(record), {"error": FAILED}))
        return
    data = body.get("data")
    if isinstance(data, list) and "choices" not in body:
        batch.not_text.append(line)
        return
    values = usage_of(body) | {"model": body.get("model"), "output_text": answer_of(body)}
    batch.answers.append((line, identity(record), values))


FORMATS = (
    Format("openai-batch", "OpenAI batch input", has("custom_id", "body"), read),
    Format("openai-batch-output", "OpenAI batch output", has("custom_id", "response"), read),
)
