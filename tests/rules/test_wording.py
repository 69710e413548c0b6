"""Numbers as they stand in sentences."""

from __future__ import annotations

import pytest

from inferdoc.evidence import Basis, Interval, Quantity
from inferdoc.rules import wording


def gain(
    value: float | None, low: float = 0, high: float = 0, n: int | None = 6, reason: str | None = None
) -> Quantity:
    interval = Interval(low=low, high=high, method="test") if high else None
    return Quantity(
        id="a.b.gain", label="gain", value=value, unit="", basis=Basis.MEASURED, interval=interval, n=n, reason=reason
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (wording.number(1234.4), "1,234"),
        (wording.number(0.012345), "0.0123"),
        (wording.number(0.5), "0.500"),
        (wording.number(0), "0"),
        (wording.number(2.5e-7), "2.50e-07"),
        (wording.percent(0.784), "78%"),
        (wording.percent(0.0123), "1.2%"),
        (wording.percent(1), "100%"),
        (wording.percent(0.000452), "<0.1%"),
        (wording.percent(0.0006), "0.1%"),
        (wording.percent(0), "0%"),
        (wording.times(1.827), "1.83x"),
        (wording.bytes_(1952 * 16 * 131072), "3.81 GiB"),
        (wording.bytes_(114688), "112 KiB"),
        (wording.bytes_(1), "1 B"),
        (wording.seconds(0.0412), "41.2 ms"),
        (wording.seconds(0.00085), "850 µs"),
        (wording.seconds(3.1), "3.10 s"),
        (wording.seconds(720), "12.0 min"),
        (wording.seconds(0), "0 s"),
        (wording.count(31232), "31,232"),
    ],
)
def test_numbers_are_short_and_carry_their_unit(text: str, expected: str) -> None:
    assert text == expected


def test_a_gain_shows_its_interval_and_its_pairs() -> None:
    assert wording.quantity_text(gain(1.827, 1.71, 1.951)) == "1.83x [1.71..1.95], 6 pairs"
    assert wording.quantity_text(gain(1.827, n=1)) == "1.83x, 1 pair"


def test_an_unknown_quantity_is_never_a_number() -> None:
    assert wording.quantity_text(gain(None, reason="no arrivals")) == "unknown (no arrivals)"


def test_placeholders_are_filled_by_id_and_by_constant() -> None:
    text = wording.fill("{a.b.gain|percent} against {line|times}", lambda id: gain(0.5, n=None), {"line": 1.05})
    assert text == "50% against 1.05x"


@pytest.mark.parametrize(
    "placeholder", ["fit.Fits", "fit.fits!r", "fit.fits:>9", "fit.fits|hex", "0", "", "nothing", "a.b[0]"]
)
def test_anything_but_an_id_and_a_known_style_is_refused(placeholder: str) -> None:
    assert wording.problem(placeholder, {"line": 1.05}) is not None


def test_a_sentence_starts_with_a_capital_and_ends_with_one_stop() -> None:
    assert wording.sentence("the trace has no prefixes") == "The trace has no prefixes."
    assert wording.sentence("Done.") == "Done."
