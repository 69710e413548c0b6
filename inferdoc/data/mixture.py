"""The endless mixture of texts that the embedded models are trained on, and, from the held-out split, measured on."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator

from inferdoc.data.corpus import Message, Writer
from inferdoc.data.improvisation import Improvisation
from inferdoc.data.templates import Split

MEDIAN_CHARACTERS = 65
SPREAD = 1.15
LONGEST = 900
"""Answers are log-normal: the median in characters, the standard deviation of the logarithm, and the cut."""

IMPROVISED = 0.75
"""The share of training samples in a wording of their own."""

_EPOCH = datetime.datetime(2019, 1, 1)


def answer_size(writer: Writer) -> int:
    """Draw the wanted length of an answer in characters, by Box and Muller's formula."""
    normal = math.sqrt(-2 * math.log(1 - writer.uniform())) * math.cos(2 * math.pi * writer.uniform())
    return min(LONGEST, round(MEDIAN_CHARACTERS * math.exp(SPREAD * normal)))


def mixture(split: Split, seed: int | str) -> Iterator[str | list[Message]]:
    """Yield plain texts (str) and conversations (lists of messages that end with an assistant's) without end."""
    writer = Writer(split, f"mixture:{seed}")
    while True:
        if split is Split.TRAIN:
            writer.reword(Improvisation(writer) if writer.uniform() < IMPROVISED else None)
        kind = writer.uniform()
        if kind < 0.4:
            documents = [writer.document() for _ in range(writer.between(1, 3))]
            yield writer.rag(writer.rag_system(), documents, answer_size(writer))
        elif kind < 0.65:
            yield _chat(writer)
        elif kind < 0.85:
            yield _agent(writer)
        elif kind < 0.89:
            yield writer.essay(writer.between(200, 900))
        elif kind < 0.92:
            yield writer.document().text
        else:
            yield writer.ledger(writer.between(3, 12))


def _chat(writer: Writer) -> list[Message]:
    case = writer.case()
    messages = [{"role": "system", "content": writer.chat_system()}]
    for turn in range(writer.between(1, 4)):
        size = answer_size(writer)
        asked = writer.chat_user(case, first=turn == 0, long=size > 260)
        messages.append({"role": "user", "content": asked})
        messages.append({"role": "assistant", "content": writer.chat_reply(case, size)})
    return messages


def _agent(writer: Writer) -> list[Message]:
    case = writer.case()
    now = _EPOCH + datetime.timedelta(seconds=writer.between(0, 7 * 365 * 86400))
    messages = [{"role": "system", "content": writer.agent_system(now)}]
    task = f"{writer.agent_task(case)}\n"
    for _ in range(writer.between(1, 3)):
        observed, answer = writer.agent_step(case, answer_size(writer))
        messages.append({"role": "user", "content": task + observed})
        messages.append({"role": "assistant", "content": answer})
        task = ""
    return messages
