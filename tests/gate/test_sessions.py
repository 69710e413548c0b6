"""A session holds every measurement of its evidence under the id that `Evidence.lookup` knows."""

from __future__ import annotations

from typing import Any

import pytest

from inferdoc.gate.sessions import Session, session_of
from inferdoc.rules import diagnose, load_pack


def test_every_id_is_one_that_the_evidence_looks_up_with_the_same_value(runs: Any) -> None:
    evidence = runs.evidence()
    session = session_of(evidence, None)
    assert {id for id in session.measurements if id.startswith("prefix_caching")} == {
        f"prefix_caching.saturated.throughput.{part}" for part in ("off", "on", "gain")
    }
    assert set(evidence.quantities) < set(session.measurements)
    for id, measured in session.measurements.items():
        found = evidence.lookup(id)
        assert found is not None, id
        assert (measured.id, measured.value, measured.interval) == (id, found.value, found.interval)


def test_arms_keep_a_value_for_each_run_and_a_gain_is_a_factor(runs: Any) -> None:
    measured = session_of(runs.evidence(), None).measurements
    off = measured["prefix_caching.saturated.throughput.off"]
    assert off.values == pytest.approx([396.0, 400.0, 404.0, 400.0, 398.0, 402.0, 400.0, 396.0])
    assert (off.unit, off.direction, off.kind, off.load) == ("tokens/s", "higher", "timing", "saturated")
    gain = measured["prefix_caching.saturated.throughput.gain"]
    assert (gain.values, gain.unit, gain.direction) == ([1.42], "x", "higher")


def test_counts_are_exact_and_sizes_know_their_direction(runs: Any) -> None:
    measured = session_of(runs.evidence(hit_rate=None), None).measurements
    assert (measured["fit.weights_bytes"].kind, measured["fit.weights_bytes"].direction) == ("exact", "lower")
    assert (measured["latency.tpot_b1"].kind, measured["latency.tpot_b1"].direction) == ("timing", "lower")
    assert measured["fit.longest_request_tokens"].direction is None
    missing = measured["prefix.measured_hit_rate"]
    assert (missing.value, missing.values, missing.reason) == (None, [None], "not run")


def test_a_session_keeps_the_conclusions_and_survives_its_file(runs: Any) -> None:
    evidence = runs.evidence(failure="out of memory")
    diagnosis = diagnose(evidence, load_pack())
    session = session_of(evidence, diagnosis)
    assert session.diagnosis is not None
    assert session.diagnosis.findings == diagnosis.findings
    assert session.failures == ["Prefix caching, saturated: out of memory"]
    assert Session.model_validate_json(session.model_dump_json(by_alias=True)) == session
