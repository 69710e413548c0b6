"""Options' texts and the errors that say how to write them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from inferdoc.errors import InputError
from inferdoc.parsing import parse_bytes, parse_duration, parse_scale, parse_share, parse_slo


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("3m", 180), ("1.5h", 5400), ("500ms", 0.5)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text, option="--budget") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "3", "m", "-3m", "0s", "3 minutes", "nan"])
def test_bad_durations_say_how_to_write_one(text: str) -> None:
    with pytest.raises(InputError, match="write it like 90s"):
        parse_duration(text, option="--budget")


@pytest.mark.parametrize(
    ("text", "size"), [("16GiB", 16 * 2**30), ("80GB", 80 * 10**9), ("1024", 1024), ("1.5 mib", 3 * 2**19)]
)
def test_sizes_tell_gb_from_gib(text: str, size: int) -> None:
    assert parse_bytes(text, option="--memory") == size


@pytest.mark.parametrize("text", ["", "GiB", "16 gigs", "-1GB", "0"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(InputError, match="write it like 16GiB"):
        parse_bytes(text, option="--memory")


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), ("0.01", 0.01), ("2.5 %", 0.025), ("100%", 1), ("1", 1)])
def test_shares(text: str, share: float) -> None:
    assert parse_share(text, option="--max-quality-loss") == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "%", "0", "0%", "-1%", "101%", "2", "one", "nan"])
def test_bad_shares_say_how_to_write_one(text: str) -> None:
    with pytest.raises(InputError, match=r"write it like 1% or 0\.01"):
        parse_share(text, option="--max-quality-loss")


@pytest.mark.parametrize(("text", "scale"), [("1/32", Fraction(1, 32)), ("0.125", Fraction(1, 8)), ("1", Fraction(1))])
def test_scales_stay_exact(text: str, scale: Fraction) -> None:
    assert parse_scale(text, option="--length-scale") == scale


@pytest.mark.parametrize("text", ["0", "2", "1/0", "-1/2", "half", ""])
def test_bad_scales(text: str) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        parse_scale(text, option="--length-scale")


def test_objectives() -> None:
    ttft, tpot = parse_slo("ttft_p95=500ms, tpot_p50=0.05s")
    assert (ttft.metric, ttft.limit, ttft.unit) == ("ttft_p95", 0.5, "s")
    assert (tpot.metric, tpot.limit) == ("tpot_p50", 0.05)
    assert parse_slo("") == ()


@pytest.mark.parametrize(
    "text", ["ttft", "ttft_p95", "ttft_p96=1s", "ttft_p99=1s", "itl_p50=1s", "latency=1s", "=1s", "ttft_p95:1s"]
)
def test_impossible_objectives_show_a_possible_one(text: str) -> None:
    with pytest.raises(InputError, match="ttft_p95=500ms"):
        parse_slo(text)


def test_an_objective_needs_a_unit_and_comes_once() -> None:
    with pytest.raises(InputError, match="write it like"):
        parse_slo("ttft_p95=500")
    with pytest.raises(InputError, match="twice"):
        parse_slo("ttft_p95=1s,ttft_p95=2s")
