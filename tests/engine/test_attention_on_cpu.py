"""Both CPU backends of paged attention against a plain numpy implementation that knows sequences and no pages."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from inferdoc.engine.attention import cpu
from inferdoc.engine.attention.cpu import (
    FEW_QUERIES,
    CpuLayout,
    KernelUnavailableError,
    load_library,
    why_unavailable,
)
from inferdoc.engine.attention.layer import LayerPages, LayerSpec, StepState
from inferdoc.engine.attention.reference import TorchLayout, paged_attention
from inferdoc.engine.batch import StepInput
from inferdoc.engine.request import Request
from inferdoc.engine.scheduler import Batch, Row

MIXED = ((0, 9), (6, 5), (11, 1), (3, 1), (0, 1), (15, 1), (4, 2))
"""(K/V tokens already there, query tokens) of each row: whole prompt, chunks over a cached prefix, decodes."""
DECODES = ((7, 1), (0, 1), (12, 1))
C_FUNCTION = why_unavailable(torch.float32, torch.device("cpu")) is None


def expected_attention(q, k, v, *, scale, window, softcap, sinks):
    """One sequence: q [H, Q, Dk] are its last Q positions; k, v [L, Hkv, D]. Returns [Q, H, Dv]."""
    heads, queries, _ = q.shape
    length, kv_heads, value_dim = v.shape
    out = np.zeros((queries, heads, value_dim))
    for head in range(heads):
        kv_head = head // (heads // kv_heads)
        for index in range(queries):
            position = length - queries + index
            first = 0 if window is None else max(0, position - window + 1)
            scores = np.array([q[head, index] @ k[j, kv_head] * scale for j in range(first, position + 1)])
            if softcap is not None:
                scores = softcap * np.tanh(scores / softcap)
            weights = np.exp(scores)
            total = weights.sum() + (0.0 if sinks is None else np.exp(sinks[head]))
            out[index, head] = (weights / total) @ v[first : position + 1, kv_head]
    return out


@dataclass
class Case:
    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    step: StepInput
    spec: LayerSpec
    sinks: torch.Tensor | None
    expected: np.ndarray

    def run(self, dtype=torch.float64) -> np.ndarray:
        sinks = None if self.sinks is None else self.sinks.to(dtype)
        layout = TorchLayout(self.step, torch.device("cpu"))
        tensors = (self.query.to(dtype), self.keys.to(dtype), self.values.to(dtype))
        return paged_attention(*tensors, layout, self.spec, sinks).double().numpy()

    def run_on_pages(self) -> np.ndarray:
        """By the C function, which computes in float32."""
        query, keys, values = self.query.float(), self.keys.float(), self.values.float()
        sinks = None if self.sinks is None else self.sinks.float()
        return CpuLayout(self.step).attend(query, LayerPages(keys, values, self.spec, StepState()), sinks).numpy()


def make_case(
    rows=MIXED, *, kv_heads=2, groups=1, key_dim=16, value_dim=16, block_size=4, window=None, softcap=None, sinks=False
) -> Case:
    """Random sequences, written into pages in random order; every slot that holds nothing is NaN."""
    rng = np.random.default_rng([len(rows), kv_heads, groups, key_dim, value_dim, block_size])
    heads = kv_heads * groups
    scale = key_dim**-0.5
    blocks = [-(-(start + count) // block_size) for start, count in rows]
    order = iter(rng.permutation(sum(blocks) + 3).tolist())
    slots = (sum(blocks) + 3) * block_size
    keys, values = np.full((slots, kv_heads, key_dim), np.nan), np.full((slots, kv_heads, value_dim), np.nan)
    sink_logits = rng.normal(size=heads) if sinks else None
    queries, outputs, batch = [], [], []
    for number, ((start, count), needed) in enumerate(zip(rows, blocks, strict=True)):
        length = start + count
        request = Request(number, [0] * length, 1)
        request.num_computed = start
        request.block_ids = [next(order) for _ in range(needed)]
        batch.append(Row(request, count, samples=True))
        q, k, v = (
            rng.normal(size=s)
            for s in ((heads, count, key_dim), (length, kv_heads, key_dim), (length, kv_heads, value_dim))
        )
        for position in range(length):
            slot = request.block_ids[position // block_size] * block_size + position % block_size
            keys[slot], values[slot] = k[position], v[position]
        queries.append(q)
        outputs.append(expected_attention(q * 2, k, v, scale=scale, window=window, softcap=softcap, sinks=sink_logits))
    return Case(
        query=torch.from_numpy(np.concatenate(queries, axis=1) * 2),
        keys=torch.from_numpy(keys),
        values=torch.from_numpy(values),
        step=StepInput.from_batch(Batch(batch, block_size)),
        spec=LayerSpec(kv_heads, key_dim, value_dim, scale, window=window, softcap=softcap, has_sinks=sinks),
        sinks=None if sink_logits is None else torch.from_numpy(sink_logits),
        expected=np.concatenate(outputs),
    )


def assert_equal(case: Case, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(case.run(), case.expected, rtol=0, atol=tolerance)
    if C_FUNCTION:
        np.testing.assert_allclose(case.run_on_pages(), case.expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("groups", [1, 2, 3, 4, 6, 7, 8])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_trap_11_any_number_of_query_heads_for_one_kv_head(groups, kv_heads):
    assert_equal(make_case(groups=groups, kv_heads=kv_heads))


def test_trap_11_one_kv_head_for_71_query_heads():
    assert_equal(make_case(((0, 3), (4, 1)), groups=71, kv_heads=1))


@pytest.mark.parametrize(("key_dim", "value_dim"), [(16, 16), (80, 80), (96, 96), (24, 16), (16, 48), (192, 128)])
def test_trap_12_head_dims_that_are_no_power_of_two_or_differ(key_dim, value_dim):
    assert_equal(make_case(key_dim=key_dim, value_dim=value_dim, groups=2))


@pytest.mark.parametrize("block_size", [1, 2, 16, 64])
@pytest.mark.parametrize("rows", [MIXED, DECODES, ((0, 1),), ((0, 5),), ((8, 8), (0, 4))], ids=len)
def test_trap_8_nan_in_places_that_hold_nothing_never_reaches_the_output(block_size, rows):
    """The tails of blocks, unused blocks and other lengths in a padded batch of decodes."""
    case = make_case(rows, block_size=block_size)
    assert torch.isnan(case.values).any()
    assert_equal(case)


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("sinks", [False, True])
def test_trap_8_nan_never_reaches_the_output_by_the_unfused_path(softcap, sinks):
    assert_equal(make_case(softcap=softcap, sinks=sinks, groups=3, block_size=8))


@pytest.mark.parametrize("window", [1, 2, 5, 8, 9, 10, 11, 12, 13, 500])
def test_trap_14_windows_around_every_length(window):
    """Rows have 1 to 16 tokens: the window is crossed by one more, one less and exactly."""
    assert_equal(make_case(window=window, groups=2))


@pytest.mark.parametrize("window", [1, 4, 7])
def test_window_soft_cap_and_sinks_together(window):
    assert_equal(make_case(window=window, softcap=2.0, sinks=True, groups=3, kv_heads=2))


@pytest.mark.parametrize("option", [{"window": 3}, {"softcap": 0.5}, {"sinks": True}])
def test_each_option_changes_the_output(option):
    """Else the tests above would pass with the option ignored."""
    assert np.abs(make_case(**option).expected - make_case().expected).max() > 0.01


def test_a_chunk_over_a_cached_prefix_gives_the_rows_of_the_whole_prompt():
    whole = make_case(((0, 12),))
    parts = []
    for start, count in ((0, 5), (5, 1), (6, 6)):
        request = Request(0, [0] * (start + count), 1)
        request.num_computed, request.block_ids = start, whole.step.block_tables[0].tolist()
        step = StepInput.from_batch(Batch([Row(request, count, samples=True)], 4))
        layout = TorchLayout(step, torch.device("cpu"))
        parts.append(
            paged_attention(whole.query[:, start : start + count], whole.keys, whole.values, layout, whole.spec)
        )
    np.testing.assert_allclose(torch.cat(parts).numpy(), whole.expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 2e-2), (torch.bfloat16, 1e-1)])
@pytest.mark.parametrize("options", [{}, {"softcap": 2.0, "sinks": True, "window": 5}], ids=["fused", "unfused"])
def test_lower_precision_stays_near_the_exact_output(dtype, tolerance, options):
    case = make_case(groups=2, **options)
    difference = np.abs(case.run(dtype) - case.expected).max()
    assert 0 < difference < tolerance


def test_a_row_does_not_depend_on_the_rows_beside_it():
    """Packed sequences must not leak: changing one row's K/V leaves all others bit for bit as they were."""
    case = make_case(DECODES)
    before = case.run()
    first = case.step.slots[0] // 4 * 4
    case.values[first : first + 4] += 1.0
    after = case.run()
    assert not np.array_equal(before[0], after[0])
    assert np.array_equal(before[1:], after[1:])


def test_the_c_function_computes_on_this_machine():
    """Where this is skipped, the tests above have checked the torch path alone."""
    reason = why_unavailable(torch.float32, torch.device("cpu"))
    if reason:
        pytest.skip(reason)
    assert load_library() is load_library()


@pytest.mark.skipif(not C_FUNCTION, reason="no C function on this machine")
class TestCFunction:
    @pytest.mark.parametrize("count", [FEW_QUERIES - 1, FEW_QUERIES, FEW_QUERIES + 1])
    @pytest.mark.parametrize("start", [0, 3])
    def test_verify_steps_and_chunks_around_the_change_of_paths(self, count, start):
        assert_equal(make_case(((start, count), (5, 1)), groups=3, window=6))

    def test_a_query_with_strides_of_its_own(self):
        """The model hands over views of other memory layouts."""
        case = make_case(DECODES, groups=2)
        plain = case.run_on_pages()
        case.query = case.query.transpose(0, 1).contiguous().transpose(0, 1)
        np.testing.assert_array_equal(case.run_on_pages(), plain)
        case.query = case.query.transpose(1, 2).contiguous().transpose(1, 2)
        assert case.query.stride(2) != 1
        np.testing.assert_array_equal(case.run_on_pages(), plain)

    def test_scores_too_large_for_an_exponential(self):
        case = make_case(DECODES)
        case.spec = replace(case.spec, scale=1e4)
        np.testing.assert_allclose(case.run_on_pages(), case.run(), rtol=0, atol=1e-4)

    @pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (0, 2, 1)], ids=str)
    def test_store_writes_each_token_to_its_slot(self, order):
        case = make_case(value_dim=24)
        layer = LayerPages(torch.zeros(case.keys.shape), torch.zeros(case.values.shape), case.spec, StepState())
        key, value = (
            torch.randn(2, len(case.step.slots), dim).permute(order).contiguous().permute(order) for dim in (16, 24)
        )
        CpuLayout(case.step).store(key, value, layer)
        for token, slot in enumerate(case.step.slots.tolist()):
            assert torch.equal(layer.keys[slot], key[:, token])
            assert torch.equal(layer.values[slot], value[:, token])

    def test_denormals_stay_on(self):
        """A library linked for fast mathematics would switch them off for the whole process."""
        make_case().run_on_pages()
        assert torch.tensor(1e-40) * 0.5 > 0


def test_without_a_compiler_there_is_a_reason(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(KernelUnavailableError, match="no C compiler"):
        load_library.__wrapped__()


@pytest.mark.parametrize(("dtype", "device", "reason"), [
    (torch.float32, "meta", "the model is on meta"),
    (torch.bfloat16, "cpu", "computes in float32, and the model is in bfloat16"),
])  # fmt: skip
def test_what_the_c_function_does_not_compute_has_a_reason(dtype, device, reason):
    assert reason in why_unavailable(dtype, torch.device(device))


@pytest.mark.skipif(not C_FUNCTION, reason="no C function on this machine")
def test_a_compiler_that_fails_gives_its_last_words(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "paged_cpu.c"
    source.write_text("this is not C")
    monkeypatch.setattr(cpu, "_SOURCE", source)
    with pytest.raises(KernelUnavailableError, match="failed: "):
        load_library.__wrapped__()
    assert [path.suffix for path in (tmp_path / "inferdoc").iterdir()] == []


@pytest.mark.skipif(not C_FUNCTION, reason="no C function on this machine")
def test_it_is_compiled_once_for_a_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    load_library.__wrapped__()
    (library,) = (tmp_path / "inferdoc").iterdir()
    written = library.stat().st_mtime_ns
    load_library.__wrapped__()
    assert library.stat().st_mtime_ns == written
