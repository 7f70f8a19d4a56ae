"""Paged attention and the KV cache's formats in plain numpy: what plugins/cuda must give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from enginewright.plugins.cuda.variants import AttentionShape

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Caches:
    """Keys and values as numbers, f64[blocks, kv_heads, 32, width]."""

    keys: Array
    values: Array


def encode(x: Array, dtype: str) -> tuple[Array, Array | None]:
    """Return f32 numbers as a cache stores them, fp8 as its bits, and the scales of int8."""
    if dtype == "int8":
        scales = np.abs(x).max(axis=-1) / np.float32(127)
        divisor = np.where(scales > 0, scales, np.float32(1))[..., None]
        return np.clip(np.rint(x / divisor), -127, 127).astype(np.int8), scales
    if dtype == "fp8":
        return np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.int8), None
    kinds = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
    return x.astype(kinds[dtype]), None


def decode(stored: Array, scales: Array | None, dtype: str) -> Array:
    """Return what a cache stores as f64."""
    if dtype == "fp8":
        stored = stored.view(ml_dtypes.float8_e4m3fn)
    wide = stored.astype(np.float64)
    return wide if scales is None else wide * scales[..., None]


def attend(
    shape: AttentionShape,
    q: Array,
    seq_starts: Array,
    past_tokens: Array,
    block_tables: Array,
    caches: Caches,
    sinks: Array | None,
) -> Array:
    """Return f64[tokens, heads * width]."""
    group = shape.heads // shape.kv_heads
    out = np.zeros((len(q), shape.heads, shape.width))
    for sequence, past in enumerate(past_tokens):
        begin, end = int(seq_starts[sequence]), int(seq_starts[sequence + 1])
        for token in range(begin, end):
            position = int(past) + token - begin
            first = max(0, position - shape.window + 1) if shape.window else 0
            at = np.arange(first, position + 1)
            block = block_tables[sequence, at // 32]
            for head in range(shape.heads):
                query = q[token].reshape(shape.heads, -1)[head]
                scores = caches.keys[block, head // group, at % 32] @ query * shape.scale
                if shape.softcap:
                    scores = shape.softcap * np.tanh(scores / shape.softcap)
                logits = scores if sinks is None else np.append(scores, sinks[head])
                weights = np.exp(logits - logits.max())
                weights /= weights.sum()
                values = caches.values[block, head // group, at % 32]
                out[token, head] = weights[: len(values)] @ values
    return out.reshape(len(q), -1)


def turn(x: Array, turns: Array) -> Array:
    """Return rotated heads; `turns` are cosines then sines on the last axis."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    cosine, sine = turns[..., :half], turns[..., half:]
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)
