"""``inferdoc diagnose`` from end to end, as a user calls it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inferdoc.evidence import Basis, Diagnosis, read_evidence
from inferdoc.models import EMBEDDED, find_source, model_revision
from inferdoc.probes.version import probe_version

FILES = {"report.html", "report.md", "evidence.json", "diagnosis.json"}


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str], float]:
    """One diagnosis of the embedded default: where it wrote, how it ended, how long it took."""
    folder = tmp_path_factory.mktemp("diagnose") / "out"
    began = time.monotonic()
    process = subprocess.run(
        [sys.executable, "-m", "inferdoc", "diagnose", "--budget", "60s", "--slo", "tpot_p50=1s", "-o", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    return folder, process, time.monotonic() - began


def test_it_ends_well_and_leaves_four_files(finished: tuple[Path, subprocess.CompletedProcess[str], float]) -> None:
    folder, process, _ = finished
    assert process.returncode == 0, process.stderr
    assert {path.name for path in folder.iterdir()} == FILES


def test_the_budget_is_kept_within_a_fifth(finished: tuple[Path, subprocess.CompletedProcess[str], float]) -> None:
    folder, _, _ = finished
    assert read_evidence(folder / "evidence.json").run.duration_s < 1.2 * 60


def test_results_go_to_stdout_and_progress_to_stderr(
    finished: tuple[Path, subprocess.CompletedProcess[str], float],
) -> None:
    _, process, _ = finished
    assert "VERDICT" in process.stdout
    assert "VERDICT" not in process.stderr
    assert "read as chat" in process.stderr
    assert "prefix caching, saturated" in process.stderr


def test_all_six_questions_are_answered(finished: tuple[Path, subprocess.CompletedProcess[str], float]) -> None:
    folder, _, _ = finished
    diagnosis = Diagnosis.model_validate_json((folder / "diagnosis.json").read_text())
    assert [answer.question.number for answer in diagnosis.answers] == [1, 2, 3, 4, 5, 6]
    assert all(answer.text for answer in diagnosis.answers)


def test_the_evidence_says_which_weights_and_probes_it_is_of(
    finished: tuple[Path, subprocess.CompletedProcess[str], float],
) -> None:
    folder, _, _ = finished
    evidence = read_evidence(folder / "evidence.json")
    assert evidence.subject.revision == model_revision(find_source(EMBEDDED))
    assert evidence.tool.probes == probe_version()
    assert Diagnosis.model_validate_json((folder / "diagnosis.json").read_text()).tool == evidence.tool


def test_every_pair_changed_one_field_at_equal_kv_with_the_same_outputs(
    finished: tuple[Path, subprocess.CompletedProcess[str], float],
) -> None:
    folder, _, _ = finished
    comparisons = read_evidence(folder / "evidence.json").comparisons
    assert "prefix_caching.saturated" in comparisons
    for comparison in comparisons.values():
        changed = [k for k, v in comparison.off_config.items() if comparison.on_config[k] != v]
        assert len(changed) == 1
        assert comparison.changed.startswith(changed[0])
        # Fewer bits are another model, and another attention kernel rounds otherwise: both may change a token.
        if not comparison.changed.startswith(("weights:", "kv_cache_dtype:", "attention_backend:")):
            assert comparison.outputs is None or comparison.outputs.identical == comparison.outputs.requests


NO_STEPS = {"fragmentation.live_paged", "latency.bandwidth", "latency.matrix_rate"} | {
    f"latency.draft_{figure}" for figure in ("acceptance", "alpha", "tokens_per_step")
}
"""Measured, but no times of steps of the engine."""


def test_every_measurement_says_how_near_the_limit_the_engine_was(
    finished: tuple[Path, subprocess.CompletedProcess[str], float],
) -> None:
    folder, _, _ = finished
    evidence = read_evidence(folder / "evidence.json")
    for comparison in evidence.comparisons.values():
        fraction = comparison.roofline_fraction
        assert fraction is not None, comparison.id
        assert (fraction.value is None) == (fraction.reason is not None)
        assert fraction.value is None or 0 < fraction.value < 2
    # Counts and sizes are exact; shares of the roofline are it; the rest was timed.
    timed = [
        quantity
        for quantity in evidence.quantities.values()
        if quantity.basis is Basis.MEASURED and quantity.value is not None and not quantity.exact
    ]
    untimed = ("latency.roofline", "latency.compute", "quality.")
    bare = {q.id for q in timed if q.roofline is None and not q.id.startswith(untimed)}
    assert bare <= NO_STEPS
    assert {"latency.tpot_b1", "latency.tpot_full_batch", "latency.ngram_breakeven"} <= {q.id for q in timed}
    rooflines = [q.roofline for q in timed if q.roofline is not None]
    for series in evidence.series:
        if series.id in ("latency.tpot_by_batch", "latency.verify_cost"):
            for line in series.lines:
                assert line.roofline is not None, series.id
                rooflines += line.roofline
    assert all((limit.fraction is None) == (limit.reason is not None) for limit in rooflines)


def test_the_terms_of_memory_add_up_to_the_budget(
    finished: tuple[Path, subprocess.CompletedProcess[str], float],
) -> None:
    folder, _, _ = finished
    quantities = read_evidence(folder / "evidence.json").quantities
    names = ("weights", "activation_peak", "graphs", "outside_framework", "draft", "kv_pool", "memory_left")
    parts = [quantities[f"fit.{name}_bytes"] for name in names]
    assert sum(part.value or 0 for part in parts) == quantities["fit.budget_bytes"].value
    assert all((part.value is None) == (part.reason is not None) for part in parts)
    assert (quantities["fit.logits_bytes"].value or 0) <= (parts[1].value or 0)


def test_the_report_is_told_again_from_the_evidence(
    finished: tuple[Path, subprocess.CompletedProcess[str], float], tmp_path: Path
) -> None:
    folder, _, _ = finished
    again = tmp_path / "again"
    subprocess.run(
        [sys.executable, "-m", "inferdoc", "report", str(folder / "evidence.json"), "-o", str(again)],
        check=True,
        capture_output=True,
    )
    first, second = (json.loads((f / "diagnosis.json").read_text()) for f in (folder, again))
    for part in ("verdict", "answers", "findings", "recommendations"):
        assert first[part] == second[part]


def test_an_interruption_leaves_a_partial_report(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = "".join(f"{i / 10},{40 + i},{10 + 5 * (i % 4)}\n" for i in range(40))
    trace.write_text("timestamp,prompt_tokens,completion_tokens\n" + rows)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "inferdoc", "diagnose", "--trace", str(trace), "--question", "3"),
            *("--budget", "120s", "-o", str(tmp_path / "out")),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "continuous batching, open loop" in line:  # the second comparison begins: the first one is there
            process.send_signal(signal.SIGINT)
            break
    process.communicate(timeout=120)
    assert process.returncode == 130
    evidence = read_evidence(tmp_path / "out" / "evidence.json")
    assert evidence.run.status == "partial"
    assert evidence.comparisons["continuous_batching.saturated"].pairs == evidence.plan[0].pairs
    begun = evidence.comparisons.get("continuous_batching.open")
    assert begun is None or begun.pairs < evidence.plan[1].pairs
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
