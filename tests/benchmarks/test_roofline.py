"""The roofline's parts are kept one by one, and its bars come from them."""

from __future__ import annotations

import json
import time

import pytest
import roofline
from engine_vs_peers import Entrant, describe
from peers.process import Job
from peers.registry import GPU_WORK, OURS, PEERS
from roofline import Parts, judge


def test_every_part_is_given_out_as_soon_as_it_is_there_whatever_becomes_of_it(monkeypatch):
    clock, seen = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    parts = Parts(10.0, lambda results: seen.append(dict(results)))

    def slow() -> int:
        clock[0] = 8.0
        return 1

    assert parts.measure("slow", slow) == 1
    assert parts.measure("broken", lambda: 1 / 0, needs_s=1.0) is None
    assert parts.measure("late", lambda: 2) is None
    assert parts.load(lambda: object(), needs_s=1.0) is not None
    assert [list(each) for each in seen] == [["slow"], ["slow", "broken"], ["slow", "broken", "late"]]
    assert parts.results == {
        "slow": 1,
        "broken": {"failed": "ZeroDivisionError: division by zero"},
        "late": {"skipped": "no time left"},
    }


def test_a_roofline_that_is_ended_leaves_a_partial_result(tmp_path, monkeypatch):
    def measure(shape, device, limit_s, *, with_job, after_part):
        after_part({"copy": 1e9})
        raise SystemExit(143)

    file = tmp_path / "roofline.json"
    monkeypatch.setattr(roofline, "measure", measure)
    monkeypatch.setattr("sys.argv", ["roofline.py", "--device", "cpu", "--shape", "tiny", "--output", str(file)])
    monkeypatch.setattr(roofline, "end_on_signal", lambda: None)
    with pytest.raises(SystemExit):
        roofline.main()
    result = json.loads(file.read_text())
    assert result["partial"] is True
    assert result["results"] == {"copy": 1e9}


def test_the_bar_against_continuous_batching_takes_our_default_settings():
    ours = Entrant(OURS["default"], jobs={0: Job(1.0, [[1]])})
    peer = Entrant(PEERS["transformers-continuous"], jobs={0: Job(1.75, [[1]])})
    bars = judge({"job": describe([ours], [peer], GPU_WORK)}, on_card=True)
    assert bars["speedup_over_continuous"] == {"value": pytest.approx(1.75), "at_least": 1.5, "met": True}
    assert bars["mbu_batch_1"]["met"] is None
    nothing = describe([ours], [Entrant(PEERS["transformers-continuous"])], GPU_WORK)
    assert judge({"job": nothing}, on_card=True)["speedup_over_continuous"]["value"] is None
