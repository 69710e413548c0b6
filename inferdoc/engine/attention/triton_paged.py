"""Triton kernels of paged attention: one source for decode, chunked prefill over a cached prefix, and verify.

    query tokens of a row x query heads of one KV head  ->  the M rows of a tile (a *query block*)

        m        0  1  2  3 | 4  5  6  7 | 8 ...            GROUP = 4 query heads a KV head
        token    0  0  0  0 | 1  1  1  1 | 2 ...            token = m // GROUP
        head     0  1  2  3 | 0  1  2  3 | 0 ...            head  = m % GROUP

One program does one query block of one KV head. With SPLIT, several programs share its K/V, whole tiles each, and leave
what they found to `reduce_kernel`. K/V positions become slots by the block table, so tiles have their own length and
any power of two does as block size. Block ids are widened to 64 bits before they are multiplied: a pool may have more
than 2^31 elements.

Slots that hold nothing may hold NaN, and 0 * NaN is NaN: values are masked when they are loaded, beside their weights.
Softmax runs online in float32, in powers of two (logits carry a factor of log2 e). Float32 operands are multiplied as
three TF32 products, near float32's own precision: without tensor cores the kernels spill by the kilobyte.
"""

# Compile-time constants are in capitals, as is the custom; kernels have no types.
# ruff: noqa: N803, N806
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _row_of(block, query_starts, num_rows, BLOCK_Q: tl.constexpr):
    """The row that query block `block` belongs to. Row r's blocks begin at query_starts[r] // BLOCK_Q + r, which leaves
    each row enough of them and lets the grid depend on the number of tokens and rows alone."""
    low = 0
    high = num_rows
    while high - low > 1:
        middle = (low + high) // 2
        begins = tl.load(query_starts + middle) // BLOCK_Q + middle
        low = tl.where(begins <= block, middle, low)
        high = tl.where(begins <= block, high, middle)
    return low


@triton.jit
def _from_e4m3(byte):
    """float16 of 1/256 of the number: e4m3's bits are those of a float16 whose exponent counts from 15, not 7. By bits,
    since Triton has the type on cards of capability 8.9 and more alone. NaN becomes 1.875, and is never stored."""
    magnitude = (byte & 0x7F).to(tl.uint16) << 7
    return (magnitude | (byte & 0x80).to(tl.uint16) << 8).to(tl.float16, bitcast=True)


@triton.jit
def _to_e4m3(number):
    """Bits of a float32, rounded to the nearest, ties to even; what is too large becomes 448."""
    magnitude = tl.minimum(tl.abs(number), 448.0)
    bits = magnitude.to(tl.uint32, bitcast=True)
    normal = (bits + 0x7FFFF + ((bits >> 20) & 1) - (120 << 23)) >> 20
    # Beside 2^14 a float32's last place is 2^-9, e4m3's smallest step: the sum rounds, its last bits count the steps.
    small = (magnitude + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    sign = (number.to(tl.uint32, bitcast=True) >> 24) & 0x80
    return (tl.where(magnitude < 0.015625, small, normal) | sign).to(tl.uint8)


@triton.jit(do_not_specialize=["num_rows", "table_stride", "window"])
def attend_kernel(
    query,
    keys,
    values,
    sinks,
    out,
    maxima,
    sums,
    block_tables,
    query_starts,
    lengths,
    num_rows,
    table_stride,
    scale,
    value_scale,
    softcap,
    window,
    query_head_stride,
    query_token_stride,
    key_slot_stride,
    key_head_stride,
    value_slot_stride,
    value_head_stride,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_LANES: tl.constexpr,
    VALUE_LANES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    E4M3: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Grid (query blocks, KV heads, segments).

    With E4M3, `keys` and `values` are bytes; `scale` (of the logits) and `value_scale` hold what they are scaled by.

    Without SPLIT, `out` [T, H, VALUE_DIM] gets the result. With SPLIT, `out` [T, H, segments, VALUE_DIM] gets weighted
    sums in float32, `maxima` and `sums` [T, H, segments] the logits' maxima (base 2) and the sums of weights; a segment
    without K/V leaves a sum of 0 and no weighted sum. ONE_BLOCK: no row has more than one query block.
    """
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    # The last blocks of a prompt see the most K/V: they start first, so that none is left for the end.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    row = block if ONE_BLOCK else _row_of(block, query_starts, num_rows, BLOCK_Q)
    start = tl.load(query_starts + row)
    count = (tl.load(query_starts + row + 1) - start).to(tl.int32)
    first = 0 if ONE_BLOCK else (block - (start // BLOCK_Q).to(tl.int32) - row) * BLOCK_Q
    if first >= count:
        return
    context = tl.load(lengths + row).to(tl.int32) - count  # position of the row's first query token

    m = tl.arange(0, BLOCK_M)
    key_lane = tl.arange(0, KEY_LANES)
    value_lane = tl.arange(0, VALUE_LANES)
    token = first + m // GROUP
    position = context + token
    real = (m < BLOCK_Q * GROUP) & (token < count)
    at = start.to(tl.int64) + token
    head = kv_head * GROUP + m % GROUP
    q = tl.load(
        query + at[:, None] * query_token_stride + head[:, None] * query_head_stride + key_lane[None, :],
        mask=real[:, None] & (key_lane < KEY_DIM)[None, :],
        other=0.0,
    )

    # K/V in [begin, end) are visible to at least one of the block's queries.
    end = context + tl.minimum(first + BLOCK_Q, count)
    begin = tl.maximum(context + first - window + 1, 0) if WINDOWED else 0
    tile = begin // BLOCK_N
    stop = tl.cdiv(end, BLOCK_N)
    if SPLIT:
        each = tl.cdiv(stop - tile, tl.num_programs(2))
        tile += tl.program_id(2) * each
        stop = tl.minimum(tile + each, stop)

    running_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    running_sum = tl.full([BLOCK_M], 0.0, tl.float32)
    if SINKS and not SPLIT:
        running_max = tl.load(sinks + head, mask=real, other=0.0).to(tl.float32) * LOG2_E
        running_sum += 1.0
    acc = tl.full([BLOCK_M, VALUE_LANES], 0.0, tl.float32)
    keys += kv_head.to(tl.int64) * key_head_stride
    values += kv_head.to(tl.int64) * value_head_stride
    table = block_tables + row.to(tl.int64) * table_stride
    for index in range(tile, stop):
        n = index * BLOCK_N + tl.arange(0, BLOCK_N)
        held = (n >= begin) & (n < end)
        blocks = tl.load(table + n // BLOCK_SIZE, mask=held, other=0).to(tl.int64)
        slots = blocks * BLOCK_SIZE + n % BLOCK_SIZE
        k = tl.load(
            keys + slots[:, None] * key_slot_stride + key_lane[None, :],
            mask=held[:, None] & (key_lane < KEY_DIM)[None, :],
            other=0,
        )
        if E4M3:
            k = _from_e4m3(k).to(q.dtype)
        logits = tl.dot(q, tl.trans(k), input_precision="tf32x3") * (scale * LOG2_E)
        if CAPPED:
            logits = softcap * LOG2_E * (1.0 - 2.0 / (tl.exp2(logits * (2.0 / softcap)) + 1.0))  # tanh
        visible = held[None, :] & (n[None, :] <= position[:, None])
        if WINDOWED:
            visible &= position[:, None] - n[None, :] < window
        logits = tl.where(visible, logits, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(logits, 1))
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)  # a query may see none of this tile
        weights = tl.exp2(logits - shift[:, None])
        decay = tl.exp2(running_max - shift)
        v = tl.load(
            values + slots[:, None] * value_slot_stride + value_lane[None, :],
            mask=held[:, None] & (value_lane < VALUE_DIM)[None, :],
            other=0,
        )
        if E4M3:
            v = _from_e4m3(v).to(q.dtype)
        acc = acc * decay[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="tf32x3")
        running_sum = running_sum * decay + tl.sum(weights, 1)
        running_max = new_max

    if E4M3:
        acc *= value_scale
    to = at * (tl.num_programs(1) * GROUP) + head
    lanes = real[:, None] & (value_lane < VALUE_DIM)[None, :]
    if SPLIT:
        to = to * tl.num_programs(2) + tl.program_id(2)
        tl.store(maxima + to, running_max, mask=real)
        tl.store(sums + to, running_sum, mask=real)
        lanes &= (m * 0 + tile < stop)[:, None]  # as a vector: Triton 3.9 interprets no scalar condition as a mask
    else:
        acc = acc / tl.where(running_sum == 0.0, 1.0, running_sum)[:, None]  # a padding row sees nothing: zero
    tl.store(out + to[:, None] * VALUE_DIM + value_lane[None, :], acc.to(out.dtype.element_ty), mask=lanes)


@triton.jit
def reduce_kernel(
    partial,
    maxima,
    sums,
    sinks,
    out,
    VALUE_DIM: tl.constexpr,
    VALUE_LANES: tl.constexpr,
    SEGMENTS: tl.constexpr,
    SINKS: tl.constexpr,
):
    """Grid (T, H): joins what the segments of `attend_kernel` left, and the head's sink, in `out` [T, H, VALUE_DIM]."""
    head = tl.program_id(1)
    at = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + head
    segment = tl.arange(0, SEGMENTS)
    lane = tl.arange(0, VALUE_LANES)
    maximum = tl.load(maxima + at * SEGMENTS + segment)
    total = tl.load(sums + at * SEGMENTS + segment)
    highest = tl.max(maximum, 0)
    if SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * LOG2_E
        highest = tl.maximum(highest, sink)
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    weight = tl.exp2(maximum - highest)
    denominator = tl.sum(total * weight, 0)
    if SINKS:
        denominator += tl.exp2(sink - highest)
    parts = tl.load(
        partial + (at * SEGMENTS + segment)[:, None] * VALUE_DIM + lane[None, :],
        mask=(total > 0.0)[:, None] & (lane < VALUE_DIM)[None, :],
        other=0.0,
    )
    result = tl.sum(parts * weight[:, None], 0) / tl.where(denominator == 0.0, 1.0, denominator)
    tl.store(out + at * VALUE_DIM + lane, result.to(out.dtype.element_ty), mask=lane < VALUE_DIM)


@triton.jit(do_not_specialize=["num_tokens"])
def store_kernel(
    key,
    value,
    keys,
    values,
    slots,
    num_tokens,
    key_head_stride,
    key_token_stride,
    value_head_stride,
    value_token_stride,
    keys_slot_stride,
    keys_head_stride,
    values_slot_stride,
    values_head_stride,
    key_factor,
    value_factor,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_LANES: tl.constexpr,
    VALUE_LANES: tl.constexpr,
    TOKENS: tl.constexpr,
    E4M3: tl.constexpr,
):
    """Grid (T / TOKENS, KV heads): writes each token's K/V to its slot; a slot of -1 is not written.

    With E4M3 it writes bytes: the numbers times the factors, rounded.
    """
    head = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    slot = tl.load(slots + token, mask=token < num_tokens, other=-1).to(tl.int64)
    written = (slot >= 0)[:, None]
    lane = tl.arange(0, KEY_LANES)[None, :]
    lanes = written & (lane < KEY_DIM)
    part = tl.load(key + head * key_head_stride + token[:, None] * key_token_stride + lane, mask=lanes, other=0.0)
    if E4M3:
        part = _to_e4m3(part.to(tl.float32) * key_factor)
    tl.store(keys + slot[:, None] * keys_slot_stride + head * keys_head_stride + lane, part, mask=lanes)
    lane = tl.arange(0, VALUE_LANES)[None, :]
    lanes = written & (lane < VALUE_DIM)
    part = tl.load(value + head * value_head_stride + token[:, None] * value_token_stride + lane, mask=lanes, other=0.0)
    if E4M3:
        part = _to_e4m3(part.to(tl.float32) * value_factor)
    tl.store(values + slot[:, None] * values_slot_stride + head * values_head_stride + lane, part, mask=lanes)
