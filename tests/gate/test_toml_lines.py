"""The line of every key, against a writer that knows where it put each one."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from inferdoc.errors import PolicyError
from inferdoc.gate.toml_lines import read_toml

Path = tuple[str | int, ...]


def lines_of(text: str) -> dict[Path, int]:
    return read_toml(text.encode(), "gate.toml").lines


def test_headers_arrays_of_tables_and_dotted_keys() -> None:
    text = """\
schema = 1
[design]
pairs = 8 # pairs = 9

[[metric]]
id = "a"
[[metric]]
  id = "b"
[arm.baseline]
model = "x"
[arm.candidate]
"""
    lines = lines_of(text)
    assert lines["schema",] == 1
    assert lines["design",] == 2
    assert lines["design", "pairs"] == 3
    assert lines["metric",] == lines["metric", 0] == 5
    assert lines["metric", 0, "id"] == 6
    assert lines["metric", 1] == 7
    assert lines["metric", 1, "id"] == 8
    assert lines["arm",] == lines["arm", "baseline"] == 9
    assert lines["arm", "baseline", "model"] == 10
    assert lines["arm", "candidate"] == 11


def test_values_over_several_lines_and_what_looks_like_a_key_in_them() -> None:
    text = '''\
a = """
[fake]
key = 1 # not a comment "" \\""" still text"""""
b = [
  "x", # ] not closed here
  [1,
   2],
  { c = 1, d.e = '=', f = """
g = 2""", h = [ 3 ] },
]
c = \'\'\'it''s
'x'\'\'\'\'
"quo\\"ted" . 'a.b' = 07:32:00
last = 1979-05-27 07:32:00
'''
    lines = lines_of(text)
    data = tomllib.loads(text)
    assert lines["a",] == 1
    assert lines["b",] == 4
    assert [lines["b", index] for index in range(3)] == [5, 6, 8]
    assert (lines["b", 1, 0], lines["b", 1, 1]) == (6, 7)
    assert lines["b", 2, "c"] == lines["b", 2, "d", "e"] == lines["b", 2, "f"] == 8
    assert lines["b", 2, "h"] == lines["b", 2, "h", 0] == 9
    assert lines["c",] == 11
    assert lines['quo"ted', "a.b"] == 13
    assert lines["last",] == 14
    assert set(walk(data)) == lines.keys()


def test_tables_inside_arrays_of_tables() -> None:
    text = "[[a]]\n[[a.b]]\nx = 1\n[[a.b]]\nx = 2\n[a.c]\ny = 3\n[[a]]\n[[a.b]]\nx = 4\n"
    lines = lines_of(text)
    assert lines["a", 0, "b", 0, "x"] == 3
    assert lines["a", 0, "b", 1, "x"] == 5
    assert lines["a", 0, "c", "y"] == 7
    assert lines["a", 1] == 8
    assert lines["a", 1, "b", 0, "x"] == 10
    assert set(walk(tomllib.loads(text))) == lines.keys()


def test_windows_lines_and_a_byte_order_mark() -> None:
    content = b'\xef\xbb\xbfschema = 1\r\n\r\n[design]\r\ntext = """\r\n"""\r\npairs = 8\r\n'
    document = read_toml(content, "gate.toml")
    assert document.data == {"schema": 1, "design": {"text": "", "pairs": 8}}
    assert document.where(("schema",)) == "gate.toml:1"
    assert document.where(("design", "pairs")) == "gate.toml:6"
    assert document.where(("design", "absent", 3)) == "gate.toml:3"
    assert document.where(("absent",)) == "gate.toml:1"


def test_an_empty_file_has_no_keys() -> None:
    assert read_toml(b"", "gate.toml").data == {}
    assert lines_of("# only a comment") == {(): 1}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\nb = \nc = 2\n", 2),
        ("a = 1\n\na = 2\n", 3),
        ("a = 1\n[b\nc = 2\n", 2),
        ("a = 1\nb = 'x\n", 2),
        ('a = 1\nb = """\nc\nd = 2\n\n\n', 2),
        ("a = 1\nb = [\n1,\n2\n", 2),
        ("a = 1\nb = 'x", 2),
        ("a = 1\nb = { c = ", 2),
        ("a = 1\nb\n", 2),
        ("a = 1\nb", 2),
        ("[a]\n[b]\n[a]\n", 3),
        ("a = 01\n", 1),
        ("a = 'x' 'y'\n", 1),
    ],
)
def test_a_syntax_error_has_the_line_where_it_has_to_be_mended(text: str, line: int) -> None:
    with pytest.raises(PolicyError, match=rf"^gate\.toml:{line}: not valid TOML: [^(]*$"):
        read_toml(text.encode(), "gate.toml")


def test_other_encodings_are_refused_with_the_line() -> None:
    with pytest.raises(PolicyError, match=r"^gate\.toml:2: not UTF-8"):
        read_toml("a = 1\nb = 'é'\n".encode("latin-1"), "gate.toml")


def test_a_value_nested_beyond_reason_is_refused() -> None:
    with pytest.raises(PolicyError, match="nested too deeply"):
        read_toml(b"a = " + b"[" * 100_000 + b"]" * 100_000, "gate.toml")


class Writer:
    """Writes a random document and notes the line of each key as it writes it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.text = ""
        self.lines: dict[Path, int] = {(): 1}
        self.names = iter(range(10_000))

    def note(self, path: Path) -> None:
        self.lines.setdefault(path, self.text.count("\n") + 1)

    def name(self) -> tuple[str, str]:
        """A new key, and one way to write it."""
        base = f"k{next(self.names)}"
        return self.random.choice(
            [
                (base, base),
                (base, f'"{base}"'),
                (f"{base} = [x]", f"'{base} = [x]'"),
                (f'{base}."#', f'"{base}.\\"#"'),
                (f"{base}-é", f'"{base}-\\u00e9"'),
            ]
        )

    def filler(self) -> None:
        self.text += self.random.choice(["", "", "\n", "  \n# [no.header]\n", "# key = 1\n\n", "\t"])

    def document(self) -> str:
        for _ in range(self.random.randint(0, 3)):
            self.pair(())
        for _ in range(self.random.randint(0, 5)):
            self.table((), "")
        return self.text

    def table(self, above: Path, prefix: str) -> None:
        key, written = self.name()
        many = self.random.random() < 0.4
        path: Path = (*above, key)
        for index in range(self.random.randint(1, 3) if many else 1):
            self.filler()
            for length in range(1, len(path) + 1):
                self.note(path[:length])
            inside: Path = (*path, index) if many else path
            self.note(inside)
            opening, closing = ("[[", "]]") if many else ("[", "]")
            space = self.random.choice(["", " "])
            self.text += f"{opening}{space}{prefix}{written}{space}{closing}"
            self.text += self.random.choice(["\n", " # [x]\n"])
            for _ in range(self.random.randint(0, 3)):
                self.pair(inside)
            if len(prefix) < 60 and self.random.random() < 0.3:
                self.table(inside, f"{prefix}{written}{self.random.choice(['.', ' . '])}")

    def pair(self, table: Path) -> None:
        self.filler()
        self.key_and_value(table, 0)
        self.text += self.random.choice(["\n", " # x = 1 ]\n", "\t\n"])

    def key_and_value(self, table: Path, depth: int) -> None:
        path = table
        for place in range(self.random.choice([1, 1, 1, 2, 3])):
            key, written = self.name()
            path = (*path, key)
            self.note(path)
            self.text += ("." if place else "") + written
        self.text += self.random.choice([" = ", "=", "\t= "])
        self.value(path, depth)

    def value(self, path: Path, depth: int) -> None:
        kind = self.random.choice(["plain"] * 3 + ["text"] + (["list", "table"] if depth < 3 else []))
        if kind == "plain":
            self.text += self.random.choice(
                ["1", "-0.5e3", "true", "inf", "0xff", "1979-05-27", "'a = 1'", '"] # \\" }"', '""', "''"]
            )
        elif kind == "text":
            self.text += self.random.choice(
                ['"""\n[a]\n"" x\\"""\n"""', "'''\nb = '' 2\n\n'''", '"""x"""""', "''''q'''", '""""""', '"""\\\n  y"""']
            )
        elif kind == "list":
            self.text += "["
            for index in range(self.random.randint(0, 3)):
                self.text += self.random.choice(["", " ", "\n", "\n # ], c\n  "])
                self.note((*path, index))
                self.value((*path, index), depth + 1)
                self.text += self.random.choice([",", " ,", "\n,"])
            self.text += self.random.choice(["]", "\n]", " # ]\n]"])
        else:
            self.text += "{ "
            for index in range(self.random.randint(0, 3)):
                self.text += ", " if index else ""
                self.key_and_value(path, depth + 1)
            self.text += "}"


def walk(value: Any, path: Path = ()) -> Iterator[Path]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from walk(inner, (*path, key))


@pytest.mark.parametrize("first_seed", range(0, 500, 100))
def test_every_key_of_random_documents_has_the_line_it_was_written_on(first_seed: int) -> None:
    keys = 0
    for seed in range(first_seed, first_seed + 100):
        writer = Writer(seed)
        text = writer.document()
        document = read_toml(text.encode(), "gate.toml")
        assert document.lines == writer.lines, text
        assert set(walk(tomllib.loads(text))) == document.lines.keys(), text
        rows = text.split("\n")
        for path, line in document.lines.items():
            if path and isinstance(path[-1], str):
                assert path[-1].split(" ")[0].split(".")[0].split("-")[0] in rows[line - 1], text
                keys += 1
    assert keys > 1000
