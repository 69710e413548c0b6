"""`inferdoc rules check` and `inferdoc rules explain`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from inferdoc.cli.rules import app

GOOD = """\
question: token_latency
rules:
  - id: mine
    version: 1
    technique: cuda_graphs
    title: Mine
    asks: Is it so?
    why: Because.
    cases:
      - conclude: not measured
        text: Unclear
claims:
  - {id: a, claim: b, source: c, measure: fit.fits}
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_check_counts_what_is_good(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(GOOD, encoding="utf-8")
    done = run("check", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert f"{tmp_path}: 1 file, 1 rules, 1 claims" in done.output
    assert "with the built-in pack: 23 rules, 21 techniques" in done.output


def test_check_says_what_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(GOOD.replace("id: mine", "id: cuda-graphs"), encoding="utf-8")
    done = run("check", str(tmp_path))
    assert done.exit_code == 0
    place = f"rules: 'cuda-graphs' at {tmp_path}/mine.yaml:3"
    assert f"{place} replaces the one at inferdoc/rules/token_latency.yaml:" in done.output


def test_check_prints_every_error_with_its_line_and_exits_with_two(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD.replace("title", "titel"), encoding="utf-8")
    (tmp_path / "b.yaml").write_text("lead: [", encoding="utf-8")
    done = run("check", str(tmp_path))
    assert done.exit_code == 2
    assert done.stdout == ""
    for place in ("a.yaml:3", "a.yaml:6", "b.yaml:1"):
        assert f"error: {tmp_path}/{place}: " in done.stderr
    assert f"3 errors in {tmp_path}" in done.stderr
    assert "Traceback" not in done.output


def test_check_of_a_missing_folder_exits_with_two(tmp_path: Path) -> None:
    done = run("check", str(tmp_path / "none"))
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {tmp_path}/none: cannot be read")


def test_explain_says_what_why_on_which_thresholds_and_from_where() -> None:
    done = run("explain", "paged-attention")
    assert done.exit_code == 0
    for part in (
        "from: inferdoc/rules/kv_fragmentation.yaml:",
        "asks: Does the KV memory that contiguous reservations waste",
        "why: Reserving a request's maximum",
        "fragmentation.budget_binds is below 1 (is_true)",
        "paged_attention.real.throughput.gain is at least 1.05 (least_worthwhile_gain)",
        "1.05 (least_worthwhile_gain): inferdoc: judgement, because",
        "[inferdoc/rules/constants.yaml:",
        "technique paged_attention: PagedAttention [inferdoc/rules/techniques.yaml:",
        "see https://arxiv.org/abs/2309.06180",
    ):
        assert part in done.stdout


def test_explain_says_what_would_refute_each_conclusion() -> None:
    lines = [line.strip() for line in run("explain", "prefix-caching").stdout.splitlines()]
    refuted = [line for line in lines if line.startswith("refuted by: ")]
    assert [line.split("share ")[1].split(",")[0].split(" whole")[0] for line in refuted] == ["fewer", "more"]


def test_every_rule_can_be_explained() -> None:
    from inferdoc.rules import load_pack
    from inferdoc.rules.explanation import explain

    pack = load_pack()
    for loaded in pack.rules:
        text = explain(loaded, pack)
        assert loaded.source in text
        assert text.count("\n") > 15


@pytest.mark.parametrize(
    ("id", "hint"),
    [
        ("prefix_caching", "did you mean prefix-caching"),
        ("chunked", "did you mean chunked-prefill?"),
        ("zzz", "known rules: "),
    ],
)
def test_an_unknown_rule_exits_with_two_and_lists_near_ones(id: str, hint: str) -> None:
    done = run("explain", id)
    assert done.exit_code == 2
    assert f"there is no rule '{id}'; {hint}" in done.stderr


def test_explain_reads_the_users_rules_too(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(GOOD, encoding="utf-8")
    done = run("explain", "mine", "--rules", str(tmp_path))
    assert done.exit_code == 0
    assert f"from: {tmp_path}/mine.yaml:3" in done.stdout
