"""Seeded writer of the text that the embedded models are trained on and that the bundled trace is made of.

Four kinds of text are written:

- *rag*: a system prompt, retrieved documents and a question; the answer quotes the documents;
- *chat*: customer support over several turns; replies are worded freely;
- *agent*: a time stamp, tool descriptions and observations; the answer is an action whose JSON arguments are copied;
- *plain*: essays, and lists that are written out twice.

Wanted sizes are in characters, so that the text does not depend on a tokenizer.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferdoc.data.templates import Case, Filler, upper_first

Message = dict[str, str]


@dataclass(frozen=True)
class Statement:
    """One sentence of a document; `question` and `value` (the short answer) are None where it answers nothing."""

    text: str
    question: str | None = None
    value: str | None = None


@dataclass(frozen=True)
class Document:
    """A short text about one made-up thing."""

    title: str
    entity: str
    statements: tuple[Statement, ...]

    @property
    def text(self) -> str:
        return f"{self.title}\n{' '.join(statement.text for statement in self.statements)}"


class Writer(Filler):
    """Writes documents and conversations in the wording of one split."""

    # Documents

    def case(self) -> Case:
        """A new thing of a random domain, with one trouble."""
        domain = self.pick(self.entry("domains"))
        entity = self._name() if self.uniform() < 0.4 else f"{self._name()} {self.between(2, 99) * 10}"
        return Case(domain, {"entity": entity, "trouble": self.pick(domain["troubles"])})

    def document(self) -> Document:
        """An introduction, three or four facts among a remark or two, and sometimes a last sentence."""
        case = self.case()
        statements = [Statement(self.write("intros", case))]
        for fact in self.sample(case.domain["facts"], self.between(3, 4)):
            value = self.expand(fact["value"], case)
            text = self.fill(self.pick(fact["say"]), case, value=value)
            statements.append(Statement(text, self.fill(fact["ask"], case), value))
            if self.uniform() < 0.3:
                statements.append(Statement(self.fill(self.pick(case.domain["remarks"]), case)))
        if self.uniform() < 0.5:
            statements.append(Statement(self.write("outros", case)))
        return Document(self.write("titles", case), case.bound["entity"], tuple(statements))

    def essay(self, size: int) -> str:
        """Plain sentences about one thing, at least `size` characters."""
        case = self.case()
        return _join_to(size, (self.write("essays", case) for _ in iter(int, 1)), " ")

    def ledger(self, lines: int) -> str:
        """A list of `lines` made-up entries, written out twice."""
        template = self.pick(self.entry("ledger_line"))
        entries = "\n".join(self.fill(template) for _ in range(lines))
        return f"{self.write('ledger_head')}\n{entries}\n{self.write('ledger_again')}\n{entries}"

    # Questions over documents

    def rag_system(self) -> str:
        """The fixed system prompt of the held-out split, or a random choice of the training split's rules."""
        return self._system("rag_system", "rag_rules", 5, 12)

    def rag(self, system: str, documents: Sequence[Document], size: int) -> list[Message]:
        """A question over `documents` and an answer of about `size` characters that quotes them."""
        chosen = self.pick(documents)
        passages = "\n".join(f"[{number}] {document.text}" for number, document in enumerate(documents, 1))
        facts = [statement for statement in chosen.statements if statement.question is not None]
        fact = self.pick(facts)
        if size > 260:
            question = self.write("rag_all", entity=chosen.entity)
            others = [document for document in documents if document is not chosen]
            quoted = [statement.text for document in (chosen, *others) for statement in document.statements]
            answer = _join_to(size, (self.write("rag_more", sentence=sentence) for sentence in quoted), " ")
        else:
            question = fact.question
            answer = self._short_answer(fact, facts, size)
        user = self.write("rag_user", passages=passages, question=question)
        return [_message("system", system), _message("user", user), _message("assistant", answer)]

    def _short_answer(self, fact: Statement, facts: Sequence[Statement], size: int) -> str:
        value = fact.value or ""
        if size < 40:
            return f"{upper_first(value)}."
        first = self.write("rag_quote", sentence=fact.text, value=value, value_start=upper_first(value))
        more = (self.write("rag_more", sentence=other.text) for other in facts if other is not fact)
        closed = self.write("rag_close", value=value) if self.uniform() < 0.3 else ""
        return " ".join(part for part in (_join_to(size, _chain(first, more), " "), closed) if part)

    # Customer support

    def chat_system(self) -> str:
        """The system prompt of the support chats."""
        return self._system("chat_system", "chat_rules", 3, 6)

    def chat_user(self, case: Case, *, first: bool, long: bool) -> str:
        """What the customer writes: the trouble, a follow-up, or (`long`) the wish for every step."""
        said = self.write("chat_first" if first else "chat_next", case)
        return f"{said} {self.write('chat_long', case)}" if long else said

    def chat_reply(self, case: Case, size: int) -> str:
        """A reply of about `size` characters: a few words, sentences, or numbered steps."""
        if size < 40:
            return self.write("chat_short", case)
        if size <= 260:
            replies = self.sample(self.entry("chat_reply"), 8)
            return _join_to(size, (self.fill(reply, case) for reply in replies), " ")
        steps = (f"{number}. {self.write('chat_step', case)}" for number in range(1, 40))
        return _join_to(size, _chain(self.write("chat_steps", case), steps), "\n")

    # Agents

    def agent_system(self, now: datetime.datetime) -> str:
        """A time stamp, then the tool descriptions."""
        if self.has("agent_tools"):
            tools = self.entry("agent_tools")
        else:
            lines = [self._tool_line(tool) for tool in self.sample(self.entry("tools"), self.between(4, 8))]
            rules = self.sample(self.entry("tools_rules"), 2)
            tools = "\n".join((self.write("tools_head"), *lines, *rules))
        return f"{self.entry('stamp')}{now:%Y-%m-%d %H:%M:%S}\n{tools}"

    def agent_task(self, case: Case) -> str:
        """The task that an agent session begins with."""
        return self.write("task", case)

    def agent_step(self, case: Case, size: int) -> tuple[str, str]:
        """An observation and an answer of about `size` characters that copies from it."""
        step = Case(case.domain, {**case.bound, "part": self.pick(case.domain["parts"])})
        for name, template in self.entry("arguments").items():
            step = Case(step.domain, {**step.bound, name: self.expand(template, step)})
        observed = [self.fill(line, step) for line in self.sample(self.entry("observations"), self.between(2, 3))]
        return "\n".join(observed), self._agent_answer(step, observed, size)

    def _agent_answer(self, step: Case, observed: Sequence[str], size: int) -> str:
        if size < 40:
            return self.write("agent_short", step)
        tools = self.sample(self.entry("tools"), 12)
        text = "\n".join(observed)
        copied = [tool for tool in tools if all(step.bound[name] in text for name in tool["arguments"])]
        actions = (self._action(tool, step) for tool in copied or tools)
        if size <= 260:
            thought = [self.write("thoughts", step)] if size > 110 else []
            return _join_to(size, _chain(*thought, actions), "\n")
        return _join_to(size, _chain(self.write("reports", step), *observed, actions), "\n")

    @staticmethod
    def _action(tool: Mapping[str, Any], step: Case) -> str:
        arguments = {name: step.bound[name] for name in tool["arguments"]}
        return f"Action: {tool['name']} {json.dumps(arguments)}"

    def _tool_line(self, tool: Mapping[str, Any]) -> str:
        return self.write("tool_line", tool=tool["name"], arguments=", ".join(tool["arguments"]), about=tool["about"])

    def _system(self, fixed: str, rules: str, fewest: int, most: int) -> str:
        if self.has(fixed):
            return str(self.entry(fixed)).strip()
        return " ".join(self.sample(self.entry(rules), self.between(fewest, most)))


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _chain(*parts: str | Iterator[str]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
        else:
            yield from part


def _join_to(size: int, parts: Iterator[str], separator: str) -> str:
    """Join parts until the text has `size` characters or there are no more."""
    text = ""
    for part in parts:
        text = f"{text}{separator}{part}" if text else part
        if len(text) >= size:
            break
    return text
