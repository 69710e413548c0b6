"""The README's table says what the JSON results say, and nothing else."""

from __future__ import annotations

import json

import pytest
import table
from engine_vs_peers import Entrant, describe
from peers.process import Job
from peers.registry import CPU_WORK, OURS, PEERS

STATIC = PEERS["transformers-static"]


def test_the_readme_holds_the_results():
    written = table.README.read_text()
    assert written == table.replaced(written, table.table()), "python benchmarks/table.py --write"


@pytest.mark.parametrize("entry", table.ENTRIES, ids=lambda entry: entry.file)
def test_a_result_that_is_not_there_is_said_to_be_missing(tmp_path, entry):
    (row,) = (line for line in table.table(tmp_path).splitlines() if f"`{entry.command}`" in line)
    assert entry.missing in row
    on_card = any(word in entry.file for word in ("cuda", "roofline"))
    assert (entry.missing == table.NOT_RUN) == on_card


def test_numbers_come_from_the_json(tmp_path):
    def entrant(peer, seconds):
        return Entrant(peer, jobs={i: Job(seconds, [[1]]) for i in range(6)})

    ours, static = [entrant(OURS["default"], 4.0), entrant(OURS["compiled"], 2.0)], entrant(STATIC, 3.0)
    result = {
        "date": "2030-01-02",
        "partial": True,
        "machine": {"processor": "A processor", "cores": 2, "torch": "9.9", "transformers": "8.8"},
        **describe(ours, [static], CPU_WORK),
    }
    (tmp_path / "engine_vs_peers.json").write_text(json.dumps(result))
    row = table.table(tmp_path).splitlines()[2]
    assert "inferdoc as diagnose runs it: 0.75x transformers, static batch (0.75 to 0.75, 6 pairs)" in row
    assert "inferdoc compiled: 1.50x transformers, static batch (1.50 to 1.50, 6 pairs)" in row
    assert "bar met by inferdoc compiled<br>goal met by inferdoc compiled<br>identical tokens met by inferdoc as" in row
    assert "partial: it was ended early" in row
    assert "2030-01-02, A processor, 2 cores, torch 9.9, transformers 8.8" in row


def test_committed_results_name_no_host_and_no_path():
    for file in table.RESULTS.glob("*.json"):
        text = file.read_text()
        assert '"/' not in text, f"{file.name} holds a path"
        assert "hostname" not in text
