"""Peak and off-peak judged apart: a rule that reads what was worked out over a window may conclude otherwise there."""

from __future__ import annotations

from typing import Any

from inferdoc.evidence import Basis, Conclusion, Quantity, TraceWindow
from inferdoc.rules import diagnose, load_pack


def window(name: str, **quantities: float) -> TraceWindow:
    found = {
        id.replace("__", "."): Quantity(
            id=id.replace("__", "."), label=id, value=value, unit="x", basis=Basis.MODELLED, exact=True
        )
        for id, value in quantities.items()
    }
    return TraceWindow.model_validate(
        {"name": name, "start_s": 0, "end_s": 9, "requests": 50, "rate_per_s": 5, "load_over_mean": 2}
        | {"quantities": found}
    )


def test_a_conclusion_that_differs_in_the_peak_is_said_beside_the_whole_traces(make: Any) -> None:
    evidence = make.fits(headroom=3.0, fraction=0.5).build()
    windows = [window("peak", fit__kv_headroom=0.7), window("off-peak", fit__kv_headroom=9.0)]
    workload = evidence.workload.model_copy(update={"windows": windows})
    diagnosis = diagnose(evidence.model_copy(update={"workload": workload}), load_pack())
    (finding,) = [each for each in diagnosis.findings if each.technique == "kv_quantization"]
    assert finding.conclusion is Conclusion.NOT_NEEDED
    assert list(finding.by_window) == ["peak"]
    assert finding.by_window["peak"] is not Conclusion.NOT_NEEDED
    assert finding.text.endswith(
        f"In the peak, by its own lengths, reuse and demand: {finding.by_window['peak'].value}."
    )
    # Rules that ask for nothing of the window conclude the same.
    assert not any(each.by_window for each in diagnosis.findings if each.technique == "cuda_graphs")


def test_without_windows_nothing_is_added(make: Any, judge: Any) -> None:
    assert not any(finding.by_window for finding in judge(make.fits()).findings)
