"""The other examples: workflow, GitLab, Jenkins and the policies, as far as they go without their services.

There is no Groovy here: of the Jenkinsfile the brackets and the steps are read, and its shell is run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from inferdoc import errors
from inferdoc.gate.arms import refuse_one_place
from inferdoc.gate.loading import load_policy
from inferdoc.gate.paired_run import check_measurable, metric_series, refuse_stored_mode
from inferdoc.gate.procedure import design_problems
from inferdoc.gate.sizing import requests_needed

CODES = sorted(value for name, value in vars(errors).items() if name.startswith("EXIT_"))
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")
GATE = ["gate", "run", "--policy", "inferdoc-gate.toml", "--output", "inferdoc-gate"]


@pytest.fixture
def workflow(examples: Path) -> dict[Any, Any]:
    return yaml.safe_load((examples / "github-workflow.yml").read_text(encoding="utf-8"))


@pytest.fixture
def gitlab(examples: Path) -> dict[str, Any]:
    (job,) = yaml.safe_load((examples / "gitlab-ci.yml").read_text(encoding="utf-8")).values()
    return job


@pytest.fixture
def jenkins(examples: Path) -> str:
    return (examples / "Jenkinsfile").read_text(encoding="utf-8")


@pytest.fixture
def base(shell: Any, tmp_path: Path) -> str:
    """A commit of main on a server, and a shallow clone of it as the folder that the scripts run in."""
    server = tmp_path / "server"
    server.mkdir()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]

    def run(*arguments: str, cwd: Path = server) -> str:
        return subprocess.run([*git, *arguments], cwd=cwd, check=True, capture_output=True, text=True).stdout.strip()

    run("init", "--quiet")
    (server / "model").write_text("old")
    run("add", "model")
    run("commit", "--quiet", "--message", "main")
    commit = run("rev-parse", "HEAD")
    run("checkout", "--quiet", "-b", "change")
    (server / "model").write_text("new")
    run("commit", "--quiet", "--all", "--message", "change")
    run("clone", "--quiet", "--depth=1", "--branch=change", server.as_uri(), str(shell.work), cwd=tmp_path)
    return commit


def test_jobs_may_only_read_and_run_nothing_of_forks(workflow: dict[Any, Any]) -> None:
    assert workflow["permissions"] == {"contents": "read"}
    triggers = workflow[True]  # "on", which YAML 1.1 takes for yes
    assert set(triggers) == {"pull_request", "schedule", "workflow_dispatch"}
    for name, job in workflow["jobs"].items():
        assert "permissions" not in job
        if name == "record":
            assert "github.event_name != 'pull_request'" in job["if"]
            assert "github.ref == 'refs/heads/main'" in job["if"]
        else:
            assert "github.event.pull_request.head.repo.full_name == github.repository" in job["if"]
    assert "cancel-in-progress" in workflow["concurrency"]


def test_actions_are_pinned_and_keep_no_credentials(examples: Path, workflow: dict[Any, Any]) -> None:
    definition = yaml.safe_load((examples / "action.yml").read_text(encoding="utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    used = [step for step in [*steps, *definition["runs"]["steps"]] if "uses" in step]
    assert len(used) == 9
    for step in used:
        if "inferdoc-gate" in step["uses"]:
            assert step["uses"] == "./base/.github/actions/inferdoc-gate"
            assert step["with"].keys() <= definition["inputs"].keys()
        else:
            assert PINNED.fullmatch(step["uses"])
        if step["uses"].startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_the_history_variant_records_sessions_and_compares_them(
    shell: Any, examples: Path, workflow: dict[Any, Any]
) -> None:
    policy = load_policy(examples / "inferdoc-gate-history.toml")
    jobs = workflow["jobs"]
    (measure,) = [step for step in jobs["history"]["steps"] if "run" in step]
    (record,) = [step for step in jobs["record"]["steps"] if "run" in step]
    (compare,) = [step["with"] for step in jobs["history"]["steps"] if "inferdoc-gate" in step.get("uses", "")]
    (keep,) = [step["with"] for step in jobs["record"]["steps"] if "upload-artifact" in step.get("uses", "")]
    assert compare["baseline"] == f"base/{policy.baseline.path}"
    assert keep["path"] == policy.baseline.path
    assert keep["include-hidden-files"] is True

    (shell.work / "build").mkdir()
    (shell.work / "build" / "sessions.json").write_text("of an earlier job\n")
    ended = shell.run(measure["run"], {"SESSIONS": "3"})
    assert ended.code == 0, ended.err
    assert (shell.work / compare["candidate"]).read_text() == "session\n" * 3
    assert shell.run(record["run"], {"SESSIONS": "2"}).code == 0
    flags = ["gate", "record", "--policy", compare["policy"], "--output", "build/record"]
    assert shell.calls == [[*flags, "--candidate", "--into", compare["candidate"]]] * 3 + [flags] * 2
    assert shell.run(record["run"], {"SESSIONS": "2", "FAKE_CODE": "5"}).code == 5
    assert len(shell.calls) == 6


@pytest.mark.parametrize("code", CODES)
def test_the_gitlab_job_ends_with_the_gates_code(shell: Any, base: str, gitlab: dict[str, Any], code: int) -> None:
    (shell.work / "inferdoc-gate").mkdir()
    (shell.work / "inferdoc-gate" / "gate.json").write_text("of an earlier job")
    script = "\n".join([*gitlab["before_script"], *gitlab["script"]])
    # A runner that keeps its files has run a job before.
    for _ in range(2):
        ended = shell.run(script, {"CI_MERGE_REQUEST_DIFF_BASE_SHA": base, "FAKE_CODE": str(code)})
        assert ended.code == code, ended.err
    assert shell.calls == [GATE] * 2
    assert (shell.work / "base" / "model").read_text() == "old"
    assert (shell.work / "model").read_text() == "new"
    assert not (shell.work / "inferdoc-gate").exists()
    assert (code in gitlab["allow_failure"]["exit_codes"]) == (code == errors.EXIT_INCONCLUSIVE)


def test_the_gitlab_job_keeps_what_the_gate_writes(gitlab: dict[str, Any]) -> None:
    artifacts = gitlab["artifacts"]
    assert artifacts["when"] == "always"
    assert artifacts["reports"] == {"junit": "inferdoc-gate/junit.xml", "metrics": "inferdoc-gate/gate.prom"}
    assert gitlab["resource_group"]


def test_the_jenkins_pipeline_is_closed_and_names_known_steps(jenkins: str) -> None:
    # Without comments and strings only brackets, words and operators are left.
    code = re.sub(r"'''.*?'''|\"[^\"\n]*\"|'[^'\n]*'|//[^\n]*", "''", jenkins, flags=re.DOTALL)
    closing, open_ = {")": "(", "}": "{", "]": "["}, []
    for character in code:
        if character in "({[":
            open_.append(character)
        elif character in closing:
            assert open_.pop() == closing[character]
    assert open_ == []
    called = set(re.findall(r"^\s*(\w+) ?(?=[({'])|(?<== )(\w+)(?=\()", code, re.MULTILINE))
    names = {first or second for first, second in called}
    assert names == {
        *("pipeline", "options", "disableConcurrentBuilds", "timeout", "stages", "stage", "when", "steps", "script"),
        *("agent", "post", "always", "sh", "if", "unstable", "error"),
    }
    assert re.findall(r"^\s*(junit|archiveArtifacts) (\w+):", code, re.MULTILINE) == [
        ("junit", "testResults"),
        ("archiveArtifacts", "artifacts"),
    ]
    assert "skipMarkingBuildUnstable: true" in code


def test_the_jenkins_codes_are_told_apart(jenkins: str) -> None:
    chain = re.findall(r"if \(code (==|!=) (\d+)\) \{\s*(\w+)\(", jenkins)
    assert chain == [("==", "3", "unstable"), ("==", "1", "error"), ("!=", "0", "error")]


@pytest.mark.parametrize("code", CODES)
def test_the_jenkins_shell_ends_with_the_gates_code(shell: Any, base: str, jenkins: str, code: int) -> None:
    fetch, gate = re.findall(r"'''(.*?)'''", jenkins, flags=re.DOTALL)
    assert all(script.startswith("#!/usr/bin/env bash\n") for script in (fetch, gate))
    assert "$" not in re.sub(r"\$CHANGE_TARGET\b", "", fetch + gate)
    for _ in range(2):
        ended = shell.run(fetch, {"CHANGE_TARGET": "main"}, options="-u")
        assert ended.code == 0, ended.err
        assert shell.run(gate, {"FAKE_CODE": str(code)}, options="-u").code == code
    assert shell.calls == [GATE] * 2
    assert (shell.work / "base" / "model").read_text() == "old"


def test_a_hostile_branch_name_fetches_nothing(shell: Any, base: str, jenkins: str) -> None:
    fetch = re.findall(r"'''(.*?)'''", jenkins, flags=re.DOTALL)[0]
    for name in ("$(touch made)", "'; touch made; '", "--upload-pack=touch made"):
        assert shell.run(fetch, {"CHANGE_TARGET": name}, options="-u").code not in (0, 1, 3)
    assert sorted(file.name for file in shell.work.iterdir()) == [".git", "model"]


def test_every_script_is_bash(examples: Path, shell: Any, workflow: dict[Any, Any], gitlab: Any, jenkins: str) -> None:
    action = yaml.safe_load((examples / "action.yml").read_text(encoding="utf-8"))["runs"]
    steps = [*action["steps"], *(step for job in workflow["jobs"].values() for step in job["steps"])]
    scripts = [step["run"] for step in steps if "run" in step]
    scripts += ["\n".join([*gitlab["before_script"], *gitlab["script"]])]
    scripts += re.findall(r"'''(.*?)'''", jenkins, flags=re.DOTALL)
    assert len(scripts) == 8
    for script in scripts:
        ended = shell.run(script, options="-n")
        assert (ended.code, ended.err) == (0, "")
        if shutil.which("shellcheck"):
            ended = shell.run(f"shellcheck -s bash - <<'END'\n{script}\nEND\n")
            assert ended.code == 0, ended.out


@pytest.mark.parametrize("name", ["inferdoc-gate.toml", "inferdoc-gate-history.toml"])
def test_the_policies_load_and_can_decide(examples: Path, name: str) -> None:
    policy = load_policy(examples / name)
    check_measurable(policy)
    assert design_problems(metric_series(policy), policy.design, policy.statistics) == []
    assert policy.workload.requests is not None
    assert policy.workload.requests >= max(map(requests_needed, policy.metrics))
    if "history" in name:
        assert policy.baseline.mode == "history"
        assert policy.workload.rate is not None
    else:
        refuse_stored_mode(policy)
        assert policy.arms["baseline"].command != policy.arms["candidate"].command
        refuse_one_place(policy, examples)
        # What the file says of how many metrics may fail: one p of 1/2^n a metric, against half of alpha a look.
        text = (examples / name).read_text(encoding="utf-8")
        most = [int(policy.statistics.alpha / 2 * 2**pairs) for pairs in (policy.design.pairs, policy.design.max_pairs)]
        assert f"8 pairs carry up to {most[0]}, 12 pairs up to {most[1]}." in text


def test_the_readme_says_what_each_code_should_do(examples: Path, gitlab: dict[str, Any]) -> None:
    text = (examples / "README.md").read_text(encoding="utf-8")
    rows = {int(row[0]): row[1:] for row in re.findall(r"^\| (\d+) \| .* \| (\w+) \| (\w+) \| (\w+) \|", text, re.M)}
    assert sorted(rows) == sorted({0, *CODES})
    for code, (github, on_gitlab, on_jenkins) in rows.items():
        allowed = code in gitlab["allow_failure"]["exit_codes"]
        assert github == ("red" if code else "green")
        assert on_gitlab == ("warning" if allowed else "failed" if code else "passed")
        assert on_jenkins == ("unstable" if code == 3 else "failure" if code else "success")
    files = {file.name for file in examples.iterdir()} - {"README.md"}
    assert files == set(re.findall(r"^\| `([\w.-]+)` \|", text, re.MULTILINE))
