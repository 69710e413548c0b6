from __future__ import annotations

from collections.abc import Callable

import pytest

from inferdoc.evidence import Diagnosis, Evidence, Series
from inferdoc.reports.tables import runs_table, series_table, unknown


def test_runs_are_in_the_order_in_which_they_ran(complete: tuple[Evidence, Diagnosis]) -> None:
    table = runs_table(complete[0].comparisons["prefix_caching.open"])
    assert table.header == ("run", "arm", "TTFT p50 (ms)", "TTFT p95 (s)", "TPOT p50 (ms)")
    # ABBA: the second run of "off" is the fourth in time. 0.412 s x 1.01 = 416 ms.
    assert table.rows[0] == ("1", "off", "404", "1.28", "21.4")
    assert table.rows[3] == ("4", "off", "416", "1.32", "22.0")
    assert len(table.rows) == 12


def test_missing_run_is_not_known(complete: tuple[Evidence, Diagnosis]) -> None:
    comparison = complete[0].comparisons["continuous_batching.saturated"]
    comparison.metrics["throughput"].off = [None, 318.0]
    table = runs_table(comparison)
    assert [row[2] for row in table.rows if row[1] == "off"] == ["not known", "318", *["not known"] * 4]


def test_lines_with_different_x_share_a_table(make_series: Callable[..., Series]) -> None:
    series = make_series([0.001, None, 0.003])
    other = series.lines[0].model_copy(
        update={"name": "bound", "x": [2.0], "y": [0.002], "low": [0.001], "high": [0.0035]}
    )
    series.lines.append(other)
    table = series_table(series)
    assert table.header == ("batch size (requests)", "measured (ms)", "bound (ms)")
    assert table.rows == (("1", "1.00", ""), ("2", "not known", "2.00 [1.00..3.50]"), ("3", "3.00", ""))


def test_long_table_is_cut_and_the_rest_counted(make_series: Callable[..., Series]) -> None:
    table = series_table(make_series([1.0] * 45))
    assert (len(table.rows), table.more) == (20, 25)


def test_metric_that_no_run_has_is_no_column(complete: tuple[Evidence, Diagnosis]) -> None:
    comparison = complete[0].comparisons["prefix_caching.open"]
    comparison.metrics["ttft_p95"].off = comparison.metrics["ttft_p95"].on = [None] * 6
    assert runs_table(comparison).header == ("run", "arm", "TTFT p50 (ms)", "TPOT p50 (ms)")


def test_reason_is_told_once_when_nothing_of_a_metric_is_known(complete: tuple[Evidence, Diagnosis]) -> None:
    paired = complete[0].comparisons["prefix_caching.open"].metrics["ttft_p95"]
    unmeasured = {"value": None, "interval": None, "reason": "too few requests"}
    paired.off_estimate = paired.off_estimate.model_copy(update=unmeasured)
    paired.gain = paired.gain.model_copy(update=unmeasured | {"reason": "no pair"})
    assert unknown(paired) is None
    paired.on_estimate = paired.on_estimate.model_copy(update=unmeasured)
    assert unknown(paired) == "not known: too few requests; not known: no pair"


@pytest.mark.parametrize(
    ("changed", "rows"),
    [
        ({"x": []}, ()),
        ({"y": []}, ()),
        ({"x": [1.0]}, (("1", "1.00"),)),
        ({"low": [0.0005], "high": [0.002]}, (("1", "1.00 [0.500..2.00]"), ("2", "3.00"))),
        ({"low": [], "high": []}, (("1", "1.00"), ("2", "3.00"))),
    ],
)
def test_uneven_line_gives_the_points_that_it_has(
    make_series: Callable[..., Series], changed: dict[str, list[float]], rows: tuple[tuple[str, str], ...]
) -> None:
    series = make_series([0.001, 0.003])
    series.lines[0] = series.lines[0].model_copy(update=changed)
    assert series_table(series).rows == rows
