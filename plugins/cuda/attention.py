"""Paged attention in Triton: one kernel for prompts and for generation, and the merge of splits.

Arguments follow runtime.cuda_contract.PAGED_ATTENTION_OP. A program computes a tile of rows: some
tokens of one sequence, times the query heads that share one KV head. For generation the keys of
a sequence are split over programs, SPLIT keys each whatever else is in the batch, so that the sums
of a sequence do not depend on its neighbours; `merge_splits` joins them in order.

The running maximum and sum are those of arXiv:2205.14135 (FlashAttention).
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import triton
import triton.language as tl

from .formats import fp8_to_f32

_LOG2E = tl.constexpr(1.4426950408889634)
_PAGE = tl.constexpr(32)  # tokens of a block; a turn of the loop takes one


@triton.jit
def _read(pointers, mask, CACHE: tl.constexpr, COMPUTE: tl.constexpr):
    """Load cache numbers in the compute type; int8 without its scale."""
    x = tl.load(pointers, mask=mask, other=0)
    if CACHE == "fp8":
        x = fp8_to_f32(x)
    if CACHE == "int8":
        x = x.to(tl.float32)  # the interpreter has no way from integers to bf16
    return x.to(COMPUTE)


@triton.jit
def _dot(a, b, UP: tl.constexpr):
    """Multiply with f32 sums. UP widens first: Triton's interpreter multiplies the bits of bf16."""
    if UP:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _tanh(x):
    return 1.0 - 2.0 / (1.0 + tl.exp2(x * (2.0 * _LOG2E)))


@triton.jit
def _sequence_of(tile, seq_starts, seqs, TOKENS: tl.constexpr):
    """Return the sequence of a tile: sequence s begins at tile seq_starts[s] // TOKENS + s."""
    low = tl.full((), 0, tl.int32)
    high = seqs
    while high - low > 1:
        middle = (low + high) // 2
        first = tl.load(seq_starts + middle) // TOKENS + middle
        if first <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def paged_attention(
    q,  # T[tokens, HEADS * WIDTH]
    seq_starts,  # i32[seqs + 1]
    past_tokens,  # i32[seqs]
    block_tables,  # i32[seqs, blocks]
    k_cache,  # C[pool_blocks, KV_HEADS, 32, WIDTH]; fp8 as int8
    v_cache,
    k_scale,  # f32[pool_blocks, KV_HEADS, 32]; None without scales
    v_scale,
    sinks,  # f32[HEADS], a logit of each head that takes weight and gives no value; or None
    seqs,
    blocks,  # width of a block table
    out,  # T[tokens, HEADS * WIDTH]; with SPLIT f32[tokens, HEADS, splits, WIDTH]
    marks,  # with SPLIT f32[tokens, HEADS, splits, 2], maximum and sum; else None
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,  # WIDTH up to a power of two, 16 or more
    SCALE: tl.constexpr,
    WINDOW: tl.constexpr,  # 0: all
    SOFTCAP: tl.constexpr,  # 0: none
    CACHE: tl.constexpr,
    COMPUTE: tl.constexpr,
    TOKENS: tl.constexpr,  # of a tile
    GROUP: tl.constexpr,  # heads of a KV head up to a power of two; TOKENS * GROUP is 16 or more
    SPLIT: tl.constexpr,  # keys of a program, whole pages; 0: all of them
    UP: tl.constexpr,
):
    """Grid: (tokens // TOKENS + seqs, KV_HEADS, splits)."""
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    sequence = _sequence_of(tile, seq_starts, seqs, TOKENS)
    begin = tl.load(seq_starts + sequence)
    count = tl.load(seq_starts + sequence + 1) - begin
    first = (tile - begin // TOKENS - sequence) * TOKENS
    if first < count:
        past = tl.load(past_tokens + sequence)
        heads_each: tl.constexpr = HEADS // KV_HEADS
        rows = tl.arange(0, TOKENS * GROUP)
        token = first + rows // GROUP
        head = kv_head * heads_each + rows % GROUP
        row_real = (token < count) & (rows % GROUP < heads_each)
        position = past + token
        columns = tl.arange(0, PADDED)
        real = row_real[:, None] & (columns < WIDTH)[None, :]
        at = (begin + token).to(tl.int64) * HEADS + head
        queries = tl.load(q + at[:, None] * WIDTH + columns[None, :], mask=real, other=0.0)

        end = past + tl.minimum(first + TOKENS, count)
        start = 0
        if WINDOW > 0:
            start = tl.maximum(past + first - WINDOW + 1, 0) // _PAGE * _PAGE
        if SPLIT > 0:
            start = tl.maximum(start, split * SPLIT)
            end = tl.minimum(end, (split + 1) * SPLIT)

        most = tl.full((TOKENS * GROUP,), float("-inf"), tl.float32)
        total = tl.zeros((TOKENS * GROUP,), tl.float32)
        mixed = tl.zeros((TOKENS * GROUP, PADDED), tl.float32)
        table = block_tables + sequence.to(tl.int64) * blocks
        lanes = tl.arange(0, _PAGE)
        offsets = lanes[:, None] * WIDTH + columns[None, :]
        for turn in range(start, end, _PAGE):
            key = turn + lanes
            inside = key < end
            mask = inside[:, None] & (columns < WIDTH)[None, :]
            page = (tl.load(table + turn // _PAGE).to(tl.int64) * KV_HEADS + kv_head) * _PAGE
            keys = _read(k_cache + page * WIDTH + offsets, mask, CACHE, COMPUTE)
            scores = _dot(queries, tl.trans(keys), UP) * SCALE
            if CACHE == "int8":
                scores *= tl.load(k_scale + page + lanes, mask=inside, other=0.0)[None, :]
            if SOFTCAP > 0:
                scores = SOFTCAP * _tanh(scores / SOFTCAP)
            seen = inside[None, :] & (key[None, :] <= position[:, None])
            if WINDOW > 0:
                seen = seen & (position[:, None] - key[None, :] < WINDOW)
            scores = tl.where(seen, scores * _LOG2E, float("-inf"))
            higher = tl.maximum(most, tl.max(scores, 1))
            safe = tl.where(higher == float("-inf"), 0.0, higher)  # nothing seen so far
            weights = tl.exp2(scores - safe[:, None])
            shrink = tl.exp2(most - safe)
            total = total * shrink + tl.sum(weights, 1)
            if CACHE == "int8":
                weights *= tl.load(v_scale + page + lanes, mask=inside, other=0.0)[None, :]
            values = _read(v_cache + page * WIDTH + offsets, mask, CACHE, COMPUTE)
            mixed = mixed * shrink[:, None] + _dot(weights.to(COMPUTE), values, UP)
            most = higher

        if SPLIT > 0:
            at = at * tl.num_programs(2) + split
            tl.store(marks + at * 2, most, mask=row_real)
            tl.store(marks + at * 2 + 1, total, mask=row_real)
            tl.store(out + at[:, None] * WIDTH + columns[None, :], mixed, mask=real)
        else:
            if sinks is not None:
                sink = tl.load(sinks + head, mask=row_real, other=0.0) * _LOG2E
                higher = tl.maximum(most, sink)
                total = total * tl.exp2(most - higher) + tl.exp2(sink - higher)
                mixed = mixed * tl.exp2(most - higher)[:, None]
            mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
            tl.store(out + at[:, None] * WIDTH + columns[None, :], mixed.to(COMPUTE), mask=real)


@triton.jit
def merge_splits(
    partial,  # f32[tokens, HEADS, splits, WIDTH]
    marks,  # f32[tokens, HEADS, splits, 2]
    sinks,  # f32[HEADS] or None
    splits,
    out,  # T[tokens, HEADS * WIDTH]
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Join what `paged_attention` gave for each split. Grid: (tokens, HEADS)."""
    head = tl.program_id(1)
    row = tl.program_id(0).to(tl.int64) * HEADS + head
    columns = tl.arange(0, PADDED)
    real = columns < WIDTH
    most = tl.full((1,), float("-inf"), tl.float32)
    for split in range(0, splits):
        most = tl.maximum(most, tl.load(marks + (row * splits + split) * 2))
    total = tl.zeros((1,), tl.float32)
    if sinks is not None:
        sink = tl.load(sinks + head) * _LOG2E
        most = tl.maximum(most, sink)
        total += tl.exp2(sink - most)
    mixed = tl.zeros((PADDED,), tl.float32)
    for split in range(0, splits):
        at = row * splits + split
        weight = tl.exp2(tl.load(marks + at * 2) - most)  # 0 for a split without keys
        total += weight * tl.load(marks + at * 2 + 1)
        mixed += weight * tl.load(partial + at * WIDTH + columns, mask=real, other=0.0)
    mixed = mixed / total
    tl.store(out + row * WIDTH + columns, mixed.to(COMPUTE), mask=real)
