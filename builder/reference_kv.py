"""The reference's KV cache: blocks of 32 tokens by id, and the facts of a step that find them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..runtime.session import Batch
from .quantize.rotation import block_of, rotate

Float32Array = npt.NDArray[np.float32]

BLOCK_TOKENS = 32
KV_DTYPES = ("f32", "bf16", "f16", "fp8", "int8")
_FP8_MAX = 448.0  # of e4m3


@dataclass(frozen=True)
class StepFacts:
    """A batch, and what follows from it for every token.

    Raises ValueError for a batch that contradicts itself.
    """

    batch: Batch
    max_seq_len: int

    def __post_init__(self) -> None:
        batch = self.batch
        starts, past, tables = batch.seq_starts, batch.past_tokens, batch.block_tables
        if len(starts) != len(past) + 1 or starts[0] != 0 or starts[-1] != len(batch.token_ids):
            raise ValueError("seq_starts do not cover the tokens")
        if np.any(np.diff(starts) < 1) or np.any(past < 0):
            raise ValueError("a sequence of the step has no tokens, or a negative past")
        totals = past + np.diff(starts)
        if totals.max(initial=0) > self.max_seq_len:
            raise ValueError(f"a sequence is longer than max_seq_len {self.max_seq_len}")
        needed = -(-totals // BLOCK_TOKENS)
        for table, count in zip(tables, needed, strict=True):
            if count > len(table) or np.any(table[:count] < 0):
                raise ValueError(f"a sequence needs {count} KV blocks, its table is {table}")
        if np.any(batch.logit_rows < 0) or np.any(batch.logit_rows >= len(batch.token_ids)):
            raise ValueError("logit_rows point outside the step")

    @cached_property
    def sequences(self) -> npt.NDArray[np.int64]:
        """The sequence of each token, [tokens]."""
        return np.repeat(np.arange(len(self.batch.past_tokens)), np.diff(self.batch.seq_starts))

    @cached_property
    def positions(self) -> npt.NDArray[np.int32]:
        """The position of each token in its sequence, [tokens]."""
        own = np.arange(len(self.batch.token_ids)) - self.batch.seq_starts[self.sequences]
        return (own + self.batch.past_tokens[self.sequences]).astype(np.int32)

    @cached_property
    def slots(self) -> npt.NDArray[np.int64]:
        """Where each token's keys and values stand: block id * 32 + place in the block."""
        blocks = self.batch.block_tables[self.sequences, self.positions // BLOCK_TOKENS]
        return blocks.astype(np.int64) * BLOCK_TOKENS + self.positions % BLOCK_TOKENS


class ReferenceKv:
    """Keys and values of every layer, f32, rounded to `kv_dtype` when they are written.

    It grows with the largest block id it meets. int8 has one scale a token and head; CPU engines
    rotate keys before they round them so, GPU engines do not.
    """

    def __init__(self, kv_dtype: str, *, rotate_keys: bool = True) -> None:
        if kv_dtype not in KV_DTYPES:
            raise ValueError(f"kv_dtype is {kv_dtype!r}; allowed are {', '.join(KV_DTYPES)}")
        self._kv_dtype = kv_dtype
        self._round_keys = round_keys if rotate_keys else round_kv
        self._layers: dict[int, tuple[Float32Array, Float32Array]] = {}  # [slots, kv_heads, d]

    def write(self, layer: int, step: StepFacts, k: Float32Array, v: Float32Array) -> None:
        """Store [tokens, kv_heads, d] of the step's tokens."""
        slots = step.slots
        blocks = int(slots.max(initial=0)) // BLOCK_TOKENS + 1
        pair = self._layers.get(layer)
        if pair is None or len(pair[0]) < blocks * BLOCK_TOKENS:
            pair = self._grown(pair, blocks, k.shape[1:])
            self._layers[layer] = pair
        pair[0][slots] = self._round_keys(k, self._kv_dtype)
        pair[1][slots] = round_kv(v, self._kv_dtype)

    def read(self, layer: int, step: StepFacts, sequence: int) -> tuple[Float32Array, Float32Array]:
        """Return all keys and values of a sequence, the step's included: [kv_heads, total, d]."""
        starts = step.batch.seq_starts
        total = int(step.batch.past_tokens[sequence] + starts[sequence + 1] - starts[sequence])
        table = step.batch.block_tables[sequence, : -(-total // BLOCK_TOKENS)].astype(np.int64)
        slots = (table[:, None] * BLOCK_TOKENS + np.arange(BLOCK_TOKENS)).reshape(-1)[:total]
        keys, values = self._layers[layer]
        return (
            np.ascontiguousarray(keys[slots].transpose(1, 0, 2)),
            np.ascontiguousarray(values[slots].transpose(1, 0, 2)),
        )

    @staticmethod
    def _grown(
        pair: tuple[Float32Array, Float32Array] | None, blocks: int, heads: tuple[int, ...]
    ) -> tuple[Float32Array, Float32Array]:
        held = 0 if pair is None else len(pair[0])
        slots = max(blocks * BLOCK_TOKENS, 2 * held)
        # NaN: reading what was never written must not go unseen.
        fresh = tuple(np.full((slots, *heads), np.nan, np.float32) for _ in range(2))
        if pair is not None:
            for new, old in zip(fresh, pair, strict=True):
                new[:held] = old
        return fresh[0], fresh[1]


def round_keys(array: Float32Array, kv_dtype: str) -> Float32Array:
    """Return [tokens, kv_heads, d] as a cache of that type gives keys back: int8 rotates them."""
    if kv_dtype != "int8":
        return round_kv(array, kv_dtype)
    block = block_of(array.shape[-1])
    return rotate(round_kv(rotate(array, block), kv_dtype), block)


def round_kv(array: Float32Array, kv_dtype: str) -> Float32Array:
    """Return [tokens, kv_heads, d] as a cache of that type gives values back."""
    if kv_dtype == "bf16":
        return array.astype(ml_dtypes.bfloat16).astype(np.float32)
    if kv_dtype == "f16":
        return array.astype(np.float16).astype(np.float32)
    if kv_dtype == "fp8":
        return (
            np.clip(array, -_FP8_MAX, _FP8_MAX).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
        )
    if kv_dtype == "int8":
        scales = np.abs(array).max(axis=-1, keepdims=True) / np.float32(127.0)
        divisor = np.where(scales > 0, scales, np.float32(1.0))
        return np.clip(np.rint(array / divisor), -127, 127) * scales
    return array
