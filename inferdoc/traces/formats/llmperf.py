"""llmperf ``*_individual_responses.json``: an array with one object a request; no times of arrival, no ids.

``inter_token_latency_s`` is a mean per token in good rows and, with ``error_code`` -100 ("output too few tokens"), the
sum over the tokens, so it is not read. Those rows have full numbers but are failures to the tool: left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.format import Format, Refusal, has, has_prefix
from inferdoc.traces.formats.requests import Requests, measured
from inferdoc.traces.ledger import Ledger, RowError
from inferdoc.traces.records import Record

_NAMES = {
    "input_tokens": "number_input_tokens",
    "output_tokens": "number_output_tokens",
    "ttft_s": "ttft_s",
    "e2e_s": "end_to_end_latency_s",
    "error": "error_code",
}
_TOO_FEW = -100


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    requests = Requests("llmperf", ledger)
    soft: list[int] = []
    for line, record in records:
        if record.get("error_code") == _TOO_FEW:
            soft.append(line)
            continue
        values: dict[str, Any] = {role: record.get(name) for role, name in _NAMES.items()}
        try:
            for role in ("ttft_s", "e2e_s") if values["error"] is None else ():
                values[role] = measured(values[role], _NAMES[role])
        except RowError as error:
            ledger.refuse(line, str(error), error.reason)
            continue
        requests.add(line, values)
    ledger.leave_out(soft, "answers with too few tokens (error_code -100): failures to llmperf, with full numbers")
    notes = [
        "llmperf records no arrival times: requests are in the order of the file",
        "inter_token_latency_s is one number a request, not a list: itl_s is absent",
        "token counts are those of llmperf's own tokenizer, not of the server",
    ]
    return requests.draft(names=_NAMES, notes=notes)


FORMAT = Format(
    "llmperf", "llmperf responses", has("error_code", "ttft_s", "end_to_end_latency_s"), read, arrivals_by_tool=True
)
REFUSALS = (
    Refusal(
        "llmperf summary",
        has_prefix("results_ttft_s"),
        "aggregates only; give the *_individual_responses.json that llmperf writes beside it (--results-dir)",
    ),
)
