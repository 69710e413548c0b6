"""Peak and off-peak: what the rules read of them is what a plain loop finds in those requests alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inferdoc.probes.context import Collector, ProbeContext
from inferdoc.probes.windows import observe_windows
from inferdoc.traces import read_trace
from inferdoc.traces.windows import split_windows


@pytest.fixture
def uneven(tmp_path: Path, prepared: ProbeContext) -> ProbeContext:
    """400 s of 1 request/s with short outputs, then 200 s of 5 with long ones."""
    rng = np.random.default_rng(0)
    calm = [(float(i), 40, int(n)) for i, n in enumerate(rng.integers(4, 8, 400))]
    busy = [(400 + i / 5, 40, int(n)) for i, n in enumerate(rng.integers(2, 64, 1000))]
    path = tmp_path / "uneven.csv"
    path.write_text("arrived_at,input_tokens,output_tokens\n" + "\n".join(f"{t},{i},{o}" for t, i, o in calm + busy))
    return replace(prepared, trace=read_trace(path), found=Collector())


def test_each_window_has_its_own_numbers(uneven: ProbeContext) -> None:
    peak, off_peak = observe_windows(uneven, split_windows(uneven.trace))
    assert (peak.name, off_peak.name) == ("peak", "off-peak")
    assert peak.start_s == pytest.approx(400, abs=20)
    assert peak.rate_per_s == pytest.approx(5, rel=0.1)
    outputs = uneven.trace.rows["output_tokens"].to_numpy()
    busy = outputs[-peak.requests :]
    assert peak.quantities["variance.output_cv"].value == pytest.approx(float(busy.std() / busy.mean()))
    calm = outputs[: off_peak.requests]
    assert off_peak.quantities["variance.output_cv"].value == pytest.approx(float(calm.std() / calm.mean()))
    # Little's law: the mean of live tokens grows with the rate, and the percentiles with it.
    p99 = "fit.kv_demand_p99_tokens"
    assert peak.quantities[p99].value > 2 * off_peak.quantities[p99].value  # type: ignore[operator]
    assert peak.quantities["prefix.ideal_hit_rate"].value is None  # lengths only
