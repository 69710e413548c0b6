"""Requests and answers of batch files, joined by ``custom_id``. Answers are in no particular order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inferdoc.traces.formats.requests import Requests
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.messages import Rendered

FAILED = "failed"


@dataclass
class Batch:
    """The lines of one or more batch files, requests and answers apart."""

    asked: list[tuple[int, str | None, dict[str, Any], Rendered | None]] = field(default_factory=list)
    answers: list[tuple[int, str | None, dict[str, Any]]] = field(default_factory=list)
    ceilings: list[int] = field(default_factory=list)
    not_text: list[int] = field(default_factory=list)
    """Lines of embeddings and other requests that generate no text."""

    def limit(self, body: Mapping[str, Any], *names: str) -> None:
        """Remember the limit of output tokens that a request sets."""
        found = next((body[name] for name in names if body.get(name) is not None), None)
        if isinstance(found, int) and not isinstance(found, bool):
            self.ceilings.append(found)

    def requests(self, format: str, ledger: Ledger) -> tuple[Requests, list[str]]:
        """Each request with its answer; answers without their request stand by themselves."""
        requests = Requests(format, ledger)
        answers: dict[str, tuple[int, dict[str, Any]]] = {}
        alone, repeated, joined = [], [], []
        for line, custom_id, values in self.answers:
            if custom_id is None:
                alone.append((line, values))
            elif custom_id in answers:
                repeated.append(line)
            else:
                answers[custom_id] = (line, values)
        unanswered = 0
        for line, custom_id, values, prompt in self.asked:
            line_of_answer, answer = answers.pop(custom_id, (None, {})) if custom_id is not None else (None, {})
            if line_of_answer is None:
                unanswered += 1
            else:
                joined.append(line_of_answer)
            known = {role: value for role, value in answer.items() if value is not None}
            requests.add(line, values | known, prompt)
        for line, values in [*answers.values(), *alone]:
            requests.add(line, values)
        ledger.leave_out(joined, "answers joined to their requests by custom_id")
        ledger.leave_out(repeated, "another answer of the same custom_id")
        ledger.leave_out(self.not_text, "embeddings and other requests that generate no text")
        return requests, self._notes(len(joined), unanswered)

    def _notes(self, joined: int, unanswered: int) -> list[str]:
        notes = ["batch files have no times of arrival and no latencies"]
        if self.ceilings:
            least, most = min(self.ceilings), max(self.ceilings)
            notes.append(f"max_tokens ({least:,} to {most:,}) is a limit, not an output length: it is not used")
        if joined:
            notes.append(f"{joined:,} answers are joined to their requests by custom_id")
        if self.answers and unanswered:
            notes.append(f"{unanswered:,} requests have no answer in these files: their outputs are unknown")
        if self.answers and not self.asked:
            notes.append("answers without the requests: prompts are unknown; give the input file too to join them")
        return notes


def identity(record: Mapping[str, Any]) -> str | None:
    """``custom_id`` as text."""
    found = record.get("custom_id")
    return None if found is None else str(found)
