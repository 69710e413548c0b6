"""The kernels on pages in e4m3, interpreted where there is no card."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from attention_cases import DEVICE, TOLERANCE, Case, World

from inferdoc.engine.attention.layer import KvScales
from inferdoc.engine.attention.triton_launch import E4M3_UNIT
from inferdoc.engine.attention.triton_paged import _from_e4m3, _to_e4m3
from inferdoc.engine.e4m3 import from_e4m3, to_e4m3

SCALES = KvScales(2.0**-6, 2.0**-5)


@triton.jit
def _convert(numbers, narrow, wide, COUNT: tl.constexpr):  # noqa: N803
    at = tl.arange(0, COUNT)
    tl.store(narrow + at, _to_e4m3(tl.load(numbers + at)))
    tl.store(wide + at, _from_e4m3(tl.load(narrow + at)))


def test_conversions_are_torch_s_own():
    """All of e4m3's numbers, the middles between them (ties) and their neighbours, and random ones of every size."""
    generator = torch.Generator().manual_seed(0)
    grid = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    grid = grid[~grid.isnan()].sort().values
    middles = (grid[1:] + grid[:-1]) / 2
    around = [torch.nextafter(middles, torch.full_like(middles, end)) for end in (-1e9, 1e9)]
    random = [torch.randn(4096, generator=generator) * 10.0**power for power in range(-5, 4)]
    numbers = torch.cat([grid, middles, *around, *random])
    numbers = torch.cat([numbers, torch.zeros(65536 - len(numbers))]).to(DEVICE)
    narrow, wide = numbers.new_empty(65536, dtype=torch.uint8), numbers.new_empty(65536, dtype=torch.float16)
    _convert[(1,)](numbers, narrow, wide, COUNT=65536)
    expected = to_e4m3(numbers)
    assert torch.equal(narrow, expected.view(torch.uint8))
    assert torch.equal(wide.float() * E4M3_UNIT, expected.float())


@pytest.mark.parametrize("case", [
    Case(), Case(queries="decode", segments=4), Case(dtype="float16", segments=2), Case(dtype="float16", groups=7),
    Case(queries="verify", segments=2, softcap=3.0, sinks=True, window=24), Case(dims=(80, 96), groups=3),
    Case(dims=(128, 128), groups=8, queries="decode", block_size=64),
], ids=str)  # fmt: skip
def test_attention_is_that_of_the_stored_numbers(case):
    world = World(case)
    world.pages.keys = to_e4m3(world.pages.keys.float() / SCALES.key)
    world.pages.values = to_e4m3(world.pages.values.float() / SCALES.value)
    assert torch.isnan(world.pages.values.float()).any(), "slots that hold nothing"
    world.pages.scales = SCALES

    def stored(values: np.ndarray, scale: float) -> np.ndarray:
        return from_e4m3(to_e4m3(torch.from_numpy(values).float() / scale), torch.float64).numpy() * scale

    native = world.expected()
    world.sequences = [(stored(keys, SCALES.key), stored(values, SCALES.value)) for keys, values in world.sequences]
    assert np.abs(world.expected() - native).max() > 0.01
    got = world.run()
    np.testing.assert_allclose(got[: world.tokens], world.expected(), rtol=0, atol=TOLERANCE[case.dtype])
    assert not got[world.tokens :].any(), "a padding row's output is zero"


def test_a_slot_of_minus_one_is_not_written():
    world = World(Case(), padding=3)
    world.pages.keys, world.pages.values = to_e4m3(world.pages.keys.float()), to_e4m3(world.pages.values.float())
    world.pages.scales = SCALES
    before = world.pages.keys.view(torch.uint8).clone()
    world.run()
    after = world.pages.keys.view(torch.uint8)
    written = torch.zeros(len(after), dtype=torch.bool)
    written[torch.from_numpy(world.slots[: world.tokens])] = True
    assert torch.equal(after[~written], before[~written])
    new = to_e4m3(world.new_keys[:, : world.tokens].transpose(0, 1).float() / SCALES.key).view(torch.uint8)
    assert torch.equal(after[torch.from_numpy(world.slots[: world.tokens])].cpu(), new)
