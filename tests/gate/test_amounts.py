"""Amounts in a policy: what each unit accepts, exactly; and what is refused, with the right way to write it."""

from __future__ import annotations

import pytest

from inferdoc.errors import InputError, PolicyError
from inferdoc.gate.amounts import check_units, example, parse_amount, parse_any_amount, same_unit
from inferdoc.gate.policy import MetricPolicy
from inferdoc.gate.registry import RUN_METRICS, GateMetric


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("5%", "relative", 0.05),
        ("57%", "share", 0.57),
        ("0.1 %", "share", 0.001),
        ("0.05", "relative", 0.05),
        ("10 ms", "s", 0.01),
        ("0.5s", "s", 0.5),
        ("200us", "s", 0.0002),
        ("200 µs", "s", 0.0002),
        ("2m", "s", 120.0),
        ("0.02", "s", 0.02),
        ("1e-3", "s", 0.001),
        ("1.5E+2ms", "s", 0.15),
        ("20 tok/s", "tok/s", 20.0),
        ("20 tokens/s", "tok/s", 20.0),
        ("20", "tok/s", 20.0),
        ("20 tok / s", "tokens/s", 20.0),
        ("16GiB", "B", 16 * 2.0**30),
        ("80 GB", "B", 80e9),
        ("1.5 kib", "bytes", 1536.0),
        ("512 bytes", "B", 512.0),
        ("100 GB/s", "bytes/s", 1e11),
        ("2 requests/s", "requests/s", 2.0),
        ("2.5 req/s", "requests/s", 2.5),
        ("3", "count", 3.0),
        ("3 requests", "requests", 3.0),
        ("100 tokens", "tokens", 100.0),
        ("0.50", "currency", 0.5),
        ("  .5  ", "currency", 0.5),
        ("4 replicas", "replicas", 4.0),
        ("0", "s", 0.0),
    ],
)
def test_amounts(text: str, unit: str, value: float) -> None:
    assert parse_amount(text, unit, what="floor") == value


@pytest.mark.parametrize(
    ("text", "unit", "says"),
    [
        ("20 tok/s", "s", "not in s; write it like 10 ms"),
        ("10 ms", "tok/s", "not in tok/s; write it like 20 tok/s"),
        ("10 ms", "share", "not a share; write it like 5% or 0.05"),
        ("10 ms", "relative", "not a share"),
        ("5%", "s", "not in s"),
        ("16 GiB", "tokens", "not in tokens; write it like 20"),
        ("$5", "currency", "not an amount; write it like 0.50"),
        ("5 USD", "currency", "not a plain number"),
        ("5%", "count", "not a plain number"),
        ("10 gigs", "B", "not in B; write it like 16GiB"),
        ("-5%", "relative", "negative"),
        ("-0.001 s", "s", "negative"),
        ("nan", "s", "not a finite number"),
        ("inf ms", "s", "not a finite number"),
        ("-Infinity", "tok/s", "not a finite number"),
        ("1e999 s", "s", "not a finite number"),
        ("", "s", "not an amount"),
        ("%", "share", "not an amount"),
        ("ms", "s", "not an amount"),
        ("1,000 tok/s", "tok/s", "not in tok/s"),
        ("five", "s", "not an amount"),
        ("1.5.2 s", "s", "not in s"),
    ],
)
def test_what_is_refused_and_how_to_write_it(text: str, unit: str, says: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_amount(text, unit, what="floor of 'x'")
    assert str(raised.value).startswith("floor of 'x': ")
    assert repr(text) in str(raised.value)
    assert says in str(raised.value)


@pytest.mark.parametrize("metric", RUN_METRICS.values(), ids=lambda metric: metric.id)
def test_the_example_that_an_error_gives_can_be_read(metric: GateMetric) -> None:
    for written in example(metric.unit).split(" or "):
        assert parse_amount(written, metric.unit, what="floor") > 0


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("5%", 0.05, "share"),
        ("10 ms", 0.01, "s"),
        ("20 tok/s", 20.0, "tok/s"),
        ("16GiB", 16 * 2.0**30, "B"),
        ("100GB/s", 1e11, "bytes/s"),
        ("1.5x", 1.5, "x"),
        ("100 tokens", 100.0, "tokens"),
        ("3 requests", 3.0, "requests"),
        ("0.4", 0.4, None),
    ],
)
def test_the_unit_is_read_off_where_none_is_known(text: str, value: float, unit: str | None) -> None:
    assert parse_any_amount(text, what="floor") == (value, unit)


@pytest.mark.parametrize(
    ("text", "says"), [("5 parsecs", "'parsecs'"), ("-1 ms", "negative"), ("nan", "finite"), ("ms", "not an amount")]
)
def test_an_unknown_unit_is_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_any_amount(text, what="floor")


def test_units_under_other_names_are_the_same() -> None:
    assert same_unit("B", "bytes")
    assert same_unit("tok/s", "tokens/s")
    assert same_unit("share", "ratio")
    assert same_unit("devices", "devices")
    assert not same_unit("s", "tok/s")
    assert not same_unit("tokens", "requests")


def test_a_limit_written_in_another_unit_than_the_evidence_has_is_refused_with_its_line() -> None:
    metric = MetricPolicy(id="fit.weights_bytes", max_value=0.01, line=7, units={"max_value": "s"})
    with pytest.raises(PolicyError, match=r"^gate\.toml:7: max_value of 'fit\.weights_bytes' is written in s.*'bytes'"):
        check_units(metric, "bytes", where="gate.toml")
    check_units(metric, "s", where="gate.toml")
    check_units(metric.model_copy(update={"units": {}}), "bytes", where="gate.toml")
