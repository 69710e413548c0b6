"""The Triton kernels, interpreted where there is no card, against numpy in float64.

bfloat16 is not here: the interpreter multiplies its bit patterns. It is compiled in `test_triton_compile.py`.
"""

from __future__ import annotations

import mmap

import attention_cases as cases
import numpy as np
import pytest
import torch
from attention_cases import DEVICE, FACTORS, TOLERANCE, Case, World, check

from inferdoc.engine.attention import triton_layout
from inferdoc.engine.attention.layer import LayerPages, LayerSpec, StepState
from inferdoc.engine.attention.triton_launch import Card, Tile, query_blocks, refuse_unsupported, segments_for, tile_for
from inferdoc.engine.attention.triton_layout import TritonLayout
from inferdoc.errors import InputError, ModelError

COVERING = cases.covering_set()
EDGE = ((0, 1), (14, 1), (15, 1), (16, 1), (31, 1), (63, 1), (64, 1), (60, 5))
"""K/V lengths around the ends of blocks and tiles."""

ADDRESSES_ALONE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
"""With MAP_NORESERVE, which Python 3.11 has no name for: only the parts that are touched become memory."""


@pytest.mark.parametrize("case", COVERING, ids=str)
def test_every_pair_of_options_gives_the_exact_output(case):
    check(case)


def test_the_cases_cover_every_pair_of_options():
    assert len(COVERING) <= 80
    assert set().union(*map(cases.pairs, COVERING)) == cases.all_pairs()
    sizes = [len(levels) for levels in FACTORS.values()]
    assert len(cases.all_pairs()) == (sum(sizes) ** 2 - sum(size**2 for size in sizes)) // 2


def test_the_full_product_has_each_shape_and_every_pair():
    full = cases.full_product()
    shapes = {(c.groups, c.dims, c.block_size, c.queries, c.segments) for c in full}
    assert len(shapes) == len(full) == 8 * 8 * 3 * 4 * 4
    assert set().union(*map(cases.pairs, full)) == cases.all_pairs()


@pytest.mark.parametrize("option", [{"window": 24}, {"softcap": 3.0}, {"sinks": True}, {"groups": 3}], ids=str)
def test_each_option_changes_the_expected_output(option):
    """Else the cases above would pass with the option ignored."""
    plain, other = World(Case()), World(Case(**option))
    if "groups" in option:
        assert plain.query.shape != other.query.shape
    else:
        other.query, other.sequences = plain.query, plain.sequences
        assert np.abs(plain.expected() - other.expected()).max() > 0.01


@pytest.mark.parametrize("segments", [0, 4])
@pytest.mark.parametrize("length", [0, 1])
def test_trap_7_padding_rows_change_and_write_nothing(segments, length):
    """The real rows come out bit for bit as without padding, and no page but theirs is written.

    Padding of length 0 reads nothing and gives zero; of length 1, as in decode graphs, it reads scrap, here of NaN.
    """
    case = Case(queries="decode", segments=segments)
    exact, padded = World(case, padding=0), World(case, padding=5)
    padded.tables[len(padded.rows) :] = 0  # a block of NaN
    padded.keys[:], padded.values[:] = exact.keys, exact.values
    padded.lengths[len(padded.rows) :] = length
    padded.query[:, : exact.tokens] = exact.query
    padded.new_keys[:, : exact.tokens], padded.new_values[:, : exact.tokens] = exact.new_keys, exact.new_values
    padded.pages = LayerPages(padded.keys.to(DEVICE), padded.values.to(DEVICE), case.spec, StepState())
    expected, got = exact.run(), padded.run()
    assert np.array_equal(got[: exact.tokens], expected)
    assert np.isnan(got[exact.tokens :]).all() if length else not got[exact.tokens :].any()
    for name in ("keys", "values"):
        torch.testing.assert_close(
            getattr(padded.pages, name), getattr(exact.pages, name), rtol=0, atol=0, equal_nan=True
        )


@pytest.mark.parametrize("queries", ["decode", "mixed"])
@pytest.mark.parametrize("segments", [0, 2])
def test_trap_7_rows_without_query_tokens_change_nothing(queries, segments):
    world = World(Case(queries=queries, segments=segments), padding=0)
    expected = world.run()
    empty = 3
    world.query_starts = np.append(world.query_starts, [world.query_starts[-1]] * empty)
    world.lengths = np.append(world.lengths, [0, 40, 7])
    world.tables = np.concatenate([world.tables, np.zeros((empty, world.tables.shape[1]), dtype=np.int64)])
    assert np.array_equal(world.run(), expected)


def test_trap_7_a_slot_of_minus_one_is_not_written():
    """As an index, -1 would be the last slot."""
    world = World(Case(), padding=3)
    before = world.pages.keys[-1].clone()
    world.run()
    torch.testing.assert_close(world.pages.keys[-1], before, rtol=0, atol=0, equal_nan=True)
    real = torch.from_numpy(world.slots[: world.tokens]).to(DEVICE)
    assert torch.equal(world.pages.keys[real].cpu(), world.new_keys[:, : world.tokens].transpose(0, 1))
    assert torch.equal(world.pages.values[real].cpu(), world.new_values[:, : world.tokens].transpose(0, 1))


@pytest.mark.parametrize(("block_size", "segments"), [(1, 0), (4, 2), (16, 0), (16, 2), (64, 0)])
def test_trap_8_nan_in_slots_that_hold_nothing_never_reaches_the_output(block_size, segments):
    world = World(Case(block_size=block_size, segments=segments, rows=EDGE))
    got = world.run()
    assert torch.isnan(world.pages.values).any()
    np.testing.assert_allclose(got[: world.tokens], world.expected(), rtol=0, atol=TOLERANCE["float32"])


@pytest.mark.parametrize(
    ("queries", "segments"), [("decode", 0), ("decode", 4), ("decode", None), ("mixed", 0), ("mixed", 2)]
)
def test_trap_9_nothing_that_varies_from_step_to_step_reaches_a_launch(queries, segments, monkeypatch):
    """Longer rows in the same buffers: grids and every argument but the buffers' contents stay, the output is right."""
    launches = []

    class Spy:
        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, grid):
            def launch(*args, **constants):
                numbers = [tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in args]
                launches.append((grid, numbers, constants))
                return self.kernel[grid](*args, **constants)

            return launch

    monkeypatch.setattr(triton_layout, "_card", lambda device: Card(processors=64, capability=0))
    for name in ("attend_kernel", "reduce_kernel", "store_kernel"):
        monkeypatch.setattr(triton_layout, name, Spy(getattr(triton_layout, name)))
    short = World(Case(queries=queries, segments=segments), spare_blocks=20)
    layout = short.layout()
    short.run(layout)
    first, launches[:] = list(launches), []
    rows = tuple((start + 150, count) for start, count in short.rows)
    long = World(Case(queries=queries, segments=segments, rows=rows))
    for name, array in (("slots", long.slots), ("lengths", long.lengths), ("block_tables", long.tables)):
        buffer = getattr(layout, name)
        buffer[..., : array.shape[-1]] = torch.from_numpy(array)
    got = long.run(layout)
    np.testing.assert_allclose(got[: long.tokens], long.expected(), rtol=0, atol=TOLERANCE["float32"])
    pages = {tuple(short.pages.keys.shape), tuple(long.pages.keys.shape)}

    def without_pages(launches):
        return [(grid, [n for n in numbers if n not in pages], constants) for grid, numbers, constants in launches]

    assert without_pages(launches) == without_pages(first)


@pytest.mark.parametrize("segments", [0, 2])
@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
def test_trap_10_pages_with_more_than_2_31_elements(segments, integers):
    """A view whose slots lie 2^24 elements apart: slot 128 begins at 2^31, where 32 bits wrap around."""
    case = Case(dims=(64, 64), dtype="float16", queries="decode", segments=segments)
    world = World(case)
    slots, stride = len(world.pages.keys), 1 << 24
    for name in ("keys", "values"):
        pages = getattr(world.pages, name)
        if DEVICE.type == "cuda":
            memory = torch.empty(slots * stride, dtype=torch.float16, device=DEVICE)
        else:
            memory = torch.frombuffer(mmap.mmap(-1, slots * stride * 2, flags=ADDRESSES_ALONE), dtype=torch.float16)
        far = memory.as_strided(pages.shape, (stride, pages.shape[2], 1))
        far.copy_(pages)
        setattr(world.pages, name, far)
    assert world.slots.max() * stride > 2**31
    layout = world.layout()
    layout.slots, layout.block_tables = layout.slots.to(integers), layout.block_tables.to(integers)
    got = world.run(layout)
    np.testing.assert_allclose(got[: world.tokens], world.expected(), rtol=0, atol=TOLERANCE["float16"])


@pytest.mark.parametrize("groups", [5, 9, 12, 20])
def test_trap_11_groups_that_no_listed_model_has(groups):
    check(Case(groups=groups, queries="verify", dtype="float16"))


@pytest.mark.parametrize("dims", [(16, 16), (24, 40), (112, 112), (96, 256), (256, 64)])
def test_trap_12_padded_lanes_of_any_head_dim(dims):
    check(Case(dims=dims, queries="verify", segments=2))


@pytest.mark.parametrize("segments", [1, 2, 16])
@pytest.mark.parametrize("sinks", [False, True])
def test_trap_13_segments_without_kv(segments, sinks):
    """Rows of 1 to 3 tiles in up to 16 parts, and a window that leaves the first parts out."""
    check(Case(segments=segments, sinks=sinks, rows=((0, 1), (1, 2), (40, 1), (90, 3))))
    check(Case(segments=segments, sinks=sinks, window=5, rows=((90, 1), (0, 1), (64, 2))))


@pytest.mark.parametrize("segments", [0, 2])
@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 66, 500])
def test_trap_14_windows_one_below_at_and_one_above_every_length(window, segments):
    check(Case(window=window, segments=segments, rows=((14, 2), (15, 2), (16, 1), (30, 3), (62, 4))))


def test_trap_14_a_window_reads_no_tile_outside_it():
    """Pages before the window may be given back one day: NaN in them never reaches the output."""
    world = World(Case(window=20, rows=((100, 1), (100, 9))))
    for row in (0, 1):
        outside = 100 + 1 - 20  # the first query's oldest visible position
        slots = [world.tables[row, n // 16] * 16 + n % 16 for n in range(outside)]
        world.pages.values[slots] = torch.nan
        world.pages.keys[slots] = torch.nan
    got = world.run()
    np.testing.assert_allclose(got[: world.tokens], world.expected(), rtol=0, atol=TOLERANCE["float32"])


def test_a_row_does_not_depend_on_the_rows_beside_it():
    world = World(Case(queries="decode"), padding=0)
    before = world.run()
    world.new_values[:, 0] += 1.0
    after = world.run()
    assert not np.array_equal(before[0], after[0])
    assert np.array_equal(before[1:], after[1:])


def test_chunks_of_any_size_give_the_rows_of_the_whole_prompt():
    whole = World(Case(rows=((0, 41),)), padding=0)
    expected = whole.run()
    parts = []
    for begin, end in ((0, 1), (1, 4), (4, 21), (21, 41)):
        layout = TritonLayout(
            *(
                torch.from_numpy(array).to(DEVICE)
                for array in (whole.slots[begin:end], np.array([0, end - begin]), np.array([end]), whole.tables)
            ),
            block_size=16,
            max_query_len=end - begin,
        )
        parts.append(layout.attend(whole.query[:, begin:end].to(DEVICE), whole.pages, None))
    np.testing.assert_allclose(torch.cat(parts).double().cpu().numpy(), expected, rtol=0, atol=TOLERANCE["float32"])


def test_int32_tensors_and_odd_strides_are_taken():
    world = World(Case(queries="mixed", segments=2))
    expected = world.run()
    layout = world.layout()
    for name in ("slots", "query_starts", "lengths", "block_tables"):
        setattr(layout, name, getattr(layout, name).to(torch.int32))
    for name in ("query", "new_keys", "new_values"):
        tensor = getattr(world, name)
        setattr(world, name, tensor.transpose(1, 2).contiguous().transpose(1, 2))
        assert getattr(world, name).stride(-1) != 1
    assert np.array_equal(world.run(layout), expected)


@pytest.mark.parametrize(
    ("dims", "dtype", "message"),
    [((320, 64), torch.float16, "head dim 320"), ((64, 64), torch.float64, "not float64")],
)
def test_what_the_kernels_cannot_run_is_refused_with_what_can(dims, dtype, message):
    with pytest.raises(ModelError, match=f"{message}.*'torch' runs any"):
        refuse_unsupported(LayerSpec(2, *dims, 1.0), dtype)


def test_without_a_card_the_layout_is_refused_with_what_runs(monkeypatch):
    monkeypatch.setattr("triton.knobs.runtime.interpret", False)
    with pytest.raises(InputError, match="needs a CUDA device and the model is on cpu; use 'torch'"):
        World(Case(queries="decode"), device=torch.device("cpu")).layout()


def test_the_split_is_chosen_where_a_card_would_idle():
    decode, chunk = Tile(16, 64, 4, 5), Tile(128, 64, 8, 5)
    shape = {"tokens": 1, "heads": 32, "value_dim": 128, "processors": 132}
    assert segments_for(decode, programs=8, longest=32768, **shape) == 64
    assert segments_for(decode, programs=8, longest=1024, **shape) == 4, "not below four tiles a part"
    assert segments_for(decode, programs=8, longest=256, **shape) == 0
    assert segments_for(decode, programs=200, longest=32768, **shape) == 2
    assert segments_for(decode, programs=600, longest=32768, **shape) == 0
    assert segments_for(chunk, programs=100, longest=32768, **shape) == 0
    assert segments_for(chunk, programs=33, longest=32768, **shape) == 4
    assert segments_for(chunk, programs=4, longest=32768, **shape | {"tokens": 512}) == 8, "64 MiB of partial sums"


@pytest.mark.parametrize("groups", FACTORS["groups"])
@pytest.mark.parametrize("max_query_len", [1, 5, 512])
def test_the_grid_has_a_program_for_every_query_however_the_tokens_lie(groups, max_query_len):
    rng = np.random.default_rng(groups)
    tile = tile_for(groups, max_query_len, LayerSpec(8, 128, 128, 1.0), 2, 90)
    block_q = tile.m // groups
    assert block_q >= 1
    for _ in range(50):
        counts = rng.integers(0, max_query_len + 1, size=rng.integers(1, 40))
        grid = query_blocks(int(counts.sum()), len(counts), groups, tile, max_query_len)
        if max_query_len > block_q:
            begins = np.cumsum([0, *counts])[:-1] // block_q + np.arange(len(counts))
            needed = -(-counts // block_q)
            assert (begins[:-1] + needed[:-1] <= begins[1:]).all()
            assert begins[-1] + needed[-1] <= grid
        else:
            assert (-(-counts // block_q)).max() <= 1
            assert grid == len(counts)
