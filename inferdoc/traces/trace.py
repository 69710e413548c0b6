"""The canonical trace: one row a request, absent values null, and the views of it that a diagnosis takes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal

import numpy as np
import polars as pl

from inferdoc.errors import TraceError
from inferdoc.evidence import LeftOut, Workload
from inferdoc.traces import buffers, summary
from inferdoc.traces.ledger import Files, merge

Content = Literal["text", "token ids", "block hashes", "lengths only"]

SCHEMA: dict[str, pl.DataType] = {
    "row": pl.Int64(),
    "arrival_s": pl.Float64(),
    "input_tokens": pl.Int64(),
    "output_tokens": pl.Int64(),
    "cached_tokens": pl.Int64(),
    "prefix_blocks": pl.List(pl.UInt64),
    "prompt_text": pl.String(),
    "output_text": pl.String(),
    "prompt_ids": pl.List(pl.Int64),
    "output_ids": pl.List(pl.Int64),
    "session": pl.String(),
    "turn": pl.Int64(),
    "model": pl.String(),
    "status": pl.String(),
    "ttft_s": pl.Float64(),
    "e2e_s": pl.Float64(),
    "queue_s": pl.Float64(),
    "itl_s": pl.List(pl.Float64),
    "segment": pl.Int64(),
    "components": pl.List(pl.Struct({"kind": pl.String, "id": pl.UInt64, "tokens": pl.Int64})),
}
NO_OUTPUT = "no output length: cannot be run"


@dataclass(frozen=True)
class Trace:
    """Requests in order of arrival (stable; in the source's order where it has no times).

    `rows` has the columns of `SCHEMA`; a value that the source lacks is null, never 0. `row` is the line of the source,
    `segment` numbers the stretches of one clock from 0 (null where there is one), `components` are the pieces of a
    prompt in order, where the source names pieces instead of blocks.
    Failed requests are not in it: readers count them in `left_out`, so every row has `status` ``ok``.
    """

    rows: pl.DataFrame
    source: str
    """File name as given, without its folder."""
    format: str
    time_unit: str | None = None
    """``s``, ``ms``, ``us``, ``ns``, ``wall clock``, or ``None`` without times."""
    block_size: int | None = None
    """Tokens behind one id of `prefix_blocks`."""
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()
    seeded_ids: bool = False
    """True where `prompt_ids` were made up by `with_token_ids`."""
    length_scale: Fraction = Fraction(1)
    replicas: int = 1
    independent_clocks: bool = False
    """Each segment's times count from its own start: there is no rate or duration of the whole."""
    files: Files = field(default_factory=Files, compare=False)
    """Which file a `row` is in, where the trace has several."""

    @property
    def content(self) -> Content:
        """What is known of the prompts."""
        if self.has("prompt_text"):
            return "text"
        if self.has("prefix_blocks"):
            return "block hashes"
        if self.has("prompt_ids") and not self.seeded_ids:
            return "token ids"
        return "lengths only"

    def __len__(self) -> int:
        return self.rows.height

    def has(self, column: str) -> bool:
        """Whether any request has a value in `column`."""
        # Not by `rows[column]`: that would give a column of one value for all rows the memory of all rows.
        return int(self.rows.select(pl.col(column).null_count()).item()) < self.rows.height

    @property
    def duration_s(self) -> float | None:
        """Seconds from the first arrival to the last; ``None`` without times, or with independent clocks."""
        if self.independent_clocks or not len(self) or not self.has("arrival_s"):
            return None
        return float(self.rows["arrival_s"][-1])

    @property
    def rate_per_s(self) -> float | None:
        """Requests per second: arrivals after the first over the duration; ``None`` where there is no duration."""
        return (len(self) - 1) / self.duration_s if self.duration_s else None

    def window(self, start: int, count: int) -> Trace:
        """The `count` requests from position `start` on (fewer at the end): contiguous, times from its first request.

        Raises:
            ValueError: the window holds no request.
        """
        if not (0 <= start < len(self) and count >= 1):
            raise ValueError(f"window({start}, {count}) of {len(self)} requests")
        return self._with_rows(self.rows.slice(start, count))

    def scaled(self, scale: Fraction) -> Trace:
        """Prompts, outputs and the recorded block shortened alike, so that the same requests share the same blocks.

        Lengths are rounded up, to at least 1 token. The number of blocks of a prompt stays what it is, since
        ``ceil(ceil(n * scale) / (block * scale)) == ceil(n / block)`` for a whole ``block * scale``. Measured
        latencies belong to the full lengths and become null.

        Raises:
            TraceError: a scale outside (0, 1], one that makes the block no whole number of tokens, or a trace of
                real tokens, which cannot be shortened.
        """
        if not 0 < scale <= 1:
            raise TraceError(
                f"length scale {scale}: give a fraction above 0, at most 1, such as 1/8", where=self.source
            )
        if scale == 1:
            return self
        if self.content in ("text", "token ids"):
            raise TraceError(
                f"length scale {scale}: the trace holds real {self.content}, which cannot be shortened without changing"
                " what repeats; run it without --length-scale (requests beyond the model's context are left out)",
                where=self.source,
            )
        block_size = self.block_size
        if block_size is not None:
            scaled_block = block_size * scale
            if scaled_block.denominator != 1:
                works = [f"1/{d}" for d in range(2, block_size + 1) if block_size % d == 0]
                raise TraceError(
                    f"length scale {scale}: makes the recorded block of {block_size} tokens {float(scaled_block):.3g}"
                    f" tokens; scales that work: {', '.join(works) or 'only 1'}",
                    where=self.source,
                )
            block_size = scaled_block.numerator
        numerator, denominator = scale.numerator, scale.denominator
        rows = self.rows.with_columns(
            *(
                ((pl.col(name) * numerator + (denominator - 1)) // denominator).clip(lower_bound=1)
                for name in ("input_tokens", "output_tokens")
            ),
            pl.col("cached_tokens") * numerator // denominator,
            *(pl.lit(None, SCHEMA[name]).alias(name) for name in ("prompt_ids", "ttft_s", "e2e_s", "queue_s", "itl_s")),
        )
        return replace(self, rows=rows, block_size=block_size, seeded_ids=False, length_scale=self.length_scale * scale)

    def replica(self, replicas: int, seed: int) -> Trace:
        """The share of one of `replicas` equal servers: whole sessions where there are any, else single requests.

        Raises:
            TraceError: fewer than one replica, or so many that this one gets no request.
        """
        if replicas < 1:
            raise TraceError(f"replicas {replicas}: give 1 or more", where=self.source)
        if replicas == 1:
            return self
        if self.has("session"):
            keys = self.rows.select(
                pl.coalesce("session", pl.concat_str(pl.lit("row "), pl.col("row").cast(pl.String))).alias("key")
            )["key"]
            mine = [key for key in keys.unique() if _share(key, seed) % replicas == 0]
            kept = self.rows.filter(keys.is_in(mine))
        else:
            draws = np.random.default_rng(seed).integers(0, replicas, len(self))
            kept = self.rows.filter(pl.Series(draws == 0))
        if kept.is_empty():
            raise TraceError(
                f"replicas {replicas}: this replica's share of {len(self):,} requests is empty; give fewer replicas",
                where=self.source,
            )
        return replace(self._with_rows(kept), replicas=self.replicas * replicas)

    def runnable(self) -> Trace:
        """The requests that an engine can run, that is those with an output length; the others are counted.

        Raises:
            TraceError: none has one.
        """
        kept = self.without(pl.col("output_tokens").is_null(), NO_OUTPUT)
        if not len(kept):
            raise TraceError(
                "no request has an output length; give outputs (a last assistant message, `output_tokens` or `usage`)",
                where=self.source,
            )
        return kept

    def without(self, condition: pl.Expr, reason: str) -> Trace:
        """The trace without the rows that meet `condition`, counted in `left_out` under `reason`."""
        dropped = self.rows.filter(condition)
        if dropped.is_empty():
            return self
        entry = self.files.counted(reason, dropped["row"])
        kept = self._with_rows(self.rows.filter(~condition.fill_null(False)))
        return replace(kept, left_out=merge([*self.left_out, entry]))

    def fingerprint(self) -> str:
        """SHA-256 over the values, the block size and the scale: equal for equal work, whatever the file is called.

        Columns without any value do not count, so that a column that is added to `SCHEMA` changes nothing.
        """
        digest = hashlib.sha256(f"{self.block_size} {self.length_scale} {len(self)}\n".encode())
        for name in sorted(self.rows.columns):
            if self.has(name):
                digest.update(f"{name} {SCHEMA[name]}\n".encode())
                buffers.feed(digest, self.rows.select(name))
        return digest.hexdigest()

    def workload(self) -> Workload:
        """What was understood of the trace. The slice that is run is for the diagnosis to fill in."""
        return Workload(
            source=self.source,
            format=self.format,
            time_unit=self.time_unit,
            requests=len(self),
            duration_s=self.duration_s,
            rate_per_s=self.rate_per_s,
            block_size=self.block_size,
            content=self.content,
            left_out=list(self.left_out),
            quantities={quantity.id: quantity for quantity in summary.quantities(self.rows)},
            length_scale=float(self.length_scale),
            replicas=self.replicas,
            fingerprint=self.fingerprint(),
            notes=list(self.notes),
        )

    def _with_rows(self, rows: pl.DataFrame) -> Trace:
        start = pl.col("arrival_s").min()
        start = start.over("segment") if self.independent_clocks else start
        return replace(self, rows=rows.with_columns(pl.col("arrival_s") - start))


def _share(key: str, seed: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}:{key}".encode(), digest_size=8).digest(), "big")
