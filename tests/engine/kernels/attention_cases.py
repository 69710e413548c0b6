"""Cases for the Triton attention, and what must come out, by numpy in float64 over plain sequences without pages."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import numpy as np
import torch

from inferdoc.engine.attention.layer import LayerPages, LayerSpec, StepState
from inferdoc.engine.attention.triton_layout import TritonLayout

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {"float32": 5e-6, "float16": 4e-3}
"""Sums of products alone; see `World.tolerance` for large scores."""
FACTORS: dict[str, tuple] = {
    "groups": (1, 2, 3, 4, 6, 7, 8, 71),
    "dims": ((64, 64), (80, 80), (96, 96), (128, 128), (192, 192), (256, 256), (192, 128), (64, 96)),
    "block_size": (16, 32, 64),
    "window": (None, 24),
    "softcap": (None, 3.0),
    "sinks": (False, True),
    "dtype": ("float32", "float16"),
    "queries": ("decode", "verify", "prompt", "mixed"),
    "segments": (0, 1, 2, 16),
}
"""`segments` 0 is the 2D path."""


@dataclass(frozen=True)
class Case:
    groups: int = 2
    dims: tuple[int, int] = (64, 64)
    block_size: int = 16
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    dtype: str = "float32"
    queries: str = "mixed"
    segments: int | None = 0
    rows: tuple[tuple[int, int], ...] = ()
    """(K/V tokens already there, query tokens) of each row; else as `queries` says."""

    def __str__(self) -> str:
        dims = "x".join(map(str, self.dims))
        options = [name for name in ("window", "softcap", "sinks") if getattr(self, name)]
        where = "2d" if self.segments == 0 else f"split{self.segments}"
        return "-".join([f"g{self.groups}", dims, f"b{self.block_size}", *options, self.dtype, self.queries, where])

    @property
    def kv_heads(self) -> int:
        return 2 if self.groups <= 4 else 1

    @property
    def spec(self) -> LayerSpec:
        scale = self.dims[0] ** -0.5
        return LayerSpec(self.kv_heads, *self.dims, scale, self.window, self.softcap, self.sinks)

    def lay_out(self) -> tuple[tuple[int, int], ...]:
        # More query tokens than one tile holds, but not hundreds of tiles for the widest groups.
        chunk = (140 if self.dtype == "float16" else 40) // self.groups + 4
        return (
            self.rows
            or {
                "decode": ((0, 1), (37, 1), (130, 1)),
                "verify": ((0, 5), (62, 5), (11, 5)),
                "prompt": ((0, chunk), (0, 1), (0, 2)),
                "mixed": ((129, 1), (45, chunk), (62, 5), (0, 3)),
            }[self.queries]
        )


class World:
    """A case's tensors. Sequences lie in pages in random order, and every slot that holds nothing is NaN."""

    def __init__(self, case: Case, device: torch.device = DEVICE, padding: int = 1, spare_blocks: int = 0) -> None:
        self.case, self.device = case, device
        rng = np.random.default_rng([case.groups, *case.dims, case.block_size, len(case.lay_out()), case.sinks])
        dtype = getattr(torch, case.dtype)
        size, (key_dim, value_dim) = case.block_size, case.dims
        heads = case.kv_heads * case.groups
        self.rows = case.lay_out()
        needed = [-(-(start + count) // size) for start, count in self.rows]
        blocks = sum(needed) + 2
        # Block 0 holds NaN alone: what pads a block table points to it.
        order = iter((1 + rng.permutation(blocks - 1)).tolist())
        self.tables = np.zeros((len(self.rows) + padding, max(needed) + spare_blocks), dtype=np.int64)
        for row, count in enumerate(needed):
            self.tables[row, :count] = [next(order) for _ in range(count)]

        def random(*shape: int, times: float = 1.0) -> torch.Tensor:
            return torch.from_numpy(rng.normal(size=shape) * times).to(dtype)

        tokens = sum(count for _, count in self.rows)
        # As a model gives them, heads are split from a packed row. What lies between them must not be read.
        row = torch.full((tokens + padding, heads, key_dim + 16), torch.nan, dtype=dtype)
        row[..., :key_dim] = random(tokens + padding, heads, key_dim, times=2.0)
        self.query = row[..., :key_dim].transpose(0, 1)
        self.new_keys = random(tokens + padding, case.kv_heads, key_dim).transpose(0, 1)
        self.new_values = random(tokens + padding, case.kv_heads, value_dim).transpose(0, 1)
        self.sinks = random(heads) if case.sinks else None
        self.keys = torch.full((blocks * size, case.kv_heads, key_dim), torch.nan, dtype=dtype)
        self.values = torch.full((blocks * size, case.kv_heads, value_dim), torch.nan, dtype=dtype)
        self.slots = np.full(tokens + padding, -1)
        self.sequences: list[tuple[np.ndarray, np.ndarray]] = []
        begin = 0
        for row, (start, count) in enumerate(self.rows):
            positions = np.arange(start + count)
            slots = self.tables[row, positions // size] * size + positions % size
            old_keys, old_values = random(start, case.kv_heads, key_dim), random(start, case.kv_heads, value_dim)
            self.keys[slots[:start]], self.values[slots[:start]] = old_keys, old_values
            self.slots[begin : begin + count] = slots[start:]
            new = slice(begin, begin + count)
            keys = torch.cat([old_keys, self.new_keys[:, new].transpose(0, 1)])
            values = torch.cat([old_values, self.new_values[:, new].transpose(0, 1)])
            self.sequences.append((keys.double().numpy(), values.double().numpy()))
            begin += count
        self.tokens = tokens
        ends = np.cumsum([0, *(count for _, count in self.rows), *[1] * padding])
        self.lengths = np.array([start + count for start, count in self.rows] + [0] * padding)
        self.query_starts = ends
        self.pages = LayerPages(self.keys.to(device), self.values.to(device), case.spec, StepState())

    def layout(self, **options: int | None) -> TritonLayout:
        tensors = (self.slots, self.query_starts, self.lengths, self.tables)
        return TritonLayout(
            *(torch.from_numpy(array).to(self.device) for array in tensors),
            block_size=self.case.block_size,
            max_query_len=max(count for _, count in self.rows),
            **{"segments": self.case.segments, **options},
        )

    def run(self, layout: TritonLayout | None = None) -> np.ndarray:
        """Store the step's K/V, attend; [T with padding, H, Dv] in float64."""
        layout = layout or self.layout()
        layout.store(self.new_keys.to(self.device), self.new_values.to(self.device), self.pages)
        sinks = None if self.sinks is None else self.sinks.to(self.device)
        return layout.attend(self.query.to(self.device), self.pages, sinks).double().cpu().numpy()

    def expected(self) -> np.ndarray:
        """[T, H, Dv] without the padding."""
        query = self.query.double().numpy()
        sinks = None if self.sinks is None else self.sinks.double().numpy()
        outputs, begin = [], 0
        for (_, count), (keys, values) in zip(self.rows, self.sequences, strict=True):
            outputs.append(attention(query[:, begin : begin + count], keys, values, self.case, sinks))
            begin += count
        return np.concatenate(outputs)

    def tolerance(self) -> float:
        """Largest error to accept. In float32 each score s carries an error of about eps * |s| (its product with the
        scale and the subtraction of the maximum are rounded), and an error d of all scores moves the weighted mean of
        values v by at most 2 * d * max |v|: more than `TOLERANCE` where scores are large."""
        if self.case.dtype == "float16":
            return TOLERANCE["float16"]
        query, begin = self.query.double().numpy(), 0
        largest = 0.0
        for (_, count), (keys, _) in zip(self.rows, self.sequences, strict=True):
            part = query[:, begin : begin + count].reshape(self.case.kv_heads, -1, query.shape[2])
            largest = max(largest, np.abs(part @ keys.transpose(1, 2, 0)).max() / np.sqrt(query.shape[2]))
            begin += count
        values = max(np.abs(values).max() for _, values in self.sequences)
        return max(TOLERANCE["float32"], float(2 * np.finfo(np.float32).eps * largest * values))


def attention(
    query: np.ndarray, keys: np.ndarray, values: np.ndarray, case: Case, sinks: np.ndarray | None
) -> np.ndarray:
    """One sequence: query [H, Q, Dk] are its last Q positions, keys and values [L, Hkv, D]. Returns [Q, H, Dv]."""
    heads, queries, key_dim = query.shape
    length = len(keys)
    ages = np.arange(length - queries, length)[:, None] - np.arange(length)
    hidden = ages < 0 if case.window is None else (ages < 0) | (ages >= case.window)
    out = np.empty((queries, heads, values.shape[2]))
    for head in range(heads):
        scores = query[head] @ keys[:, head // case.groups].T / np.sqrt(key_dim)
        if case.softcap is not None:
            scores = case.softcap * np.tanh(scores / case.softcap)
        weights = np.where(hidden, 0.0, np.exp(scores))
        total = weights.sum(1) + (0.0 if sinks is None else np.exp(sinks[head]))
        out[:, head] = weights @ values[:, head // case.groups] / total[:, None]
    return out


def check(case: Case) -> None:
    world = World(case)
    got = world.run()
    np.testing.assert_allclose(got[: world.tokens], world.expected(), rtol=0, atol=world.tolerance())
    assert not got[world.tokens :].any(), "a padding row's output is zero"


def pairs(case: Case) -> set[tuple]:
    """Each pair of two factors' levels that a case has."""
    return {((a, getattr(case, a)), (b, getattr(case, b))) for a, b in itertools.combinations(FACTORS, 2)}


def all_pairs() -> set[tuple]:
    return {((a, x), (b, y)) for a, b in itertools.combinations(FACTORS, 2) for x in FACTORS[a] for y in FACTORS[b]}


def covering_set() -> list[Case]:
    """Few cases that have every pair: one for each group and head dim, then for what is left. The other factors' levels
    are chosen one after the other, each for the most pairs that are new."""
    order = random.Random(0)
    left = all_pairs()
    cases: list[Case] = []
    fixed = itertools.product(FACTORS["groups"], FACTORS["dims"])
    while left or len(cases) < 64:
        groups_and_dims = next(fixed, None)
        levels = (
            dict(zip(("groups", "dims"), groups_and_dims, strict=True))
            if groups_and_dims
            else dict(min(left, key=repr))
        )
        for name, choices in FACTORS.items():
            if name not in levels:
                # Among equals any will do, but not always the same.
                levels[name] = max(
                    order.sample(choices, len(choices)),
                    key=lambda level, name=name: len(left & _pairs_with(levels, name, level)),
                )
        cases.append(Case(**levels))
        left -= pairs(cases[-1])
    return cases


def _pairs_with(levels: dict, name: str, level: object) -> set[tuple]:
    order = list(FACTORS)
    found = set()
    for other, value in levels.items():
        pair = sorted([(name, level), (other, value)], key=lambda item: order.index(item[0]))
        found.add(tuple(pair))
    return found


def full_product() -> list[Case]:
    """Every group, head dim, block size, mix of queries and path; window, cap, sinks and dtype take turns, so that each
    of their 16 combinations meets every pair of the others."""
    shapes = itertools.product(*(FACTORS[name] for name in ("groups", "dims", "block_size", "queries", "segments")))
    options = list(itertools.product(*(FACTORS[name] for name in ("window", "softcap", "sinks", "dtype"))))
    cases = []
    for number, (groups, dims, block_size, queries, segments) in enumerate(shapes):
        window, softcap, sinks, dtype = options[(number * 7 + number // 16) % 16]
        cases.append(Case(groups, dims, block_size, window, softcap, sinks, dtype, queries, segments))
    return cases
