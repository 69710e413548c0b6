from __future__ import annotations

import pytest

from inferdoc.evidence import Basis, EnvironmentField, Expected, Fact, Interval, Quantity
from inferdoc.reports import formatting


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.412, "s", "412 ms"),
        (0.00000412, "s", "4.12 µs"),
        (1.31, "s", "1.31 s"),
        (119.0, "s", "119 s"),
        (312.4, "s", "5.21 min"),
        (7200.0, "s", "2.00 h"),
        (0.0, "s", "0 s"),
        (6_366_951_833.0, "bytes", "5.93 GiB"),
        (512.0, "bytes", "512 bytes"),
        (6_366_951_833.0, "B", "5.93 GiB"),
        (4_810_752.0, "bytes", "4.59 MiB"),
        (3.35e12, "bytes/s", "3.35 TB/s"),
        (12.8e9, "bytes/s", "12.8 GB/s"),
        (1.8349, "x", "1.83x"),
        (0.93, "x", "0.93x"),
        (223.4, "x", "223x"),
        (0.713, "share", "71.3%"),
        (0.05, "fraction", "5.00%"),
        (0.000452, "share", "<0.1%"),
        (0.0009999, "fraction", "<0.1%"),
        (0.001, "share", "0.100%"),
        (0.05, "%", "<0.1%"),
        (0.0, "share", "0%"),
        (97.2, "%", "97.2%"),
        (0.21, "ratio", "0.210"),
        (3410.2, "tokens/s", "3,410 tokens/s"),
        (2101248.0, "tokens", "2,101,248 tokens"),
        (7.0, "requests", "7 requests"),
        (7.8, "requests", "7.80 requests"),
        (0.00004, "ratio", "4.00e-05"),
    ],
)
def test_number_has_three_digits_and_its_unit(value: float, unit: str, shown: str) -> None:
    assert formatting.number(value, unit) == shown


@pytest.mark.parametrize(
    ("value", "unit", "shown"), [(0.5, "s", "500 ms"), (0.9, "share", "90%"), (368.0, "requests", "368 requests")]
)
def test_exact_number_has_no_trailing_zeros(value: float, unit: str, shown: str) -> None:
    assert formatting.number(value, unit, exact=True) == shown


def test_exact_share_below_a_tenth_of_a_percent_is_not_spelled_out() -> None:
    assert formatting.number(0.000452, "share", exact=True) == "<0.1%"
    assert formatting.number(0.0, "share", exact=True) == "0%"


def test_small_end_of_an_interval_of_shares() -> None:
    interval = Interval(low=0.0, high=0.0004, method="t")
    quantity = Quantity(id="q", label="q", value=0.0002, unit="share", basis=Basis.MEASURED, interval=interval)
    assert formatting.full(quantity) == "<0.1% [0..<0.1]"


def test_interval_is_in_the_scale_of_its_value() -> None:
    quantity = Quantity(
        id="latency.tpot_b1",
        label="TPOT",
        value=1.02,
        unit="s",
        basis=Basis.MEASURED,
        interval=Interval(low=0.98, high=1.07, method="t"),
    )
    assert formatting.full(quantity) == "1.02 s [0.980..1.07]"


def test_gain_is_a_factor_whatever_its_unit_was_called() -> None:
    gain = Quantity(id="prefix_caching.open.ttft_p50.gain", label="g", value=2.412, unit="ratio", basis=Basis.MEASURED)
    assert formatting.point(gain) == "2.41x"


@pytest.mark.parametrize("unit", ["s", "bytes", "x", "share", "tokens/s"])
def test_unknown_quantity_prints_its_reason_and_never_zero(unit: str) -> None:
    quantity = Quantity(id="q", label="q", value=None, unit=unit, basis=Basis.MEASURED, reason="too few requests")
    assert formatting.full(quantity) == "not known: too few requests"


def test_zero_is_a_value() -> None:
    quantity = Quantity(id="q", label="q", value=0.0, unit="share", basis=Basis.MEASURED)
    assert formatting.full(quantity) == "0%"


@pytest.mark.parametrize(
    ("estimate", "low", "high", "shown"),
    [
        (1.83, 1.79, 1.88, "1.83x [1.79..1.88]"),
        (None, 1.1, 1.4, "[1.10..1.40]"),
        (1.2, None, None, "1.20x"),
        (None, None, None, "not known"),
    ],
)
def test_expected_range(estimate: float | None, low: float | None, high: float | None, shown: str) -> None:
    change = Expected(metric="m", label="m", estimate=estimate, low=low, high=high, basis=Basis.MODELLED)
    assert formatting.expected(change) == shown


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (1.79, 1.88, "better"),
        (0.59, 0.86, "worse"),
        (0.9, 1.2, "no difference shown"),
        (1.0, 1.2, "no difference shown"),
        (0.8, 1.0, "no difference shown"),
        (None, None, None),
    ],
)
def test_effect_is_what_the_interval_shows(low: float | None, high: float | None, shown: str | None) -> None:
    # The estimate is above 1 throughout: only the interval decides.
    change = Expected(metric="m", label="m", estimate=1.1, low=low, high=high, basis=Basis.MEASURED)
    assert formatting.effect(change) == shown


def test_threshold_is_in_the_unit_of_its_quantity() -> None:
    quantity = Quantity(id="a.b.c.gain", label="g", value=1.2, unit="x", basis=Basis.MEASURED)
    assert formatting.threshold(Fact(quantity=quantity, relation="at least", threshold=1.0)) == "at least 1.00x"
    assert formatting.threshold(Fact(quantity=quantity, relation="shown")) == "context"


def test_small_threshold_is_spelled_out() -> None:
    quantity = Quantity(id="q", label="q", value=0.2, unit="share", basis=Basis.MEASURED)
    assert formatting.threshold(Fact(quantity=quantity, relation="below", threshold=0.0005)) == "below 0.05%"


@pytest.mark.parametrize(
    ("state", "value", "unit", "shown"),
    [
        ("value", 6.2e9, "bytes", "5.77 GiB"),
        ("value", "H200", None, "H200"),
        ("value", 0.0, "%", "0%"),
        ("unknown", None, None, "not known"),
        ("not_applicable", None, None, "not applicable"),
        ("error", None, None, "could not be read"),
    ],
)
def test_environment_has_four_states(state: str, value: str | float | None, unit: str | None, shown: str) -> None:
    field = EnvironmentField(state=state, value=value, unit=unit, source="test")
    assert formatting.environment_value(field) == shown


@pytest.mark.parametrize(("scale", "shown"), [(1 / 32, "1/32"), (1.0, "1"), (0.3, "0.3"), (1 / 3, "1/3")])
def test_length_scale_reads_as_it_was_given(scale: float, shown: str) -> None:
    assert formatting.scale_text(scale) == shown
