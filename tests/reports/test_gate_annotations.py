from __future__ import annotations

import re

from inferdoc.gate.result import GateResult, GateVerdict
from inferdoc.reports.gate_annotations import github_annotations

COMMAND = re.compile(r"::(error|warning|notice) ([^:]*)::(.*)")


def parsed(lines: list[str]) -> list[tuple[str, dict[str, str], str]]:
    """As the runner reads them: level, properties and message, with the escapes undone."""
    found = []
    for line in lines:
        match = COMMAND.fullmatch(line)
        assert match is not None, line
        level, properties, message = match.groups()
        pairs = dict(part.split("=", 1) for part in properties.split(","))
        found.append((level, {key: unescaped(value) for key, value in pairs.items()}, unescaped(message)))
    return found


def unescaped(text: str) -> str:
    for code, character in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        text = text.replace(code, character)
    return text


def test_errors_stand_at_the_line_of_the_policy_worst_first(gated: GateResult) -> None:
    level, properties, message = parsed(github_annotations(gated))[0]
    assert level == "error"
    assert properties == {
        "file": "inferdoc-gate.toml",
        "line": "14",
        "title": "inferdoc gate: output_tok_s regressed",
    }
    assert message.startswith(
        "output tokens per second: 3,410 → 3,076 tok/s -9.8% [-11.2%..-8.1%]; limit 5%; floor 20 tok/s; p=0.0039"
    )


def test_levels_in_order(gated: GateResult) -> None:
    found = parsed(github_annotations(gated))
    assert [(level, properties.get("line")) for level, properties, _ in found] == [
        ("error", "14"),
        ("error", "35"),
        ("error", "31"),
        ("error", None),
        ("warning", "45"),
        ("notice", None),
    ]
    assert found[3][2] == gated.diagnosis_changes[1].text
    assert found[-1][2] == f"{gated.headline}; 1 more finding in the summary and in gate.json"


def test_a_changed_answer_stands_at_the_line_that_made_it_count(gated: GateResult) -> None:
    gated.results = []
    for change in gated.diagnosis_changes:
        change.policy_line = 51
    told = parsed(github_annotations(gated))
    assert [(level, properties.get("line")) for level, properties, _ in told] == [
        ("error", "51"),
        ("warning", "51"),
        ("notice", None),
    ]
    assert {properties["file"] for _, properties, _ in told} == {"inferdoc-gate.toml"}
    for change in gated.diagnosis_changes:
        change.policy_line = None
    assert all("line" not in properties for _, properties, _ in parsed(github_annotations(gated)))


def test_at_most_five_findings_errors_first_and_the_rest_is_counted(gated: GateResult) -> None:
    failing, warned = gated.results[1], gated.results[6]
    gated.diagnosis_changes = []
    gated.results = [failing.model_copy(update={"metric": f"m{i}"}) for i in range(9)]
    gated.results += [warned.model_copy(update={"metric": f"w{i}"}) for i in range(23)]
    found = parsed(github_annotations(gated))
    levels = [level for level, _, _ in found]
    assert levels == ["error"] * 5 + ["notice"]
    assert found[-1][2].endswith("; 27 more findings in the summary and in gate.json")
    gated.results = [*gated.results[9:], *gated.results[:2]]
    levels = [level for level, _, _ in parsed(github_annotations(gated))]
    assert levels == ["error"] * 2 + ["warning"] * 3 + ["notice"]


def test_unlike_sides_are_an_error_for_each_reason(unlike: GateResult) -> None:
    found = parsed(github_annotations(unlike))
    assert [(level, message) for level, _, message in found] == [
        ("error", "gpu.model differs: H100 NVL / H100 PCIe; record a baseline on this card"),
        ("notice", "The two were measured on different cards."),
    ]
    assert "file" not in found[0][1]


def test_a_failed_measurement_is_an_error(gated: GateResult) -> None:
    gated.verdict, gated.results, gated.diagnosis_changes = GateVerdict.INVALID, [], []
    assert parsed(github_annotations(gated))[0][::2] == ("error", gated.headline)


def test_undecided_metrics_warn_when_they_decide(gated: GateResult) -> None:
    gated.results, gated.diagnosis_changes = gated.results[2:3], []
    gated.verdict, gated.exit_code = GateVerdict.INCONCLUSIVE, 3
    assert [level for level, _, _ in parsed(github_annotations(gated))] == ["warning", "notice"]
    gated.verdict, gated.exit_code = GateVerdict.PASSED, 0
    assert [level for level, _, _ in parsed(github_annotations(gated))] == ["notice"]


def test_text_cannot_leave_its_place(gated: GateResult) -> None:
    gated.results[1].label = "100%\r\n::error::boom"
    gated.results[1].metric = "a,line=1::x"
    assert gated.policy is not None
    gated.policy.path = "a:b,c%.toml"
    line = github_annotations(gated)[0]
    assert line.startswith(
        "::error file=a%3Ab%2Cc%25.toml,line=14,title=inferdoc gate%3A a%2Cline=1%3A %3Ax regressed::"
    )
    assert "100%25 : :error: :boom" in line
    assert "\n" not in line
