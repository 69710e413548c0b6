"""Rule files that are wrong say so with their line; a user's folder adds to ours and replaces by id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inferdoc.errors import RuleError
from inferdoc.evidence import Conclusion
from inferdoc.rules import diagnose, load_pack, read_pack

GOOD = """\
question: prefix_redundancy
rules:
  - id: mine
    version: 1
    technique: prefix_caching
    title: Mine
    asks: Is it so?
    why: Because.
    cases:
      - conclude: not needed
        when:
          measure: prefix.ideal_hit_rate
          below: 0.5
          source: "inferdoc: judgement, because it is a test"
        text: Little repeats
      - conclude: inconclusive
        text: Unclear
"""


def write(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder


def errors_of(folder: Path) -> list[str]:
    _, errors = read_pack(folder)
    return [str(error).removeprefix(f"{folder}/") for error in errors]


def test_the_good_file_that_the_broken_ones_are_made_of_loads(tmp_path: Path) -> None:
    assert errors_of(write(tmp_path, GOOD)) == []


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("          below: 0.5", "          bellow: 0.5", 13, "unknown key 'bellow'; did you mean 'below'?"),
        ("    why: Because.\n", "", 3, "'why' is missing; add it"),
        (
            "          below: 0.5\n          source: ",
            "          below: half\n          #",
            13,
            "there is no constant 'half'",
        ),
        ("          below: 0.5", "          below: .nan", 13, "must be a number, or the name of a constant"),
        ("          below: 0.5", "          below: true", 13, "must be a number, or the name of a constant"),
        ('          source: "inferdoc: judgement, because it is a test"\n', "", 11, "a threshold needs its 'source'"),
        ("          below: 0.5", "          below: no_reuse", 11, "a constant brings its own source"),
        ("          below: 0.5", "          below: 0.5\n          at_least: 0.1", 11, "exactly one of 'at_least' and"),
        ("          below: 0.5", "          below: 0.5\n          known: fit.fits", 11, "found measure and known"),
        ("prefix.ideal_hit_rate", "ideal hit rate", 12, "must be the id of a quantity"),
        ("conclude: not needed", "conclude: maybe", 10, "Input should be 'recommended'"),
        ("conclude: inconclusive", "conclude: recommended", 3, "a rule that can recommend needs 'change'"),
        ("technique: prefix_caching", "technique: prefix_cashing", 5, "did you mean 'prefix_caching'?"),
        ("text: Little repeats", "text: Little {nothing} repeats", 15, "there is no constant 'nothing'"),
        ("text: Little repeats", "text: 7", 15, "YAML reads this as 7, not as text; put it in quotes"),
        ("version: 1", "version: '1'", 4, "Input should be a valid integer"),
        (
            "    why: Because.",
            "    why: Because.\n    effects:\n      - {gain: latency.slo_share, serves: [latency]}",
            10,
            "must be the paired effect of a comparison",
        ),
        (
            "    why: Because.",
            "    why: Because.\n    effects: [{gain: a.gain, serves: [cost]}]",
            9,
            "must be the paired",
        ),
        ("id: mine", "id: Mine Own", 3, "must be lower-case letters"),
        ("question: prefix_redundancy\n", "", 1, "a file with 'rules' names its 'question'"),
        ("question: prefix_redundancy", "question: prefixes", 1, "Input should be 'hardware_fit'"),
        ("    why: Because.", "    why: Because.\n    why: Twice.", 9, "key 'why' stands twice; remove one"),
        ("    why: Because.", "    why: 'Because.", 8, "not valid YAML: while scanning a quoted"),
        ("    why: Because.", "    why: !!python/object/apply:os.getcwd []", 8, "not valid YAML"),
        ("        text: Unclear", "        text: Unclear\n        when: {slo: tpot}", 3, "must have no 'when'"),
        ("        text: Little repeats", "        text: Little repeats\n        wen: 1", 16, "did you mean 'when'?"),
    ],
)
def test_an_error_names_its_line_and_how_to_mend_it(
    tmp_path: Path, old: str, new: str, line: int, message: str
) -> None:
    assert old in GOOD
    errors = errors_of(write(tmp_path, GOOD.replace(old, new, 1)))
    assert any(error.startswith(f"mine.yaml:{line}: ") and message in error for error in errors), errors


def test_every_error_of_every_file_is_found(tmp_path: Path) -> None:
    write(tmp_path, GOOD.replace("title: Mine", "titel: Mine"), "a.yaml")
    write(tmp_path, "rules: [", "b.yaml")
    write(tmp_path, "- a list", "c.yaml")
    write(tmp_path, "", "d.yaml")
    (tmp_path / "e.yaml").write_bytes(b"pack: a\nquestion: \xff\n")
    found = {error.split(": ")[0] for error in errors_of(tmp_path)}
    assert found == {"a.yaml:3", "a.yaml:6", "b.yaml:1", "c.yaml:1", "d.yaml:1", "e.yaml:2"}


def test_load_pack_raises_the_first_error_and_counts_the_rest(tmp_path: Path) -> None:
    write(tmp_path, GOOD.replace("title: Mine", "titel: Mine"))
    with pytest.raises(RuleError, match=r"mine\.yaml:\d+: .*\(and 1 more: inferdoc rules check"):
        load_pack(tmp_path)


def test_an_alias_that_holds_itself_is_refused(tmp_path: Path) -> None:
    text = GOOD.replace("        when:\n", "        when: &x\n          unless: *x\n")
    assert errors_of(write(tmp_path, text)) == ["mine.yaml:12: an alias holds itself; write it out"]


def test_a_file_that_grows_through_aliases_is_refused(tmp_path: Path) -> None:
    levels = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 9))
    errors = errors_of(write(tmp_path, f"l0: &l0 [a, a, a, a, a, a, a, a, a]\n{levels}\n"))
    assert len(errors) == 1
    assert "more than 50000 values" in errors[0]


@pytest.mark.parametrize(("name", "message"), [("missing", "cannot be read"), ("empty", "holds no rule file")])
def test_a_folder_that_is_missing_or_empty_is_one_clear_error(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RuleError, match=message):
        load_pack(tmp_path / name)


def test_two_rules_of_one_folder_may_not_share_an_id(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "a.yaml")
    write(tmp_path, GOOD, "b.yaml")
    assert errors_of(tmp_path) == [f"b.yaml:3: rules: 'mine' is already at {tmp_path}/a.yaml:3; rename one"]


def test_a_users_rule_is_added_after_ours(tmp_path: Path, make: Any, judge: Any) -> None:
    pack = load_pack(write(tmp_path, GOOD))
    diagnosis = diagnose(make.fits().known("prefix.ideal_hit_rate", 0.2).build(), pack)
    mine = next(finding for finding in diagnosis.findings if finding.rule_id == "mine")
    assert (mine.conclusion, mine.text) == (Conclusion.NOT_NEEDED, "Little repeats.")
    assert mine.rule_source == f"{tmp_path}/mine.yaml:3"
    assert len(diagnosis.findings) == len(judge(make).findings) + 1
    assert diagnosis.rule_pack.files[-1] == f"{tmp_path}/mine.yaml"
    assert diagnosis.rule_pack.sha256 != judge(make).rule_pack.sha256
    assert diagnosis.extensions == {}


def test_a_users_rule_replaces_ours_by_id_and_the_pack_says_so(tmp_path: Path, make: Any) -> None:
    pack = load_pack(write(tmp_path, GOOD.replace("id: mine", "id: prefix-caching")))
    diagnosis = diagnose(make.fits().known("prefix.ideal_hit_rate", 0.2).build(), pack)
    findings = [finding for finding in diagnosis.findings if finding.rule_id == "prefix-caching"]
    assert [finding.text for finding in findings] == ["Little repeats."]
    (replaced,) = diagnosis.extensions["rules_replaced"]
    assert replaced.startswith(
        f"rules: 'prefix-caching' at {tmp_path}/mine.yaml:3 replaces the one at inferdoc/rules/prefix"
    )


def test_a_users_constant_moves_the_line_of_our_rules(tmp_path: Path, make: Any) -> None:
    constants = "constants:\n  least_worthwhile_gain: {value: 2.0, source: 'inferdoc: judgement, because'}\n"
    evidence = make.fits().known("prefix.ideal_hit_rate", 0.5)
    evidence.compare("prefix_caching.saturated", throughput=(1.5, 1.4, 1.6))
    evidence.compare("prefix_caching.open", ttft_p50=(1.5, 1.4, 1.6))
    conclusions = []
    for pack in (load_pack(), load_pack(write(tmp_path, constants))):
        findings = diagnose(evidence.build(), pack).findings
        conclusions += [finding.conclusion for finding in findings if finding.rule_id == "prefix-caching"]
    assert conclusions == [Conclusion.RECOMMENDED, Conclusion.DOES_NOT_PAY]
