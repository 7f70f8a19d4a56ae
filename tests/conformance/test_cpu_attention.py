"""The paged KV cache and attention kernels against numpy, for every type of cache."""

from __future__ import annotations

import dataclasses
from ctypes import c_float, c_int32, c_int64, c_void_p
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from enginewright.builder.reference_kv import round_keys, round_kv
from enginewright.builder.targets.cpu.target import kv_block_bytes, model_facts
from tests.support.cpu_engine import FAMILY_SPECS
from tests.support.cpu_kernels import HEAD_DIM, HEADS, KV_HEADS, Kernels, address

LAYERS, BLOCK, SCALE = 2, 32, 0.21
KV_DTYPES = ("f32", "bf16", "int8")


class Cache:
    """A pool of blocks filled through the kernel, and what numpy says stands in it."""

    def __init__(self, kernels: Kernels, kv: str, positions: int, seed: int = 0) -> None:
        self.kernels, self.kv = kernels, kv
        size = getattr(kernels.library, f"test_kv_head_bytes_{kv}")
        size.restype = c_int64
        self.block_bytes = size() * LAYERS * KV_HEADS
        generator = np.random.default_rng(seed)
        count = -(-positions // BLOCK)
        self.table = generator.permutation(count + 3)[:count].astype(np.int32)
        # 0xFF everywhere: a NaN, should anything be read that was never written
        self._pool = np.full((count + 3) * self.block_bytes + 64, 0xFF, np.uint8)
        self._skip = -address(self._pool) % 64  # pyright: ignore[reportOptionalOperand]
        self.pool = self._pool[self._skip :]
        shape = (positions, KV_HEADS, HEAD_DIM)
        self.keys, self.values = (
            generator.standard_normal(shape).astype(np.float32) for _ in range(2)
        )
        self.write()

    def write(self) -> None:
        """Put all keys and values into the pool."""
        write = getattr(self.kernels.library, f"test_kv_write_{self.kv}")
        for position, (key, value) in enumerate(zip(self.keys, self.values, strict=True)):
            write(
                c_void_p(address(self.pool)),
                c_int64(self.block_bytes),
                c_int32(self.table[position // BLOCK]),
                c_int32(1),
                c_int32(position % BLOCK),
                c_void_p(address(key)),
                c_void_p(address(value)),
            )

    def attend(self, q: npt.NDArray[np.float32], start: int, count: int, window: int) -> Any:
        """Attention of queries at positions from `start` on, `count` tokens in a work item."""
        out = np.full_like(q, np.nan)
        getattr(self.kernels.library, f"test_attend_{self.kv}")(
            c_void_p(address(self.pool)),
            c_int64(self.block_bytes),
            c_void_p(address(self.table)),
            c_int32(1),
            c_void_p(address(q)),
            c_void_p(address(out)),
            c_int32(len(q)),
            c_int32(count),
            c_int32(start),
            c_float(SCALE),
            c_int32(window),
        )
        return out

    def expected(self, q: npt.NDArray[np.float32], start: int, window: int) -> Any:
        """Attention in f64 over the rounded cache; int8 rounds queries and weights too."""
        keys = round_keys(self.keys, self.kv).astype(np.float64)
        values = round_kv(self.values, self.kv).astype(np.float64)
        queries = round_keys(q, self.kv) if self.kv == "int8" else q
        out = np.empty(q.shape)
        for t, query in enumerate(queries.astype(np.float64)):
            last = start + t + 1
            first = max(0, last - window) if window else 0
            for head in range(HEADS):
                at = head // (HEADS // KV_HEADS)
                scores = keys[first:last, at] @ query[head] * SCALE
                weights = np.exp(scores - scores.max())
                seen = values[first:last, at]
                total = weights.sum()
                if self.kv == "int8":
                    weights = self.rounded(weights, np.abs(seen).max(axis=1), first)
                out[t, head] = weights @ seen / total
        return out

    def rounded(
        self, weights: npt.NDArray[np.float64], sizes: npt.NDArray[np.float64], first: int
    ) -> npt.NDArray[np.float64]:
        """Weights as the kernel rounds them, block by block, times the values' scales."""
        levels = 255 if self.kernels.level.offset else 127
        rounded = np.empty_like(weights)
        position = first
        while position < first + len(weights):
            end = min(position // BLOCK * BLOCK + BLOCK, first + len(weights))
            part = slice(position - first, end - first)
            unit = (weights[part] * sizes[part]).max() / levels
            rounded[part] = np.rint(weights[part] * sizes[part] / unit) * unit / sizes[part]
            position = end
        return rounded


def queries(count: int, seed: int = 9) -> npt.NDArray[np.float32]:
    generator = np.random.default_rng(seed)
    return 3 * generator.standard_normal((count, HEADS, HEAD_DIM)).astype(np.float32)


@pytest.mark.parametrize("kv", KV_DTYPES)
@pytest.mark.parametrize(
    ("start", "tokens", "window"),
    [
        (0, 1, 0),
        (0, 20, 0),
        (31, 3, 0),
        (63, 1, 0),
        (500, 30, 0),  # across the border of a split
        (1030, 9, 0),
        (20, 30, 7),
        (40, 40, 33),
        (500, 30, 40),  # the first split is partly seen by some rows and not by others
        (600, 9, 50),
        (600, 9, 88),
        (1030, 5, 1),
        (1030, 9, 1000),
    ],
)
def test_attention(kernels: Kernels, kv: str, start: int, tokens: int, window: int) -> None:
    cache = Cache(kernels, kv, start + tokens)
    q = queries(tokens)
    found = cache.attend(q, start, tokens, window)
    expected = cache.expected(q, start, window)
    # int8: a key, value, query or weight near a tie may be rounded the other way
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-2 if kv == "int8" else 5e-6)
    assert np.median(np.abs(found - expected)) < (6e-5 if kv == "int8" else 2e-6)


@pytest.mark.parametrize("kv", KV_DTYPES)
@pytest.mark.parametrize("window", [0, 45])
def test_a_query_has_the_same_bits_in_any_company(kernels: Kernels, kv: str, window: int) -> None:
    cache = Cache(kernels, kv, 540)
    q = queries(60)
    alone = cache.attend(q, 480, 1, window)
    for count in (2, 3, 5, 8):
        together = cache.attend(q, 480, count, window)
        np.testing.assert_array_equal(together.view(np.uint32), alone.view(np.uint32))


@pytest.mark.parametrize("kv", KV_DTYPES)
def test_what_lies_behind_a_position_has_no_say(kernels: Kernels, kv: str) -> None:
    """The same query before and after later tokens were written into its own block."""
    short, long = Cache(kernels, kv, 37), Cache(kernels, kv, 64)
    short.keys, short.values = long.keys[:37], long.values[:37]
    short.write()
    q = queries(1)
    found, expected = short.attend(q, 36, 1, 0), long.attend(q, 36, 1, 0)
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("kv", KV_DTYPES)
def test_a_token_that_is_not_finite_spoils_its_own_sequence_only(kernels: Kernels, kv: str) -> None:
    cache = Cache(kernels, kv, 40)
    q = queries(2)
    q[1, 0, 3] = np.nan
    found = cache.attend(q, 38, 2, 0)
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1, 0]).all()
    assert np.isfinite(found[1, 1:]).all()


def test_the_manifest_and_the_kernels_agree_about_the_size_of_a_block(kernels: Kernels) -> None:
    facts = model_facts(FAMILY_SPECS[0].network(), FAMILY_SPECS[0].build)
    for kv in KV_DTYPES:
        own = dataclasses.replace(
            facts, num_layers=LAYERS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, kv_dtype=kv
        )
        assert kv_block_bytes(own, kernels.level) == Cache(kernels, kv, 1).block_bytes
