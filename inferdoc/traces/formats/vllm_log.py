"""vLLM's server log: arrivals from ``Received request`` and ``Added request``, lengths only where it logs contents.

Times are ``MM-DD HH:MM:SS`` without year, fraction and zone; the stamp of a container's runtime is used instead where
every request has one. Prompts and outputs are Python literals, which ``--max-log-len`` may cut.
Source: vllm/entrypoints/logger.py and vllm/v1/metrics/loggers.py.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from inferdoc.errors import TraceError
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.calls import Calls
from inferdoc.traces.formats.engine_gauges import Gauges
from inferdoc.traces.formats.format import Format, Line, line_with
from inferdoc.traces.formats.log_lines import numbers, plain, quoted
from inferdoc.traces.formats.values import instant
from inferdoc.traces.ledger import Ledger

OTHER_LINES = "log lines that are no requests"
NO_CONTENT = "requests whose prompt is not in the log"
_HEAD = re.compile(
    r"^(?:\([^()\n]*\)\s*)*(?:INFO|DEBUG|WARNING|ERROR|CRITICAL)\s+"
    r"(\d\d)-(\d\d) (\d\d:\d\d:\d\d)(\.\d+)?\s+\[[^\]]*\]\s*"
)
_RECEIVED = re.compile(r"Received request (\S+):(?=\s|$)")
_ADDED = re.compile(r"Added request (\S+?)\.?$")
_DETAILS = re.compile(r"Request (\S+) details: ")
_GENERATED = re.compile(r"Generated response (\S+?)(?: \((\w+) (\w+)\))?: output: ")
_END_OF_REQUEST = re.compile(r"_request: .*\.$")
_REASON = "finish_reason: "
_SUFFIX = re.compile(r"-[0-9a-f]{8}$")
_LONGEST_MESSAGE = 10_000
_GAUGES = {
    "prompt throughput (tokens/s)": r"Avg prompt throughput: (\d+(?:\.\d+)?)",
    "generation throughput (tokens/s)": r"Avg generation throughput: (\d+(?:\.\d+)?)",
    "running": r"Running: (\d+)",
    "waiting": r"(?:Waiting|Pending): (\d+)",
    "KV cache usage (%)": r"KV cache usage: (\d+(?:\.\d+)?)%",
    "prefix cache hit rate (%)": r"(?<!External )(?<!MM )[Pp]refix cache hit rate: (?:GPU: )?(\d+(?:\.\d+)?)%",
}
_ADVICE = (
    "for lengths give a gateway's log or the engine's own spans (vLLM with --otlp-traces-endpoint); with"
    " --enable-log-requests and --enable-log-outputs the log has the texts"
)
_NAMES = {"arrival": "time of the log line", "input_tokens": "prompt_token_ids", "output_tokens": "output_token_ids"}


@dataclass
class _Request:
    line: int
    logged: int
    """Time that the server wrote, in ns of a clock without a year."""
    stamped: int | None
    """Time that the container's runtime wrote, in epoch ns."""
    prompt_ids: list[int] | None = None
    prompt: str | None = None
    output_ids: list[int] | None = None
    output: str | None = None
    finished: int | None = None
    reason: str | None = None


class _Clock:
    """Times without a year; a January after a December begins the next one."""

    def __init__(self) -> None:
        self._year = 2000
        self._month = 0

    def read(self, month: str, day: str, time: str, fraction: str | None) -> int | None:
        if self._month == 12 and int(month) == 1:
            self._year += 1
        self._month = int(month)
        return instant(f"{self._year}-{month}-{day} {time}{fraction or ''}")


def read(lines: Iterable[Line], ledger: Ledger) -> Draft:
    """Requests with what the log tells of them.

    Raises:
        TraceError: no request at all, or none with a length; says what the log holds instead.
    """
    calls, gauges, clock = Calls(ledger), Gauges(_GAUGES), _Clock()
    requests: dict[str, _Request] = {}
    for number, text, stamp in _messages(lines):
        head = _HEAD.match(text)
        time = clock.read(*head.groups()) if head else None
        if head is None or time is None or not _observe(text[head.end() :], number, time, stamp, requests):
            calls.leave_out(number, OTHER_LINES)
            gauges.observe(text)
    by_stamp = bool(requests) and all(request.stamped is not None for request in requests.values())
    with_content = [request for request in requests.values() if request.prompt_ids or request.prompt]
    if not with_content:
        raise TraceError(_without_lengths(list(requests.values()), gauges, by_stamp), where=ledger.where)
    for request in requests.values():
        if request.prompt_ids or request.prompt:
            calls.add(request.line, _row(request, by_stamp))
        else:
            calls.leave_out(request.line, NO_CONTENT)
    if gauges.lines:
        calls.notes.append(gauges.describe())
    calls.notes.append(
        "arrivals are the container's stamps"
        if by_stamp
        else "the log's times have no year, no zone and a resolution of one second: burstiness below it cannot be seen"
    )
    _note_cut(calls, with_content)
    return calls.draft("vllm-log", _NAMES, units={"arrival": "ns"})


def _messages(lines: Iterable[Line]) -> Iterator[tuple[int, str, int | None]]:
    """Messages with their line and their container's stamp. A prompt with line breaks makes one message of several
    lines, even where some of them look like messages of their own."""
    waiting: deque[Line] = deque()
    source = iter(lines)
    while (line := waiting.popleft() if waiting else next(source, None)) is not None:
        text, stamp = plain(line[1])
        if _is_open(text):
            following: list[Line] = []
            while len(following) < _LONGEST_MESSAGE:
                after = waiting.popleft() if waiting else next(source, None)
                if after is None:
                    break
                following.append(after)
                if _END_OF_REQUEST.search(after[1]):
                    text = "\n".join([text, *(plain(one)[0] for _, one in following)])
                    following = []
                    break
            waiting.extendleft(reversed(following))
        yield line[0], text, stamp


def _is_open(text: str) -> bool:
    """Whether a message of a received request goes on in the next line."""
    head = _HEAD.match(text)
    received = head is not None and _RECEIVED.match(text, head.end()) is not None
    return received and "SamplingParams(" not in text and not _END_OF_REQUEST.search(text)


def _observe(text: str, line: int, time: int, stamp: int | None, requests: dict[str, _Request]) -> bool:
    """Whether a message tells of a request; what it tells is noted there."""
    if found := _RECEIVED.match(text):
        request = requests.setdefault(found[1], _Request(line, time, stamp))
        _note_prompt(request, text)
        return True
    if found := _ADDED.match(text):
        name = found[1] if found[1] in requests else _SUFFIX.sub("", found[1])
        requests.setdefault(name, _Request(line, time, stamp))
        return True
    if found := _DETAILS.match(text):
        _note_prompt(requests.setdefault(found[1], _Request(line, time, stamp)), text)
        return True
    found = _GENERATED.match(text)
    if not found or found[1] not in requests:
        return False
    if found[3] == "delta":
        return True
    request = requests[found[1]]
    request.output_ids, request.output = numbers(text, "output_token_ids"), quoted(text, "output")
    request.finished = stamp
    request.reason = text[text.rfind(_REASON) + len(_REASON) :] if _REASON in text else None
    return True


def _note_prompt(request: _Request, text: str) -> None:
    request.prompt_ids = numbers(text, "prompt_token_ids") or request.prompt_ids
    request.prompt = quoted(text, "prompt") or request.prompt


def _row(request: _Request, by_stamp: bool) -> dict[str, Any]:
    spent = (request.finished - request.stamped) / 1e9 if request.finished and request.stamped else 0.0
    return {
        "arrival": request.stamped if by_stamp else request.logged,
        "input_tokens": len(request.prompt_ids) if request.prompt_ids else None,
        "output_tokens": len(request.output_ids) if request.output_ids else None,
        "prompt_ids": request.prompt_ids,
        "output_ids": request.output_ids,
        "prompt_text": request.prompt,
        "output_text": request.output,
        "e2e_s": spent if spent > 0 else None,
        "status": "aborted" if request.reason in ("abort", "error") else "ok",
    }


def _note_cut(calls: Calls, requests: list[_Request]) -> None:
    lengths = [len(request.prompt_ids) for request in requests if request.prompt_ids]
    longest = lengths.count(max(lengths, default=0))
    if longest >= 3 and longest * 10 >= len(lengths):
        calls.notes.append(
            f"{longest:,} of {len(lengths):,} prompts have exactly {max(lengths):,} logged ids: --max-log-len may have"
            " cut them, so that their lengths are too small"
        )


def _without_lengths(requests: list[_Request], gauges: Gauges, by_stamp: bool) -> str:
    times = sorted((request.stamped or 0) if by_stamp else request.logged for request in requests)
    held = f"{len(times):,} arrivals"
    if len(times) > 1 and times[-1] > times[0]:
        span = (times[-1] - times[0]) / 1e9
        held += f" over {span:,.0f} s ({(len(times) - 1) / span:.3g} requests/s)"
    if not requests:
        held += " (request logging is off: --enable-log-requests)"
    return f"a vLLM log without lengths of prompts and outputs: it holds {held}" + "".join(
        f"; {part}" for part in (gauges.describe(), _ADVICE) if part
    )


FORMAT = Format(
    "vllm-log",
    "vLLM server log",
    line_with(r"Received request \S+:|Added request \S+\.|Avg prompt throughput:"),
    read,
    kind="lines",
)
