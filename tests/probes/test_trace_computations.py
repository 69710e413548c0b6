"""What probes work out from lengths and tokens alone, against hand-worked and brute-force values."""

from __future__ import annotations

import numpy as np
import pytest

from inferdoc.probes.kv_fragmentation import tail_waste
from inferdoc.traces.batch_waste import static_waste


def test_equal_outputs_waste_nothing_in_static_batches() -> None:
    assert static_waste(np.array([64] * 32), 32) == 0


def test_one_long_output_wastes_a_whole_static_batch() -> None:
    assert static_waste(np.array([16] * 31 + [1024]), 32) == pytest.approx(1 - 1520 / 32768)


def test_slot_steps_and_useful_steps_of_two_batches() -> None:
    outputs = np.array([20, 5, 5, 4, 16, 16, 16, 12])
    assert outputs.sum() == 94
    assert static_waste(outputs, 4) == pytest.approx(1 - 94 / 144)


def test_the_last_smaller_batch_counts_its_own_slots() -> None:
    assert static_waste(np.array([4, 4, 10]), 2) == 0


def test_tail_waste_of_two_short_requests_in_large_blocks() -> None:
    assert tail_waste(np.array([2, 2]), 128) == pytest.approx(252 / 256)
    assert tail_waste(np.array([128, 256]), 128) == 0
