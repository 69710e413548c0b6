from __future__ import annotations

import re
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from inferdoc.evidence import Diagnosis, Evidence, Series
from inferdoc.reports import charts
from inferdoc.reports.templating import OURS

Make = Callable[..., Series]


def parse(svg: str) -> ElementTree.Element:
    root = ElementTree.fromstring(svg)
    assert root.tag == "svg"
    return root


def words(svg: str) -> list[str]:
    return [text.text or "" for text in parse(svg).iter("text")]


def test_forest_shows_every_gain_with_an_interval(complete: tuple[Evidence, Diagnosis]) -> None:
    comparisons = list(complete[0].comparisons.values())
    shown = words(charts.forest(comparisons))
    assert shown.count("output tokens/s") == 5
    assert {comparison.label for comparison in comparisons} <= set(shown)
    assert {"1x", "2x", "better", "worse"} <= set(shown)


def test_gain_without_an_interval_is_not_drawn(complete: tuple[Evidence, Diagnosis]) -> None:
    comparison = complete[0].comparisons["continuous_batching.saturated"]
    comparison.metrics["throughput"].gain.interval = None
    assert charts.forest([comparison]) == ""
    assert charts.forest([]) == ""


def test_forest_marks_better_worse_and_unclear_by_shape_and_colour(complete: tuple[Evidence, Diagnosis]) -> None:
    evidence = complete[0]
    svg = charts.forest([evidence.comparisons[id] for id in ("chunked_prefill.interference", "paged_attention.real")])
    assert all(colour in svg for colour in (charts.BETTER, charts.WORSE, charts.NEUTRAL))
    assert len(set(re.findall(r'<path [^>]*d="(M[^"]+Z)"', svg))) >= 3


def test_runs_are_points_of_both_arms(complete: tuple[Evidence, Diagnosis]) -> None:
    svg = charts.runs(complete[0].comparisons["prefix_caching.open"], "ttft_p50")
    assert {"off", "on", "TTFT p50 (ms)", "12"} <= set(words(svg))


@pytest.mark.parametrize("kind", ["line", "bar", "step"])
def test_each_kind_of_series_is_drawn(make_series: Make, kind: str) -> None:
    svg = charts.series(make_series([0.004, None, 0.009, 0.02], kind))
    assert {"batch size (requests)", "TPOT (ms)"} <= set(words(svg))
    assert charts.LINES[0] in svg


def test_logarithmic_axis_has_a_tick_at_each_size(make_series: Make) -> None:
    series = make_series([0.004, 0.005, 0.009, 0.02], x_log=True)
    series.lines[0].x = [1.0, 2.0, 4.0, 8.0]
    assert {"1", "2", "4", "8"} <= set(words(charts.series(series)))


def test_band_is_drawn_where_a_line_has_one(make_series: Make) -> None:
    series = make_series([0.004, 0.005])
    plain = charts.series(series)
    series.lines[0].low, series.lines[0].high = [0.003, 0.004], [0.005, 0.006]
    assert "opacity" in charts.series(series).replace(plain, "")
    assert charts.series(series) != plain


@pytest.mark.parametrize("values", [[], [None, None]])
def test_series_without_points_has_no_chart(make_series: Make, values: list[float | None]) -> None:
    assert charts.series(make_series(values)) == ""


@pytest.mark.parametrize("kind", ["line", "bar", "step"])
@pytest.mark.parametrize(
    ("changed", "drawn"),
    [
        ({"x": []}, False),
        ({"y": []}, False),
        ({"x": [], "y": [], "low": [], "high": []}, False),
        ({"x": [1.0]}, True),
        ({"low": [0.001], "high": []}, True),
        ({"low": [0.001], "high": [0.01]}, True),
    ],
)
def test_uneven_line_is_drawn_as_far_as_it_goes(
    make_series: Make, kind: str, changed: dict[str, list[float]], drawn: bool
) -> None:
    series = make_series([0.004, None, 0.009], kind)
    series.lines[0] = series.lines[0].model_copy(update=changed)
    assert bool(charts.series(series)) is drawn


def test_long_line_keeps_its_extremes() -> None:
    values: list[float | None] = [0.0] * 10_000
    values[4321], values[7] = 9.0, -9.0
    kept = charts.thin(values)
    assert len(kept) <= charts.MAX_POINTS
    assert {4321, 7} <= set(kept)
    assert kept == sorted(kept)


def test_long_line_without_values_in_a_bucket_keeps_the_gap() -> None:
    values: list[float | None] = [None] * 500 + [1.0] * 500
    kept = charts.thin(values)
    assert values[kept[0]] is None
    assert values[kept[-1]] == 1.0


def test_charts_hold_presentation_attributes_only(complete: tuple[Evidence, Diagnosis]) -> None:
    evidence = complete[0]
    drawn = [charts.forest(list(evidence.comparisons.values())), *(charts.series(series) for series in evidence.series)]
    for svg in drawn:
        root = parse(svg)
        assert root.get("role") == "img"
        named = [element.get("id") for element in (root.find("title"), root.find("desc")) if element is not None]
        assert (root.get("aria-labelledby") or "").split() == named
        for element in root.iter():
            assert element.tag not in {"script", "style", "a", "image", "foreignObject"}
            assert not {name for name in element.attrib if name == "style" or name.startswith("on") or "href" in name}
        assert len(svg) < 20_000


def test_ids_differ_between_charts(complete: tuple[Evidence, Diagnosis]) -> None:
    ids = [id for series in complete[0].series for id in re.findall(r'\bid="([^"]+)"', charts.series(series))]
    assert len(ids) == len(set(ids)) >= 6


def test_colours_of_charts_are_those_that_the_style_sheet_maps() -> None:
    text = (OURS / "report.css").read_text()
    used = {
        charts.INK,
        charts.MUTED,
        charts.GRID,
        charts.AXIS,
        charts.NEUTRAL,
        charts.BETTER,
        charts.WORSE,
        *charts.LINES,
    }
    assert not {colour for colour in used if f'"{colour}"' not in text}
