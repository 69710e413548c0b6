from __future__ import annotations

from xml.etree import ElementTree

import pytest

from inferdoc.gate.result import GateResult, GateVerdict
from inferdoc.reports.gate_junit import render_junit


def suite(result: GateResult) -> ElementTree.Element:
    document = ElementTree.fromstring(render_junit(result).encode())
    assert document.tag == "testsuites"
    found = document.find("testsuite")
    assert found is not None
    return found


def outcomes(found: ElementTree.Element) -> dict[str, str]:
    """The outcome of each test case by its name."""
    kinds = ("failure", "error", "skipped")
    return {
        case.attrib["name"]: next((kind for kind in kinds if case.find(kind) is not None), "passed")
        for case in found.findall("testcase")
    }


def test_a_case_for_each_limit_and_each_changed_answer(gated: GateResult) -> None:
    assert outcomes(suite(gated)) == {
        "comparison": "passed",
        "output_tok_s (regression)": "failure",
        "output_tokens_total (exact)": "failure",
        "error_rate (budget)": "failure",
        "tpot_p50 (regression)": "skipped",
        "preemptions (regression)": "skipped",
        "ttft_p95 (regression)": "skipped",
        "hit_rate (regression)": "skipped",
        "itl_p99 (regression)": "passed",
        "e2e_p50 (regression)": "passed",
        "prefix_redundancy/prefix_caching: worse": "failure",
        "output_variance/continuous_batching: no longer known": "skipped",
    }


def test_counts_are_those_of_the_cases(any_gate: GateResult) -> None:
    found = suite(any_gate)
    seen = list(outcomes(found).values())
    counted = {name: found.attrib[name] for name in ("tests", "failures", "errors", "skipped")}
    assert counted == {
        "tests": str(len(seen)),
        "failures": str(seen.count("failure")),
        "errors": str(seen.count("error")),
        "skipped": str(seen.count("skipped")),
    }


def test_times_are_seconds_that_add_up(gated: GateResult) -> None:
    found = suite(gated)
    assert found.attrib["time"] == "214.000"
    assert sum(float(case.attrib["time"]) for case in found.findall("testcase")) == 214.0


@pytest.mark.parametrize("verdict", [GateVerdict.NOT_COMPARABLE, GateVerdict.INVALID, GateVerdict.INTERRUPTED])
def test_no_comparison_is_an_error_never_a_pass(unlike: GateResult, verdict: GateVerdict) -> None:
    unlike.verdict = verdict
    found = suite(unlike)
    assert outcomes(found) == {"comparison": "error"}
    error = found.find("testcase/error")
    assert error is not None
    assert error.attrib == {"message": "The two were measured on different cards.", "type": verdict.value}
    assert "record a baseline on this card" in (error.text or "")


def test_a_recorded_baseline_is_skipped(unlike: GateResult) -> None:
    unlike.verdict = GateVerdict.RECORDED
    assert outcomes(suite(unlike)) == {"comparison": "skipped"}


def test_cases_point_at_the_line_of_the_policy(gated: GateResult, unlike: GateResult) -> None:
    case = next(case for case in suite(gated) if case.attrib.get("name") == "output_tok_s (regression)")
    assert (case.attrib["file"], case.attrib["line"]) == ("inferdoc-gate.toml", "14")
    assert case.attrib["classname"] == "inferdoc.gate"
    assert "file" not in suite(unlike).findall("testcase")[0].attrib
    gated.diagnosis_changes[1].policy_line = 51
    lines = {case.attrib["name"]: case.attrib.get("line") for case in suite(gated).findall("testcase")}
    assert lines["prefix_redundancy/prefix_caching: worse"] == "51"


def test_numbers_are_in_the_message_and_the_properties(gated: GateResult) -> None:
    case = next(case for case in suite(gated) if case.attrib.get("name") == "output_tok_s (regression)")
    properties = {item.attrib["name"]: item.attrib["value"] for item in case.findall("properties/property")}
    assert properties["change"] == "-9.8% [-11.2%..-8.1%]"
    assert properties["p_adjusted"] == "0.031"
    failure = case.find("failure")
    assert failure is not None
    assert "3,410 → 3,076 tok/s -9.8% [-11.2%..-8.1%]; limit 5%; floor 20 tok/s" in failure.attrib["message"]
    assert "inferdoc gate run --policy inferdoc-gate.toml" in (failure.text or "")


@pytest.mark.parametrize("text", ["a\x00b", "\ud800", "\ufffe\uffff", "]]>", "<x>&'\"", "\x1b[31m", "a\r\nb\tc"])
def test_any_text_is_valid_xml(gated: GateResult, text: str) -> None:
    gated.headline = gated.results[0].label = gated.results[1].reason = gated.command = text
    gated.verdict = GateVerdict.INVALID
    document = render_junit(gated)
    ElementTree.fromstring(document.encode())
    assert not {"\x00", "\ufffe", "\uffff", "\x1b"} & set(document)
