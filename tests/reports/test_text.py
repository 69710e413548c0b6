from __future__ import annotations

from collections.abc import Callable

import pytest

from inferdoc.reports.text import (
    LIMIT,
    encodable,
    markdown_code,
    markdown_safe,
    terminal_safe,
    visible,
    without_surrogates,
    xml_safe,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Qwen3-8B", "Qwen3-8B"),
        ("Modell für Übersicht 模型", "Modell für Übersicht 模型"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\x00b", "a\\x00b"),
        ("a\x9bb", "a\\x9bb"),
        ("gpt\u202etxt.exe", "gpt\\u202etxt.exe"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("\ud800", "\\ud800"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("two\r\nlines\tand a tab", "two lines and a tab"),
        ("line\u2028separator", "line\\u2028separator"),
    ],
)
def test_visible_hides_nothing(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_visible_cuts_a_long_text_and_says_its_length() -> None:
    assert visible("x" * 1_000_000) == "x" * LIMIT + "… (1,000,000 characters)"
    assert visible("x" * LIMIT) == "x" * LIMIT


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a|b", "a\\|b"),
        ("<img src=x>", "&lt;img src=x>"),
        ("`code`", "\\`code\\`"),
        ("*bold* _it_", "\\*bold\\* \\_it\\_"),
        ("[a](b)", "\\[a\\](b)"),
        ("@name", "@&#8203;name"),
        ("#1", "#&#8203;1"),
        ("::error::x", ":&#8203;:error:&#8203;:x"),
        ("https://evil.example", "https:&#8203;//evil.example"),
        ("- item", "\\- item"),
        ("> quote", "\\> quote"),
        ("off -> on", "off -> on"),
        ("1. item", "1\\. item"),
        ("1.83x", "1.83x"),
        ("&lt;", "&amp;lt;"),
    ],
)
def test_markdown_means_only_itself(text: str, escaped: str) -> None:
    assert markdown_safe(text) == escaped


@pytest.mark.parametrize(
    ("text", "code"), [("a b", "`a b`"), ("a`b", "``a`b``"), ("``", "``` `` ```"), ("x\ny", "`x y`")]
)
def test_code_fence_is_longer_than_any_run_of_backticks(text: str, code: str) -> None:
    assert markdown_code(text) == code


@pytest.mark.parametrize("safe", [visible, markdown_safe, markdown_code, terminal_safe, xml_safe])
def test_no_text_holds_an_old_workflow_command(safe: Callable[[str], str]) -> None:
    """The runner obeys it anywhere in a line, so also in a code span of a file that is printed to the log."""
    assert "##[" not in safe("it said ##[error]boom")
    assert "##[" not in safe("###[x] ##\u200b##[error]")


def test_xml_is_no_workflow_command_where_an_element_begins_a_line() -> None:
    assert xml_safe("::error::boom") == ": :error: :boom"


def test_terminal_text_is_no_workflow_command() -> None:
    assert terminal_safe("::error::boom ##[group]") == ": :error: :boom # #[group]"


def test_text_for_a_narrow_encoding_is_escaped_not_refused() -> None:
    assert encodable("Ünter", "ascii") == "\\xdcnter"


def test_lone_surrogates_are_replaced_and_pairs_kept() -> None:
    assert without_surrogates("a\ud800b") == "a\ufffdb"
    assert without_surrogates("a😀b") == "a😀b"
