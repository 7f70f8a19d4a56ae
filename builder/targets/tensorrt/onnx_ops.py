"""What the custom ops of the plugin form mean: numpy, in ONNX's reference evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx.reference.op_run import OpRun

from ....runtime.cuda_contract import BLOCK_TOKENS, DOMAIN
from ...reference_kv import round_kv

Array = npt.NDArray[Any]
_INT8_MAX = np.float32(127.0)
_FP8_MAX = np.float32(448.0)


def kv_write(k: Array, v: Array, slots: Array, caches: list[Array], heads: int, width: int) -> None:
    """Put [tokens, heads * width] into pages [blocks, heads, 32, width], in place.

    `caches` are keys, values and, for int8, the scales of both.
    """
    blocks, places = slots // BLOCK_TOKENS, slots % BLOCK_TOKENS
    for index, new in enumerate((k, v)):
        rows = new.reshape(-1, heads, width).astype(np.float32)
        if caches[index].dtype == np.int8:
            scales = np.abs(rows).max(axis=-1) / _INT8_MAX
            divisor = np.where(scales > 0, scales, np.float32(1.0))[..., None]
            caches[2 + index][blocks, :, places] = scales
            rows = np.clip(np.rint(rows / divisor), -_INT8_MAX, _INT8_MAX)
        elif caches[index].dtype.itemsize == 1:
            rows = round_kv(rows, "fp8")
        caches[index][blocks, :, places] = rows.astype(caches[index].dtype)


def paged_attention(
    q: Array,
    seq_starts: Array,
    past_tokens: Array,
    block_tables: Array,
    caches: list[Array],
    heads: int,
    kv_heads: int,
    width: int,
    scale: float,
    window: int,
) -> Array:
    """Return causal attention of packed queries over their pages, [tokens, heads * width]."""
    out = np.zeros(q.shape, np.float32)
    for sequence, past in enumerate(past_tokens):
        begin, end = seq_starts[sequence : sequence + 2]
        total = int(past + end - begin)
        table = block_tables[sequence, : -(-total // BLOCK_TOKENS)]
        keys, values = (_rows(caches, index, table, total) for index in (0, 1))
        queries = q[begin:end].astype(np.float32).reshape(end - begin, kv_heads, -1, width)
        scores = np.einsum("tkgd,ksd->kgts", queries, keys) * np.float32(scale)
        distance = (past + np.arange(end - begin))[:, None] - np.arange(total)
        hidden = (distance < 0) | ((distance >= window) if window else False)
        scores = np.where(hidden, -np.inf, scores)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = np.einsum("kgts,ksd->tkgd", weights, values)
        out[begin:end] = mixed.reshape(end - begin, heads * width)
    return out.astype(q.dtype)


def _rows(caches: list[Array], index: int, table: Array, total: int) -> Array:
    """Return a sequence's keys or values, f32[heads, total, width]."""
    pages = caches[index][table].astype(np.float32)  # [blocks, heads, 32, width]
    if len(caches) > 2:
        pages *= caches[2 + index][table][..., None]
    pages = pages.swapaxes(0, 1)
    return pages.reshape(pages.shape[0], -1, pages.shape[-1])[:, :total]


class KvWrite(OpRun):
    """runtime.cuda_contract.KV_WRITE_OP; its outputs are its inputs, written in place."""

    op_domain = DOMAIN

    def _run(
        self,
        k: Array,
        v: Array,
        slots: Array,
        *caches: Array,
        num_kv_heads: int,
        head_dim: int,
        plugin_namespace: str,
    ) -> tuple[Array, ...]:
        kv_write(k, v, slots, list(caches), num_kv_heads, head_dim)
        return caches


class PagedAttention(OpRun):
    """runtime.cuda_contract.PAGED_ATTENTION_OP."""

    op_domain = DOMAIN

    def _run(
        self,
        q: Array,
        seq_starts: Array,
        past_tokens: Array,
        block_tables: Array,
        *caches: Array,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        window: int,
        plugin_namespace: str,
    ) -> tuple[Array]:
        shape = (num_heads, num_kv_heads, head_dim)
        facts = (seq_starts, past_tokens, block_tables, list(caches))
        return (paged_attention(q, *facts, *shape, scale, window),)


class KvWriteWithScales(KvWrite):
    """KvWrite into an int8 cache."""


class PagedAttentionWithScales(PagedAttention):
    """PagedAttention over an int8 cache."""


CUSTOM_OPS: list[type[OpRun]] = [
    KvWrite,
    KvWriteWithScales,
    PagedAttention,
    PagedAttentionWithScales,
]
