"""Decode steps as captured graphs: the launches are recorded once for each batch-size bucket, then replayed.

A replay repeats the same launches with the same arguments on the same memory, so everything that varies from step to
step is in tensors that live as long as the graphs, and nothing that varies reaches a launch as a Python number.

    rows      0 ......... n-1 | n ......... bucket-1
              the step's rows | padding: token 0, slot -1, length 1, a table that points to the scrap block
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from inferdoc.engine.attention.reference import TorchLayout
from inferdoc.engine.batch import StepInput


class Capturer(Protocol):
    """Turns work on tensors into something that repeats it."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record what `work` launches; calling the result launches that again, whatever has changed in Python."""
        ...

    def free_bytes(self) -> int | None:
        """Memory that is free on the device; ``None`` where that cannot be told."""
        ...


class CudaCapturer:
    """CUDA graphs that share one memory pool. Not yet run on a card."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        # What libraries and kernels set up at their first call must not be part of the graph.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for _ in range(2):
                work()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        try:
            # torch.cuda.graph leaves its stream as the current one if it cannot end the capture.
            here = torch.cuda.stream(torch.cuda.current_stream(self._device))
            with here, torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                work()
        except Exception as error:
            # torch before 2.12 leaves the pool open too, and then fails at the next empty_cache().
            with suppress(RuntimeError, AttributeError):
                torch._C._cuda_endAllocateToPool(self._device.index, self._pool)
            # What the work met comes first; that the capture could not be ended follows from it.
            raise (error.__context__ or error) from None
        replay: Callable[[], None] = graph.replay
        return replay

    def free_bytes(self) -> int | None:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self._device)[0]


def buckets(max_rows: int) -> list[int]:
    """Batch sizes that are captured: 1, 2, 4, 8, then by 8 to 64, by 16 beyond, and the largest batch itself."""
    grid = [1, 2, 4, *range(8, 65, 8), *range(80, max_rows, 16)]
    return [size for size in grid if size < max_rows] + [max_rows]


@dataclass(frozen=True)
class DecodeStep:
    """A decode step of one bucket, as views of the persistent tensors: one token a row."""

    token_ids: Tensor
    """[R]"""
    positions: Tensor
    """[R]"""
    slots: Tensor
    """[R] -1 in padding: the last slot of the pool, which is scrap, or not written at all."""
    query_starts: Tensor
    """[R + 1] 0, 1, ... R"""
    lengths: Tensor
    """[R]"""
    block_tables: Tensor
    """[R, blocks of the longest sequence]"""
    block_size: int


class DecodeLayout(TorchLayout):
    """The torch backend on a decode step: every row reads as many places as the longest sequence could have."""

    def __init__(self, step: DecodeStep) -> None:
        size = step.block_size
        offsets = torch.arange(size, device=step.lengths.device)
        slots = (step.block_tables[:, :, None] * size + offsets).flatten(1)
        self.slots = step.slots
        self.chunks = []
        self.decode_tokens = step.query_starts[:-1]
        self.all_decodes = True
        self.decode_age = step.lengths[:, None] - 1 - torch.arange(slots.shape[1], device=slots.device)
        self.decode_slots = torch.where(self.decode_age >= 0, slots, slots[:, :1])


class DecodeInputs:
    """Where captured decode steps read their inputs.

    Args:
        rows: the largest bucket.
        table_width: blocks of the longest sequence.
        scrap_block: a block that no request owns.
    """

    def __init__(self, *, rows: int, table_width: int, block_size: int, scrap_block: int, device: torch.device) -> None:
        self.block_size = block_size
        self.scrap_block = scrap_block
        padding = torch.tensor([0, 0, -1, 1])  # token, position, slot, length
        self._host = padding[:, None].repeat(1, rows)
        if device.type == "cuda":
            self._host = self._host.pin_memory()
        self._columns = self._host.to(device)
        self._query_starts = torch.arange(rows + 1, device=device)
        self._block_tables = torch.full((rows, table_width), scrap_block, device=device)
        self._host_tables = torch.empty(rows * table_width, dtype=torch.int64, pin_memory=device.type == "cuda")

    def view(self, bucket: int) -> DecodeStep:
        token_ids, positions, slots, lengths = self._columns[:, :bucket]
        return DecodeStep(
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            query_starts=self._query_starts[: bucket + 1],
            lengths=lengths,
            block_tables=self._block_tables[:bucket],
            block_size=self.block_size,
        )

    def load(self, step: StepInput, bucket: int) -> None:
        """Write a step's rows and pad to the bucket. Table columns that no row of it uses keep what they were."""
        rows = len(step.lengths)
        host = self._host.numpy()
        host[:, :rows] = step.token_ids, step.positions, step.slots, step.lengths
        host[:, rows:bucket] = [[0], [0], [-1], [1]]
        self._columns.copy_(self._host, non_blocking=True)
        width = step.block_tables.shape[1]
        # Packed, since torch copies to a card without waiting only what is in one piece.
        tables = self._host_tables[: bucket * width].view(bucket, width)
        tables.numpy()[:rows] = step.block_tables
        tables[rows:] = self.scrap_block
        self._block_tables[:bucket, :width] = tables.to(self._block_tables.device, non_blocking=True)


class DecodeGraphs:
    """One graph for each bucket, the largest captured first so that the others fit into its memory.

    A graph leaves its rows' logits and greedy tokens in tensors that all buckets share, until the next replay.

    Args:
        forward: logits [R, vocabulary] of a decode step of R rows.
        inputs: where the graphs read; its rows are the largest bucket.
        max_rows: most rows of a step.
    """

    def __init__(
        self, forward: Callable[[DecodeStep], Tensor], inputs: DecodeInputs, max_rows: int, capturer: Capturer
    ) -> None:
        self._forward = forward
        self._inputs = inputs
        self.buckets = buckets(max_rows)
        before = capturer.free_bytes()
        example = forward(inputs.view(1))
        self.logits = example.new_empty(max_rows, example.shape[1])
        self.tokens = torch.zeros(max_rows, dtype=torch.int64, device=example.device)
        self._replays = {size: capturer.capture(partial(self._compute, size)) for size in reversed(self.buckets)}
        after = capturer.free_bytes()
        self.bytes = None if before is None or after is None else before - after
        """Memory that the graphs took."""

    def covers(self, step: StepInput) -> bool:
        return len(step.token_ids) == len(step.lengths) <= self.buckets[-1]

    def replay(self, step: StepInput) -> int:
        """Compute a step that these graphs cover; its results are the first rows of `logits` and `tokens`.

        Returns:
            The bucket.
        """
        bucket = self.buckets[bisect_left(self.buckets, len(step.lengths))]
        self._inputs.load(step, bucket)
        self._replays[bucket]()
        return bucket

    def _compute(self, bucket: int) -> None:
        logits = self._forward(self._inputs.view(bucket))
        self.logits[:bucket] = logits
        self.tokens[:bucket] = logits.argmax(dim=-1)
