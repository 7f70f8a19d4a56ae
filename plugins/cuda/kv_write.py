"""Writing keys and values into their pages in Triton, and the plain copy of the gather form."""

# pyright: reportMissingImports=false
from __future__ import annotations

import triton
import triton.language as tl

from .formats import f32_to_fp8, finite, int8_scale, to_int8


@triton.jit
def _put(cache, scales, slot, first, second, lanes, real, WIDTH: tl.constexpr, CACHE: tl.constexpr):
    """Store both halves of one head of one token."""
    half: tl.constexpr = WIDTH // 2
    low = cache + slot * WIDTH + lanes
    if CACHE == "int8":
        most = tl.maximum(tl.max(tl.abs(first), 0), tl.max(tl.abs(second), 0))
        scale = int8_scale(tl.zeros((1,), tl.float32) + most)
        tl.store(scales + slot + tl.arange(0, 1), scale)
        tl.store(low, to_int8(first, scale), mask=real)
        tl.store(low + half, to_int8(second, scale), mask=real)
    elif CACHE == "fp8":
        tl.store(low, f32_to_fp8(first), mask=real)
        tl.store(low + half, f32_to_fp8(second), mask=real)
    else:
        tl.store(low, first.to(cache.dtype.element_ty), mask=real)
        tl.store(low + half, second.to(cache.dtype.element_ty), mask=real)


@triton.jit
def kv_write(
    k,  # T[tokens, KV_HEADS * WIDTH]
    v,
    slots,  # i32[tokens]
    positions,  # i32[tokens]; None: keys are rotated already
    table,  # f32[max_seq_len, WIDTH], cosines then sines; None with positions
    k_cache,  # C[pool_blocks, KV_HEADS, 32, WIDTH]; fp8 as int8
    v_cache,
    k_scale,  # f32[pool_blocks, KV_HEADS, 32]; None without scales
    v_scale,
    KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,  # even
    HALF: tl.constexpr,  # WIDTH / 2 up to a power of two
    LARGEST: tl.constexpr,  # finite number of T
    CACHE: tl.constexpr,
):
    """runtime.cuda_contract.KV_WRITE_OP, with the rotation of keys in front if there are positions.

    Grid: (tokens, KV_HEADS). Rotary embedding, arXiv:2104.09864: elements i and i + WIDTH / 2.
    """
    token = tl.program_id(0)
    head = tl.program_id(1)
    half: tl.constexpr = WIDTH // 2
    lanes = tl.arange(0, HALF)
    real = lanes < half
    source = (token.to(tl.int64) * KV_HEADS + head) * WIDTH + lanes
    place = tl.load(slots + token).to(tl.int64)
    slot = (place // 32 * KV_HEADS + head) * 32 + place % 32
    first = tl.load(k + source, mask=real, other=0.0).to(tl.float32)
    second = tl.load(k + source + half, mask=real, other=0.0).to(tl.float32)
    if positions is not None:
        turn = table + tl.load(positions + token).to(tl.int64) * WIDTH + lanes
        cosine = tl.load(turn, mask=real, other=0.0)
        sine = tl.load(turn + half, mask=real, other=0.0)
        turned = first * cosine - second * sine
        second = second * cosine + first * sine
        first = turned
    first = finite(first, LARGEST)
    second = finite(second, LARGEST)
    _put(k_cache, k_scale, slot, first, second, lanes, real, WIDTH, CACHE)
    first = finite(tl.load(v + source, mask=real, other=0.0).to(tl.float32), LARGEST)
    second = finite(tl.load(v + source + half, mask=real, other=0.0).to(tl.float32), LARGEST)
    _put(v_cache, v_scale, slot, first, second, lanes, real, WIDTH, CACHE)


@triton.jit
def kv_store(
    source,
    slots,
    cache,
    source_tokens,
    pool_blocks,
    KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,  # WIDTH up to a power of two
    HEADS_PADDED: tl.constexpr,
):
    """runtime.cuda_contract.KV_STORE; elements are integers of the cache type's size."""
    token = tl.program_id(0)
    half = tl.program_id(1).to(tl.int64)
    place = tl.load(slots + token).to(tl.int64)
    heads = tl.arange(0, HEADS_PADDED)[:, None]
    lanes = tl.arange(0, PADDED)[None, :]
    real = (heads < KV_HEADS) & (lanes < WIDTH)
    read = ((half * source_tokens + token) * KV_HEADS + heads) * WIDTH + lanes
    page = (half * pool_blocks + place // 32) * KV_HEADS + heads
    written = (page * 32 + place % 32) * WIDTH + lanes
    tl.store(cache + written, tl.load(source + read, mask=real, other=0), mask=real)


@triton.jit
def kv_write_op(
    k,
    v,
    slots,
    k_cache,
    v_cache,
    k_scale,
    v_scale,
    k_written,
    v_written,
    k_scale_written,
    v_scale_written,
    KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    LARGEST: tl.constexpr,
    CACHE: tl.constexpr,
):
    """`kv_write` as TensorRT calls a plugin: inputs, then outputs, which are the same caches."""
    kv_write(
        k,
        v,
        slots,
        None,
        None,
        k_written,
        v_written,
        k_scale_written,
        v_scale_written,
        KV_HEADS,
        WIDTH,
        HALF,
        LARGEST,
        CACHE,
    )
