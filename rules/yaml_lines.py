"""YAML that remembers on which line each value stands."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

from inferdoc.errors import RuleError

_MAX_VALUES = 50_000


@dataclass(frozen=True)
class Document:
    """A parsed file: its data, and the line of every key and item, by path."""

    name: str
    data: Any
    lines: dict[tuple[str | int, ...], int]

    def where(self, path: tuple[str | int, ...]) -> str:
        """``file:line`` of the value at `path`, or of the nearest value around it."""
        for length in range(len(path), -1, -1):
            line = self.lines.get(path[:length])
            if line is not None:
                return f"{self.name}:{line}"
        return f"{self.name}:1"


@lru_cache(maxsize=64)
def read_document(
    content: bytes, name: str, *, kind: str = "a rule file", keys: str = "'question' and 'rules'"
) -> Document:
    """Parse one YAML document (safe types only) and keep the lines; the same content is parsed once.

    Args:
        kind, keys: what the file is, for the error where it is no mapping.

    Raises:
        RuleError: not UTF-8, not YAML, not a mapping, a key twice, or an alias that holds itself.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise RuleError("not UTF-8 text; save the file as UTF-8", where=f"{name}:{line}") from None
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        lines: dict[tuple[str | int, ...], int] = {}
        if node is not None:
            _note_lines(node, (), node.start_mark.line + 1, lines, name, ())
        data = loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        # What is not closed is noticed at the end of the file, but has to be mended where it was opened.
        unclosed = error.context_mark if "end of stream" in (error.problem or "") else None
        mark = unclosed or error.problem_mark or error.context_mark
        what = ": ".join(part for part in (error.context, error.problem) if part)
        raise RuleError(f"not valid YAML: {what}", where=f"{name}:{mark.line + 1}" if mark else name) from None
    except (yaml.YAMLError, ValueError) as error:
        raise RuleError(f"not valid YAML: {' '.join(str(error).split())}", where=f"{name}:1") from None
    finally:
        loader.dispose()
    if not isinstance(data, dict):
        raise RuleError(f"{kind} is a mapping with keys such as {keys}", where=f"{name}:1")
    return Document(name, data, lines)


def _note_lines(
    node: yaml.Node,
    path: tuple[str | int, ...],
    line: int,
    lines: dict[tuple[str | int, ...], int],
    name: str,
    above: tuple[int, ...],
) -> None:
    """Write the line of every value under `node` into `lines`: a mapping's value has the line of its key."""
    if id(node) in above:
        raise RuleError("an alias holds itself; write it out", where=f"{name}:{line}")
    if len(lines) > _MAX_VALUES:
        raise RuleError(f"more than {_MAX_VALUES} values; shorten the file", where=f"{name}:{line}")
    lines[path] = line
    above = (*above, id(node))
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            key_line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise RuleError("a key must be a plain word", where=f"{name}:{key_line}")
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise RuleError(f"key {key.value!r} stands twice; remove one", where=f"{name}:{key_line}")
            seen.add(key.value)
            _note_lines(value, (*path, key.value), key_line, lines, name, above)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _note_lines(item, (*path, index), item.start_mark.line + 1, lines, name, above)
