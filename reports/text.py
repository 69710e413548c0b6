"""Text that we did not write (model names, file names, notes, engine errors) made safe for each place it is printed.

One rule for what a reader sees: a control, format or bidirectional character is shown as its escape (``\\x1b``,
``\\u202e``), line breaks and tabs become spaces, and a text longer than `LIMIT` is cut with its length said. ``##[`` is
split everywhere: a runner of GitHub or Azure obeys it at any place of a line, and every file may be printed to its log.
Each renderer then escapes for its own syntax.
"""

from __future__ import annotations

import re
import unicodedata

LIMIT = 500
"""Longest free text that a report prints, in characters; the JSON files keep the whole."""

_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_SPACE = re.compile(r"[\t\n\r\f\v]+")
_CLIPPED = "… ({} characters)"


def visible(text: str, limit: int = LIMIT) -> str:
    """`text` on one line with nothing hidden in it: at most `limit` characters plus a note on what was cut."""
    shown = "".join(map(_shown, _SPACE.sub(" ", text[:limit]))).replace("##[", "# #[")
    if len(text) <= limit and len(shown) <= 2 * limit:
        return shown
    return shown[:limit] + _CLIPPED.format(f"{len(text):,}")


def _shown(character: str) -> str:
    if character.isascii() and character.isprintable():
        return character
    if unicodedata.category(character) not in _INVISIBLE:
        return character
    point = ord(character)
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def without_surrogates(text: str) -> str:
    """`text` that UTF-8 can hold: a lone surrogate becomes U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_ZERO_WIDTH = "&#8203;"
_ENTITIES = {"&": "&amp;", "<": "&lt;"}
_MARKDOWN = re.compile(r"[\\`*_\[\]|~$&<]")
_REFERENCE = re.compile(r"[@#]|://|::|\bwww\.|\bGH-", re.IGNORECASE)
_BLOCK_START = re.compile(r"^(\s*)([-+=>]|\d+[.)](?=\s|$))")


class Markdown(str):
    """Markdown of our own making, not to be escaped again."""

    __slots__ = ()


def markdown_safe(text: str) -> Markdown:
    """`text` as inline Markdown that means only itself.

    Mentions, issue references, bare links and workflow commands are found by sites after Markdown is rendered, so a
    backslash does not stop them: a zero-width space splits them instead.
    """
    escaped = _MARKDOWN.sub(lambda m: _ENTITIES.get(m[0], "\\" + m[0]), visible(text))
    split = _REFERENCE.sub(lambda m: m[0][:1] + _ZERO_WIDTH + m[0][1:], escaped)
    return Markdown(_BLOCK_START.sub(_escape_block_start, split))


def _escape_block_start(match: re.Match[str]) -> str:
    space, marker = match.groups()
    return f"{space}\\{marker}" if len(marker) == 1 else f"{space}{marker[:-1]}\\{marker[-1]}"


def markdown_code(text: str) -> Markdown:
    """`text` as a code span whose fence is longer than any run of backticks inside."""
    shown = visible(text)
    fence = "`" * (max((len(run) for run in re.findall(r"`+", shown)), default=0) + 1)
    padding = " " if shown[:1] in ("`", " ") or shown[-1:] in ("`", " ") else ""
    return Markdown(f"{fence}{padding}{shown}{padding}{fence}")


def terminal_safe(text: str) -> str:
    """`text` for a terminal or a build log, where a line that begins with ``::`` is a command."""
    return visible(text).replace("::", ": :")


_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def xml_safe(text: str) -> str:
    """`text` in characters that XML 1.0 can hold, for an element or an attribute of an XML library.

    As for a terminal: an element's text may begin a line of a log that the file is printed to.
    """
    return _NOT_XML.sub("\ufffd", terminal_safe(text))


def encodable(text: str, encoding: str) -> str:
    """`text` in characters that `encoding` has; the others as backslash escapes."""
    return text.encode(encoding, "backslashreplace").decode(encoding)
