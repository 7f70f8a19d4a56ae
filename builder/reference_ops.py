"""What each op means, in numpy: one function an op, over whole packed arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .quantize.rotation import rotate
from .reference_kv import ReferenceKv, StepFacts

Float32Array = npt.NDArray[np.float32]

_QUERY_ROWS = 256  # rows of a sequence whose scores are held at once


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """A Q8 value: int8 rows, and one f32 scale a group of `group` elements of a row.

    With a `rotation`, runs of that many elements were rotated before they were rounded.
    """

    values: npt.NDArray[np.int8]  # [.., K padded with zeros to whole groups]
    scales: Float32Array  # [.., groups]
    group: int
    width: int  # K
    rotation: int = 0

    def dequantize(self) -> Float32Array:
        """Return the rows as f32, [.., K], rotated back."""
        rows = self.values.astype(np.float32) * np.repeat(self.scales, self.group, axis=-1)
        return (rotate(rows, self.rotation) if self.rotation else rows)[..., : self.width]


Attrs = Mapping[str, Any]
Meaning = Callable[..., Any]


def embedding(ids: npt.NDArray[np.int32], table: Float32Array, attrs: Attrs) -> Float32Array:
    """Return table[ids]."""
    return table[ids]


def rms_norm(x: Float32Array, weight: Float32Array, attrs: Attrs) -> Float32Array:
    """Return x / sqrt(mean(x^2) + eps) * weight over each run of the weight's length.

    Root mean square layer normalization, arXiv:1910.07467.
    """
    runs = x.reshape(*x.shape[:-1], x.shape[-1] // weight.shape[0], weight.shape[0])
    mean = np.mean(np.square(runs), axis=-1, keepdims=True)
    normed: Float32Array = runs / np.sqrt(mean + np.float32(attrs["eps"])) * weight
    return normed.reshape(x.shape)


def linear(
    x: Float32Array | QuantizedRows,
    weight: Float32Array,
    bias: Float32Array | None,
    residual: Float32Array | None,
    attrs: Attrs,
) -> Float32Array:
    """Return x @ weight.T + bias, through the epilogue, plus the residual."""
    rows = x.dequantize() if isinstance(x, QuantizedRows) else x
    y = rows @ weight.T
    if bias is not None:
        y += bias
    if attrs["epilogue"] == "swiglu":
        y = swiglu(y, attrs)
    return y if residual is None else y + residual


def add(a: Float32Array, b: Float32Array, attrs: Attrs) -> Float32Array:
    """Return a + b."""
    return a + b


def mul(a: Float32Array, b: Float32Array, attrs: Attrs) -> Float32Array:
    """Return a * b."""
    return a * b


def silu(x: Float32Array, attrs: Attrs) -> Float32Array:
    """Return x / (1 + exp(-x)), arXiv:1702.03118."""
    with np.errstate(over="ignore"):  # exp(-x) is inf for x < -88, and the quotient then -0
        result: Float32Array = x / (np.float32(1.0) + np.exp(-x))
    return result


def swiglu(x: Float32Array, attrs: Attrs) -> Float32Array:
    """Return silu(first half) * second half of the last axis, arXiv:2002.05202."""
    half = x.shape[-1] // 2
    return silu(x[..., :half], attrs) * x[..., half:]


def rope(x: Float32Array, table: Float32Array, step: StepFacts, attrs: Attrs) -> Float32Array:
    """Rotate elements i and i + d/2 of each head by the angle of the token's position."""
    width = attrs["head_dim"]
    heads = x.reshape(len(x), -1, 2, width // 2)
    turns = table[step.positions].reshape(len(x), 1, 2, width // 2)
    first, second = heads[:, :, 0], heads[:, :, 1]
    cos, sin = turns[:, :, 0], turns[:, :, 1]
    turned = np.empty_like(heads)
    turned[:, :, 0] = first * cos - second * sin
    turned[:, :, 1] = second * cos + first * sin
    return turned.reshape(x.shape)


def gather_rows(x: Float32Array, step: StepFacts, attrs: Attrs) -> Float32Array:
    """Return the rows whose logits are wanted."""
    return x[step.batch.logit_rows]


def slice_last(x: Float32Array, attrs: Attrs) -> Float32Array:
    """Return `size` elements of the last axis from `start` on."""
    return x[..., attrs["start"] : attrs["start"] + attrs["size"]]


def quantize(x: Float32Array, attrs: Attrs) -> QuantizedRows:
    """Round each group of a row to int8: scale = max|x| / 127, q = round-half-even(x / scale).

    Rows are padded with zeros to whole groups, and rotated first if the op says so. A group of
    zeros has scale 0.
    """
    group, width, rotation = attrs["group"], x.shape[-1], attrs["rotation"]
    if rotation:
        x = rotate(x, rotation)
    short = -x.shape[-1] % group
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, short)]) if short else x
    groups = padded.reshape(*x.shape[:-1], padded.shape[-1] // group, group)
    scales = np.abs(groups).max(axis=-1) / np.float32(127.0)
    divisor = np.where(scales > 0, scales, np.float32(1.0))
    values = np.clip(np.rint(groups / divisor[..., None]), -127, 127).astype(np.int8)
    return QuantizedRows(values.reshape(padded.shape), scales, group, width, rotation)


def rms_norm_quantize(x: Float32Array, weight: Float32Array, attrs: Attrs) -> QuantizedRows:
    """Round what `rms_norm` gives."""
    return quantize(rms_norm(x, weight, attrs), attrs)


def linear_quantize(
    x: Float32Array | QuantizedRows, weight: Float32Array, bias: Float32Array | None, attrs: Attrs
) -> QuantizedRows:
    """Round what `linear` gives."""
    return quantize(linear(x, weight, bias, None, attrs), attrs)


def kv_write(
    k: Float32Array, v: Float32Array, step: StepFacts, attrs: Attrs, *, kv: ReferenceKv
) -> None:
    """Put keys and values of the step's tokens into their blocks."""
    heads = (len(k), attrs["num_kv_heads"], attrs["head_dim"])
    kv.write(attrs["layer"], step, k.reshape(heads), v.reshape(heads))


def attention(
    q: Float32Array, written: None, step: StepFacts, attrs: Attrs, *, kv: ReferenceKv
) -> Float32Array:
    """Return softmax(scale * q k^T) v of each token over its sequence's cache, up to itself.

    Query head h reads key head h // (num_heads / num_kv_heads) (arXiv:2305.13245). With a window w
    the query at position p sees positions p - w + 1 to p.
    """
    width, kv_heads = attrs["head_dim"], attrs["num_kv_heads"]
    per_kv_head = attrs["num_heads"] // kv_heads
    result = np.empty_like(q)
    for sequence in range(len(step.batch.past_tokens)):
        begin, end = step.batch.seq_starts[sequence : sequence + 2]
        keys, values = kv.read(attrs["layer"], step, sequence)  # [kv_heads, total, d]
        for first in range(begin, end, _QUERY_ROWS):
            rows = slice(first, min(first + _QUERY_ROWS, end))
            positions = step.positions[rows]
            total = int(positions[-1]) + 1
            heads = q[rows].reshape(-1, kv_heads, per_kv_head, width).transpose(1, 2, 0, 3)
            heads = heads.reshape(kv_heads, -1, width)  # 3-D and contiguous, so that BLAS is used
            scores = heads @ keys[:, :total].transpose(0, 2, 1)
            scores *= np.float32(attrs["scale"])
            _hide(scores.reshape(-1, len(positions), total), positions, attrs["window"])
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            mixed = scores @ values[:, :total]
            mixed /= scores.sum(axis=-1, keepdims=True)
            mixed = mixed.reshape(kv_heads, per_kv_head, -1, width).transpose(2, 0, 1, 3)
            result[rows] = mixed.reshape(-1, q.shape[-1])
    return result


def paged_attention(
    q: Float32Array,
    k: Float32Array,
    v: Float32Array,
    step: StepFacts,
    attrs: Attrs,
    *,
    kv: ReferenceKv,
) -> Float32Array:
    """Write the keys and values of the step, then attend."""
    kv_write(k, v, step, attrs, kv=kv)
    return attention(q, None, step, attrs, kv=kv)


def _hide(scores: Float32Array, positions: npt.NDArray[np.int32], window: int) -> None:
    """Set the scores [heads, rows, total] of keys that a row must not see to -inf, in place."""
    distance = positions[:, None] - np.arange(scores.shape[-1], dtype=np.int32)
    hidden = (distance < 0) | (distance >= window) if window else distance < 0
    np.copyto(scores, np.float32(-np.inf), where=hidden)


MEANINGS: Mapping[str, Meaning] = {
    "embedding": embedding,
    "rms_norm": rms_norm,
    "linear": linear,
    "add": add,
    "mul": mul,
    "silu": silu,
    "swiglu": swiglu,
    "rope": rope,
    "gather_rows": gather_rows,
    "slice": slice_last,
    "quantize": quantize,
    "rms_norm_quantize": rms_norm_quantize,
    "linear_quantize": linear_quantize,
}
"""Ops that are functions of their inputs and attributes."""

CACHE_MEANINGS: Mapping[str, Meaning] = {
    "kv_write": kv_write,
    "attention": attention,
    "paged_attention": paged_attention,
}
"""Ops that also read or write the KV cache."""
