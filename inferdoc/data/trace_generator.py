"""Write the bundled trace: chats, questions over documents and an agent, arriving in bursts.

    python -m inferdoc.data.trace_generator --seed 0 --output trace.jsonl.gz

Every line is one request: ``{"timestamp": seconds, "session_id": str, "messages": [...]}``; the last message is the
recorded answer of the assistant. All text comes from the held-out split of ``inferdoc.data.corpus``. The traffic is
built to be what the field sees:

- *rag* (45% of requests): one long system prompt that all share, passages of uneven popularity, answers that quote;
- *chat* (35%): sessions of two to five turns, each request carries the history so far;
- *agent* (20%): sessions of one to four steps whose system prompt begins with the current time, so that no request
  shares a prefix with another although the tool descriptions behind it never change.

Answers have log-normal lengths in all three. Sessions begin in bursts: the first `OFF_PEAK_S` seconds are quiet, the
rest is the peak.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inferdoc.data.corpus import Document, Message, Writer
from inferdoc.data.mixture import answer_size
from inferdoc.data.templates import Split

REQUESTS = 360
SHARES = {"rag": 0.45, "chat": 0.35, "agent": 0.20}
OFF_PEAK_S = 45.0
PEAK_FACTOR = 3.0
"""How many times more often bursts begin in the peak than before it."""
BURST_GAP_S = 0.04
DOCUMENTS = 40
MOST_CHARACTERS = 2_450
"""Prompt and answer together. At no less than 2.4 characters a token this keeps each request within 1,024 tokens."""
START = datetime.datetime(2026, 3, 2, 10, 0, 0)


class TraceWriter:
    """Draws sessions of the three kinds and the times at which they begin."""

    def __init__(self, seed: int) -> None:
        self._writer = Writer(Split.HELDOUT, f"trace:{seed}")
        self._library = [self._writer.document() for _ in range(DOCUMENTS)]
        self._clock = 0.0
        self._burst_left = 0
        self._shown: set[int] = set()

    def write(self, requests: int) -> list[dict[str, Any]]:
        """Return at least `requests` requests sorted by time; the last session is finished, not cut."""
        done: list[dict[str, Any]] = []
        counts = dict.fromkeys(SHARES, 0)
        while len(done) < requests:
            # The kind that is furthest behind its share comes next, so that every stretch of the trace has all three.
            kind = min(SHARES, key=lambda name: (counts[name] + 0.5 * self._writer.uniform()) / SHARES[name])
            begin = self._arrive()
            name = f"{kind}-{len(done):04d}"
            session: list[dict[str, Any]] = getattr(self, f"_{kind}")(begin, name)
            counts[kind] += len(session)
            done.extend(session)
        return sorted(done, key=lambda request: float(request["timestamp"]))

    def _arrive(self) -> float:
        """The next beginning of a session: bursts of one to eight begin as a Poisson process of two rates."""
        if self._burst_left:
            self._burst_left -= 1
            self._clock += self._exponential(BURST_GAP_S)
        else:
            self._burst_left = self._writer.between(0, 7)
            mean_gap = 2.9 if self._clock < OFF_PEAK_S else 2.9 / PEAK_FACTOR
            self._clock += self._exponential(mean_gap)
        return self._clock

    def _exponential(self, mean: float) -> float:
        return -mean * math.log(1 - self._writer.uniform())

    def _rag(self, begin: float, session: str) -> list[dict[str, Any]]:
        writer = self._writer
        documents = self._passages(1 + int(writer.uniform() > 0.45) + int(writer.uniform() > 0.8))
        system = writer.rag_system()
        while (room := MOST_CHARACTERS - len(system) - sum(len(document.text) + 4 for document in documents) - 300) < 0:
            documents.pop()
        size = min(answer_size(writer), room)
        return [_request(begin, session, writer.rag(system, documents, size))]

    def _passages(self, count: int) -> list[Document]:
        """`count` different documents; the square makes the first of the library the most popular."""
        chosen: dict[int, Document] = {}
        while len(chosen) < count:
            rank = int(DOCUMENTS * self._writer.uniform() ** 2)
            chosen[rank] = self._library[rank]
        return list(chosen.values())

    def _chat(self, begin: float, session: str) -> list[dict[str, Any]]:
        writer = self._writer
        case = writer.case()
        history = [_message("system", writer.chat_system())]
        requests, now = [], begin
        for turn in range(writer.between(2, 5)):
            room = MOST_CHARACTERS - _length(history) - 400
            if room < 0:
                break
            size = min(answer_size(writer), room)
            history.append(_message("user", writer.chat_user(case, first=turn == 0, long=size > 260)))
            history.append(_message("assistant", writer.chat_reply(case, size)))
            requests.append(_request(now, session, list(history)))
            now += 2.5 + len(history[-1]["content"]) / 60 + self._exponential(3.5)
        return requests

    def _stamp(self, now: float) -> datetime.datetime:
        """The wall clock, pushed to the next second that no request has shown yet."""
        second = int(now)
        while second in self._shown:
            second += 1
        self._shown.add(second)
        return START + datetime.timedelta(seconds=second)

    def _agent(self, begin: float, session: str) -> list[dict[str, Any]]:
        writer = self._writer
        case = writer.case()
        history: list[Message] = []
        requests, now = [], begin
        task = f"{writer.agent_task(case)}\n"
        for _ in range(writer.between(1, 4)):
            system = _message("system", writer.agent_system(self._stamp(now)))
            room = MOST_CHARACTERS - len(system["content"]) - _length(history) - 600
            if room < 0:
                break
            observed, answer = writer.agent_step(case, min(answer_size(writer), room))
            history += [_message("user", task + observed), _message("assistant", answer)]
            requests.append(_request(now, session, [system, *history]))
            task = ""
            now += 2.0 + len(answer) / 60 + self._exponential(2.0)
        return requests


def generate(seed: int, requests: int = REQUESTS) -> list[dict[str, Any]]:
    """Return the requests of a trace, sorted by time; timestamps are seconds from the beginning, to the millisecond."""
    return TraceWriter(seed).write(requests)


def encode(requests: Sequence[dict[str, Any]]) -> bytes:
    """Return `requests` as gzipped JSON lines with no time or name in the header: equal input, equal bytes.

    Another zlib may compress otherwise; what it unpacks to is the same everywhere.
    """
    lines = "".join(f"{json.dumps(request, ensure_ascii=False)}\n" for request in requests)
    return gzip.compress(lines.encode("utf-8"), compresslevel=9, mtime=0)


def main() -> None:
    """Generate a trace and write it."""
    parser = argparse.ArgumentParser(description="Write a trace of chats, questions over documents and an agent.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    options.output.write_bytes(encode(generate(options.seed, options.requests)))


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _length(messages: Sequence[Message]) -> int:
    return sum(len(message["content"]) for message in messages)


def _request(time: float, session: str, messages: list[Message]) -> dict[str, Any]:
    return {"timestamp": round(time, 3), "session_id": session, "messages": messages}


if __name__ == "__main__":
    main()
