"""The Triton kernels, compiled for the card, against attention in float64 on the host."""

from __future__ import annotations

import pytest
import torch

from inferdoc.engine.attention.layer import LayerPages, LayerSpec, StepState
from inferdoc.engine.attention.reference import TorchLayout
from inferdoc.engine.batch import StepInput
from inferdoc.engine.request import Request
from inferdoc.engine.scheduler import Batch, Row

ROUNDING = {torch.bfloat16: 8e-3, torch.float16: 1e-3}
"""Half a unit in the last place at 1 is 3.9e-3 and 4.9e-4; outputs are means of standard normal values."""


def step_of(rows: list[tuple[int, int]], block_size: int, spare: int) -> tuple[StepInput, int]:
    """A step of (context, tokens computed) rows on blocks in random order, and the pool's size in slots."""
    counts = [-(-context // block_size) for context, _ in rows]
    blocks = torch.randperm(sum(counts) + spare, generator=torch.Generator().manual_seed(1)).tolist()
    made = []
    for index, ((context, tokens), count) in enumerate(zip(rows, counts, strict=True)):
        request = Request(index, list(range(context)), output_length=1)
        request.num_computed = context - tokens
        request.block_ids = [blocks.pop() for _ in range(count)]
        made.append(Row(request, tokens, samples=True))
    return StepInput.from_batch(Batch(made, block_size)), (sum(counts) + spare) * block_size


def compare(card, dtype, spec: LayerSpec, groups: int, rows, block_size: int, segments: int | None) -> float:
    """Largest difference between the kernels and the oracle; pages that no row owns hold NaN."""
    from inferdoc.engine.attention.triton_layout import TritonLayout

    step, slots = step_of(rows, block_size, spare=3)
    tokens, heads = len(step.token_ids), groups * spec.kv_heads
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).double()

    query = random(heads, tokens, spec.key_dim)
    key, value = random(spec.kv_heads, tokens, spec.key_dim), random(spec.kv_heads, tokens, spec.value_dim)
    keys = torch.full((slots, spec.kv_heads, spec.key_dim), float("nan"), dtype=torch.float64)
    values = torch.full((slots, spec.kv_heads, spec.value_dim), float("nan"), dtype=torch.float64)
    for row, length in enumerate(step.lengths):
        places = torch.arange(int(length))
        at = torch.from_numpy(step.block_tables[row])[places // block_size] * block_size + places % block_size
        keys[at] = random(len(at), spec.kv_heads, spec.key_dim)
        values[at] = random(len(at), spec.kv_heads, spec.value_dim)

    oracle_pages = LayerPages(keys.clone(), values.clone(), spec, StepState())
    oracle = TorchLayout(step, torch.device("cpu"))
    oracle.store(key, value, oracle_pages)
    expected = oracle.attend(query, oracle_pages, None)

    pages = LayerPages(keys.to(card, dtype), values.to(card, dtype), spec, StepState())
    layout = TritonLayout.from_step(step, card, segments=segments)
    layout.store(key.to(card, dtype), value.to(card, dtype), pages)
    ours = layout.attend(query.to(card, dtype), pages, None)
    assert torch.equal(pages.keys.cpu().double().nan_to_num(7.0), oracle_pages.keys.nan_to_num(7.0))
    return float((ours.cpu().double() - expected).abs().max())


DECODES = [(1, 1), (17, 1), (1000, 1), (64, 1)]
MIXED = [(130, 130), (300, 1), (77, 20), (33, 1)]


TYPES = [torch.bfloat16, torch.float16]
COVERING = [
    # Every group with every head dim; their types and kinds of step alternate, so that any two values meet somewhere.
    # All combinations would be four times as many kernels to compile.
    pytest.param(TYPES[(i + j) % 2], head_dim, groups, MIXED if (i + j // 2) % 2 else DECODES)
    for i, head_dim in enumerate([64, 80, 128, 256])
    for j, groups in enumerate([1, 3, 4, 7, 8])
]


@pytest.mark.parametrize(("dtype", "head_dim", "groups", "rows"), COVERING)
def test_attention_equals_the_oracle(card, dtype, head_dim, groups, rows):
    spec = LayerSpec(kv_heads=2, key_dim=head_dim, value_dim=head_dim, scale=head_dim**-0.5)
    # Four times the rounding of one output: the weights are rounded as well before they multiply the values.
    assert compare(card, dtype, spec, groups, rows, 16, None) < 4 * ROUNDING[dtype]


@pytest.mark.parametrize("segments", [1, 2, 16])
@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_every_split_and_block_size_equals_the_oracle(card, block_size, segments):
    """Trap 13: more segments than some rows have places."""
    spec = LayerSpec(kv_heads=2, key_dim=128, value_dim=128, scale=128**-0.5)
    assert compare(card, torch.bfloat16, spec, 4, DECODES, block_size, segments) < 4 * ROUNDING[torch.bfloat16]


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(LayerSpec(2, 64, 64, 0.125, window=24), id="window"),
        pytest.param(LayerSpec(2, 64, 64, 0.125, softcap=5.0), id="softcap"),
        pytest.param(LayerSpec(2, 192, 128, 192**-0.5), id="Dk-not-Dv"),
    ],
)
def test_variants_of_attention_equal_the_oracle(card, spec):
    assert compare(card, torch.bfloat16, spec, 4, MIXED, 16, None) < 4 * ROUNDING[torch.bfloat16]


def test_trap_10_slots_beyond_int32_are_reached(card):
    """A pool whose last values lie past 2**31 elements: the kernels must compute their places in int64."""
    from inferdoc.engine.attention.triton_layout import TritonLayout

    heads, dim, block_size = 8, 128, 16
    slots = 2**31 // (heads * dim) + 4 * block_size
    free, _ = torch.cuda.mem_get_info(card)
    if free < 3 * slots * heads * dim * 2:
        pytest.skip("the card has too little free memory for a pool of more than 2**31 elements")
    spec = LayerSpec(heads, dim, dim, dim**-0.5)
    pages = LayerPages(
        torch.zeros(slots, heads, dim, dtype=torch.bfloat16, device=card),
        torch.zeros(slots, heads, dim, dtype=torch.bfloat16, device=card),
        spec,
        StepState(),
    )
    request = Request(0, [0] * 5, output_length=1)
    request.block_ids = [slots // block_size - 1]
    step = StepInput.from_batch(Batch([Row(request, 5, samples=True)], block_size))
    layout = TritonLayout.from_step(step, card)
    value = torch.randn(heads, 5, dim, device=card, dtype=torch.bfloat16)
    layout.store(torch.zeros_like(value), value, pages)
    assert torch.equal(pages.values[-block_size : -block_size + 5], value.transpose(0, 1))
    out = layout.attend(torch.zeros(heads, 5, dim, device=card, dtype=torch.bfloat16), pages, None)
    expected = value.float().cumsum(1) / torch.arange(1, 6, device=card)[None, :, None]  # zero scores: a plain mean
    assert torch.allclose(out.transpose(0, 1).float(), expected, atol=2e-2)
