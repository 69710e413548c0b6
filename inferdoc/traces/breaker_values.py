"""Values inside a prompt that change from request to request, told by how they are written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "time stamp",
    "date",
    "uuid",
    "hash or id",
    "counter",
    "number",
    "user name",
    "e-mail",
    "media",
    "tool order",
    "document order",
    "order",
    "white space",
    "chat template",
    "left truncation",
    "changing text",
    "changing tokens",
]

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6}\.?"
_NTH = r"\d{1,2}(?:st|nd|rd|th)?"
_CLOCK = (
    r"\d{1,2}:\d{1,2}(?::\d{1,2}(?:[.,]\d{1,9})?)?(?:[ ]?[AaPp]\.?[Mm]\b\.?)?"
    r"(?:[ ]?(?:Z|UTC|GMT|CES?T|E[SD]T|C[SD]T|P[SD]T|IST|JST|[+-]\d{2}:?\d{2}))?"
)
_DATE = (
    r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}|\d{4}年\d{1,2}月\d{1,2}日"
    rf"|(?:{_DAY},?[ ]+)?(?:the[ ]+)?{_NTH}[ ]+(?:of[ ]+)?{_MONTH},?[ ]+\d{{4}}"
    rf"|(?:{_DAY},?[ ]+)?{_MONTH}[ ]+{_NTH},?[ ]+\d{{4}})"
)
_COMPACT = r"(?:19|20)\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])"
_EPOCH = r"(?:1\d{9}|2[01]\d{8})(?:\d{9}|\d{6}|\d{3}|\.\d{1,9})?(?![.]?\d)"
_LABEL = (
    r"(?:user[ _-]?name|user[ _-]?id|user|full[ _-]?name|display[ _-]?name|customer|client|account|login"
    r"|author|sender|from|tenant|employee|patient|student|current[ _-]user)"
)
_WORDS = r"[^\W_][\w.@+'’-]*(?:[ ][^\W_][\w.'’-]*){0,3}"
_BEFORE, _AFTER = r"(?<![A-Za-z0-9_])", r"(?![A-Za-z0-9_])"

_PATTERNS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("media", re.compile(r"<(?P<value>[0-9a-f]{16}|\d+\.\d+\.\d+) [\w-]+>")),
    ("e-mail", re.compile(r"(?P<value>[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,4})")),
    ("uuid", re.compile(rf"{_BEFORE}(?P<value>[0-9A-Fa-f]{{8}}(?:-[0-9A-Fa-f]{{4}}){{3}}-[0-9A-Fa-f]{{12}}){_AFTER}")),
    (
        "time stamp",
        re.compile(
            rf"{_BEFORE}(?P<value>(?:{_DATE}|{_COMPACT})(?:T|,?[ ]+(?:at[ ]+)?){_CLOCK}|{_COMPACT}T?\d{{6}}Z?"
            rf"|{_DAY}[ ]+{_MONTH}[ ]+\d{{1,2}}[ ]+{_CLOCK}[ ]+\d{{4}}|{_CLOCK},?[ ]+(?:on[ ]+)?{_DATE}"
            rf"|{_CLOCK}|{_EPOCH}){_AFTER}"
        ),
    ),
    (
        "date",
        re.compile(
            rf"{_BEFORE}(?P<value>{_DATE}|{_COMPACT}|{_MONTH},?[ ]+\d{{4}}"
            rf"|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day){_AFTER}"
        ),
    ),
    (
        "hash or id",
        re.compile(
            rf"{_BEFORE}(?P<value>(?:0x)?(?=[A-Fa-f]*\d)(?=\d*[A-Fa-f])[0-9A-Fa-f]{{8,128}}|\d{{16,128}}"
            r"|(?=[A-Za-z]*\d)(?=[A-Za-z0-9]{0,40}[A-Z])(?=[A-Z0-9]{0,40}[a-z])[A-Za-z0-9]{16,128}"
            r"|(?:req|request|trace|session|sess|run|msg|call|chatcmpl|thread|corr|span|tx|job|task|id)"
            rf"[-_](?=[A-Za-z-]{{0,40}}\d)[A-Za-z0-9-]{{4,64}}){_AFTER}"
        ),
    ),
    (
        "user name",
        re.compile(
            rf"(?i:{_BEFORE}{_LABEL}|(?<![\"'\w])name)[\"']?[ ]*[:=][ ]*[\"']?(?P<value>{_WORDS})"
            r"(?=[ ]*(?:[\"',;<>(){}\[\]|\r\n]|\.(?:\s|$)|$))"
        ),
    ),
    ("number", re.compile(r"(?P<value>\d+(?:[.,]\d+)*)")),
)
MARKER = re.compile(
    r"<\|im_(?:start|sep)\|>(?:\w+\n?)?|<\|start_header_id\|>\w+<\|end_header_id\|>\n*|<start_of_turn>(?:\w+\n?)?"
    r"|<end_of_turn>|<\|[^|<>\n]{1,40}\|>|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS)\]|<</?SYS>>|</?s>|<bos>"
    r"|(?im:^(?:#{1,4} ?)?(?:system|user|assistant|human|ai|bot|tool|function|developer|instruction|response|input)"
    r"[ ]*:\n?)|(?im:^#{1,4} ?(?:system|user|assistant|human|instruction|response|input)[ ]*$)"
)
"""Role markers and special tokens of chat templates."""


@dataclass(frozen=True)
class Value:
    """A changing value in a text, from `start` to before `end`."""

    kind: Kind
    start: int
    end: int


def values(text: str, start: int, end: int) -> list[Value]:
    """The values written in ``text[start:end]``, in order, none overlapping; kinds that say more come first."""
    found, taken = list[Value](), bytearray(max(0, end - start))
    for kind, pattern in _PATTERNS:
        for match in pattern.finditer(text, start, end):
            first, last = match.span("value")
            if taken.find(1, first - start, last - start) < 0:
                taken[first - start : last - start] = b"\x01" * (last - first)
                found.append(Value(kind, first, last))
    return sorted(found, key=lambda value: value.start)


def masked(text: str) -> str:
    """`text` with each value replaced by its kind, such as ``<time stamp>``."""
    parts, at = [], 0
    for value in values(text, 0, len(text)):
        parts += [text[at : value.start], f"<{value.kind}>"]
        at = value.end
    return "".join([*parts, text[at:]])
