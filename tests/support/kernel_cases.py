"""Every kernel of plugins/cuda against numpy: cases, and how far their figures may be off.

Whoever runs them says what launches a kernel: Triton's interpreter (triton_launch.py), or a device
(device_launch.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

from enginewright.builder.reference_ops import quantize
from enginewright.plugins.cuda.launch import attention_grid, merge_grid, splits_of
from enginewright.plugins.cuda.variants import (
    AttentionShape,
    attention_variant,
    kv_write_variant,
    merge_variant,
    norm_variant,
    session_variants,
)

from .attention_twin import Caches, attend, decode, encode, turn
from .kernel_sample_cases import Array, Launch, run_philox, sample_cases

Case = Callable[[], dict[str, Any]]
NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}

ATTENTION = {
    "f32": 1e-6,
    "f16": 2e-3,
    "bf16": 0.02,
    "f16-fp8": 2e-3,
    "f16-int8": 4e-3,
    "bf16-fp8": 0.02,
    "bf16-int8": 0.03,
    "window": 2e-3,
    "softcap": 2e-3,
    "sinks": 2e-3,
    "heads-of-three": 1e-6,
    "one-head": 1e-6,
    "all-of-it": 1e-6,
}
"""Largest errors against f64; in f16 and bf16 probabilities and outputs are rounded to them."""

NORM = {"f32": 1e-6, "f16": 4e-3, "bf16": 0.05}


def largest_error(name: str) -> float:
    """Return how far the numbers of a case may be off."""
    kernel, _, rest = name.partition("-")
    if kernel == "attention":
        return ATTENTION.get(rest.partition("-")[2], 0.0)
    if kernel == "norm":
        return 1e-6 if "int8" in rest else NORM[rest.partition("-")[0]]
    return 1e-5


def check(name: str, figures: dict[str, Any], slack: float = 1.0) -> None:
    """Assert that the figures of a case are those of a kernel that does what it should.

    `slack` multiplies the errors that are allowed.
    """
    assert "failed" not in figures, figures["failed"]
    assert figures, "a case without figures"
    assert figures.get("error", 0.0) <= slack * largest_error(name)
    assert [figures.get(what, 0) for what in ("wrong", "refused", "steps")] == [0, 0, 0]
    assert figures.get("same", True) is True


def all_cases(launch: Launch) -> dict[str, Case]:
    """Return every case by its name."""
    cases: dict[str, Case] = dict(attention_cases(launch))
    cases |= write_cases(launch)
    cases["attention-company"] = lambda: alone_and_together(launch)
    for kv_dtype in ("f16", "f32", "fp8", "int8"):
        cases[f"kv_store-{kv_dtype}"] = lambda k=kv_dtype: run_store(launch, k)
    cases |= norm_cases(launch)
    cases |= sample_cases(launch)
    cases["sample-philox"] = lambda: run_philox(launch)
    return cases


# Attention


@dataclasses.dataclass(frozen=True)
class Step:
    """Sequences as (past, count), over pages in a scattered order."""

    sequences: tuple[tuple[int, int], ...]

    def facts(self, generator: np.random.Generator) -> tuple[Array, Array, Array, int]:
        past, counts = (np.array(x, np.int32) for x in zip(*self.sequences, strict=True))
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        needed = -(-(past + counts) // 32)
        ids = generator.permutation(int(needed.sum()) + 2).astype(np.int32)
        tables = np.full((len(past), int(needed.max())), int(ids[-1]), np.int32)
        at = 0
        for row, count in zip(tables, needed, strict=True):
            row[:count] = ids[at : at + count]
            at += count
        return starts, past, tables, len(ids)


MIXED = Step(((0, 9), (70, 1), (31, 2), (0, 1), (40, 21)))
GENERATION = Step(((0, 1), (31, 1), (300, 1), (64, 1)))


def make_caches(
    shape: AttentionShape, blocks: int, generator: np.random.Generator
) -> tuple[Caches, list[Array]]:
    size = (blocks, shape.kv_heads, 32, shape.width)
    raw = [generator.standard_normal(size).astype(np.float32) for _ in range(2)]
    stored = [encode(x, shape.cache) for x in raw]
    caches = Caches(*(decode(*pair, shape.cache) for pair in stored))
    arguments = [x for x, _ in stored]
    if shape.has_scales:
        arguments += [s for _, s in stored if s is not None]
    return caches, arguments


def run_attention(launch: Launch, shape: AttentionShape, step: Step, split: bool) -> dict[str, Any]:
    generator = np.random.default_rng(5)
    starts, past, tables, blocks = step.facts(generator)
    caches, arguments = make_caches(shape, blocks, generator)
    tokens = int(starts[-1])
    q = generator.standard_normal((tokens, shape.heads * shape.width)).astype(NUMPY[shape.compute])
    sinks = generator.standard_normal(shape.heads).astype(np.float32) if shape.sinks else None
    out = np.zeros_like(q)
    seqs, width = tables.shape
    variant = attention_variant(shape, split)
    grid = attention_grid(shape, tokens, seqs, width if split else 0)
    inputs = (q, starts, past, tables, *arguments)
    with_sinks = () if sinks is None else (sinks,)
    if split:
        splits = splits_of(width)
        partial = np.full((tokens, shape.heads, splits, shape.width), np.nan, np.float32)
        marks = np.full((tokens, shape.heads, splits, 2), np.nan, np.float32)
        launch(variant, grid, *inputs, seqs, width, partial, marks)
        launch(
            merge_variant(shape),
            merge_grid(shape, tokens),
            *(partial, marks, *with_sinks, splits, out),
        )
    else:
        launch(variant, grid, *inputs, *with_sinks, seqs, width, out)
    expected = attend(shape, q.astype(np.float64), starts, past, tables, caches, sinks)
    return {"error": float(np.abs(out.astype(np.float64) - expected).max())}


def attention_cases(launch: Launch) -> Iterator[tuple[str, Case]]:
    base = AttentionShape(4, 2, 32, "f16", "f16", scale=0.2)
    shapes = {"f16": base}
    for compute, cache in (
        ("f32", "f32"),
        ("bf16", "bf16"),
        ("f16", "fp8"),
        ("f16", "int8"),
        ("bf16", "fp8"),
        ("bf16", "int8"),
    ):
        name = compute if compute == cache else f"{compute}-{cache}"
        shapes[name] = dataclasses.replace(base, compute=compute, cache=cache)
    shapes |= {
        "window": dataclasses.replace(base, window=37),
        "softcap": dataclasses.replace(base, softcap=1.5),
        "sinks": dataclasses.replace(base, sinks=True),
        "heads-of-three": AttentionShape(6, 2, 24, "f32", "f32", scale=0.2),
        "one-head": AttentionShape(1, 1, 8, "f32", "f32", scale=0.3),
        "all-of-it": AttentionShape(
            5, 1, 48, "f32", "int8", scale=0.2, window=50, softcap=2.0, sinks=True
        ),
    }
    for name, shape in shapes.items():
        yield f"attention-context-{name}", lambda s=shape: run_attention(launch, s, MIXED, False)
        yield f"attention-split-{name}", lambda s=shape: run_attention(launch, s, GENERATION, True)


def alone_and_together(launch: Launch) -> dict[str, Any]:
    """A sequence's bits, computed alone and in company, by both kernels."""
    shape = AttentionShape(4, 2, 32, "f32", "f32", scale=0.2)
    generator = np.random.default_rng(9)
    starts, past, tables, blocks = GENERATION.facts(generator)
    _, arguments = make_caches(shape, blocks, generator)
    q = generator.standard_normal((4, 128)).astype(np.float32)
    same = True
    for split in (False, True):
        together = _outputs(launch, shape, split, q, starts, past, tables, arguments)
        for i in range(4):
            blocks_of_one = int(past[i]) // 32 + 1
            table = tables[i : i + 1, :blocks_of_one].copy()
            first = np.array([0, 1], np.int32)
            one = _outputs(
                launch,
                shape,
                split,
                q[i : i + 1].copy(),
                first,
                past[i : i + 1].copy(),
                table,
                arguments,
            )
            same &= one.tobytes() == together[i : i + 1].tobytes()
    return {"same": bool(same)}


def _outputs(launch: Launch, shape: AttentionShape, split: bool, q: Array, *facts: Any) -> Array:
    starts, past, tables, arguments = facts
    tokens, (seqs, width) = len(q), tables.shape
    variant = attention_variant(shape, split)
    grid = attention_grid(shape, tokens, seqs, width if split else 0)
    out = np.zeros_like(q)
    inputs = (q, starts, past, tables, *arguments, seqs, width)
    if not split:
        launch(variant, grid, *inputs, out)
        return out
    splits = splits_of(width)
    partial = np.zeros((tokens, shape.heads, splits, shape.width), np.float32)
    marks = np.zeros((tokens, shape.heads, splits, 2), np.float32)
    launch(variant, grid, *inputs, partial, marks)
    launch(merge_variant(shape), merge_grid(shape, tokens), partial, marks, splits, out)
    return out


# KV writing


def run_write(launch: Launch, shape: AttentionShape, rope: bool, plugin: bool) -> dict[str, Any]:
    generator = np.random.default_rng(2)
    tokens, blocks = 7, 4
    size = (tokens, shape.kv_heads, shape.width)
    spread = np.exp2(generator.integers(-12, 8, size)) * generator.standard_normal(size)
    k, v = (x.astype(NUMPY[shape.compute]) for x in (spread, spread[::-1].copy()))
    k[0, 0, 1] = np.nan
    v[3, 0] = 0
    slots = generator.permutation(blocks * 32)[:tokens].astype(np.int32)
    positions = generator.integers(0, 50, tokens).astype(np.int32)
    angles = generator.uniform(0, 6, (50, shape.width // 2))
    table = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    pages = (blocks, shape.kv_heads, 32, shape.width)
    empty, _ = encode(np.zeros(pages, np.float32), shape.cache)
    caches = [empty.copy(), empty.copy()]
    if shape.has_scales:
        caches += [np.zeros(pages[:3], np.float32) for _ in range(2)]
    facts = (positions, table) if rope else ()
    variant = kv_write_variant(shape, plugin, rope)
    twice = caches if plugin else []
    launch(variant, (tokens, shape.kv_heads), k, v, slots, *facts, *caches, *twice)
    wide = [np.nan_to_num(x.astype(np.float32), nan=0.0) for x in (k, v)]
    if rope:
        raw = k.astype(np.float32)
        wide[0] = np.nan_to_num(turn(raw, table[positions][:, None]), nan=0.0)
    wrong, touched = 0, np.zeros((blocks, 32), bool)
    touched[slots // 32, slots % 32] = True
    for index, rows in enumerate(wide):
        expected, scales = encode(rows, shape.cache)
        found = caches[index][slots // 32, :, slots % 32]
        wrong += count_wrong(expected, found)
        if shape.has_scales:
            wrong += int((caches[2 + index][slots // 32, :, slots % 32] != scales).sum())
        wrong += int(np.count_nonzero(caches[index].swapaxes(1, 2)[~touched]))
    return {"wrong": wrong, "of": 2 * k.size}


def count_wrong(expected: Array, found: Array) -> int:
    """How many elements differ; bf16 may be a step off, since the interpreter cuts bits off."""
    bits = {1: np.int8, 2: np.int16, 4: np.int32}[expected.dtype.itemsize]
    steps = np.abs(expected.view(bits).astype(np.int64) - found.view(bits).astype(np.int64))
    return int((steps > (expected.dtype == ml_dtypes.bfloat16)).sum())


def write_cases(launch: Launch) -> Iterator[tuple[str, Case]]:
    for cache in ("f32", "f16", "bf16", "fp8", "int8"):
        compute = cache if cache in NUMPY else "f16"
        shape = AttentionShape(4, 2, 24, compute, cache)
        yield f"kv_write-{cache}", lambda s=shape: run_write(launch, s, False, False)
        yield f"kv_write-{cache}-rope", lambda s=shape: run_write(launch, s, True, False)
        yield f"kv_write-{cache}-plugin", lambda s=shape: run_write(launch, s, False, True)


def run_store(launch: Launch, kv_dtype: str) -> dict[str, Any]:
    generator = np.random.default_rng(1)
    layers, tokens, heads, width, pool, padding = 2, 5, 3, 24, 4, 3
    wrong = 0
    slots = generator.permutation(pool * 32)[:tokens].astype(np.int32)
    for variant in session_variants(kv_dtype, heads, width, True)[1:]:
        kind = {"*i8": np.int8, "*i16": np.int16, "*i32": np.int32}[variant.signature["cache"]]
        lanes = int(variant.constants["WIDTH"] or 0)
        size = (2 * layers, tokens + padding, heads, lanes)
        source = generator.integers(-120, 120, size).astype(kind)
        cache = np.zeros((2 * layers, pool, heads, 32, lanes), kind)
        expected = cache.copy()
        expected[:, slots // 32, :, slots % 32] = source[:, :tokens].swapaxes(0, 1)
        launch(variant, (tokens, 2 * layers), source, slots, cache, tokens + padding, pool)
        wrong += int((cache != expected).sum())
    return {"wrong": wrong}


# Norm


def run_norm(
    launch: Launch, compute: str, group: int, residual: bool, width: int = 96
) -> dict[str, Any]:
    generator = np.random.default_rng(3)
    x, r = (generator.standard_normal((5, width)).astype(NUMPY[compute]) for _ in range(2))
    x[2], r[2] = 0, 0
    weight = generator.standard_normal(width).astype(np.float32)
    total = np.zeros_like(x)
    normed = np.zeros_like(x, np.int8 if group else None)
    scales = np.zeros((5, width // group), np.float32) if group else None
    variant = norm_variant(width, compute, 1e-5, group, residual)
    arguments = (x, r, weight, total, normed) if residual else (x, weight, normed)
    launch(variant, (5,), *arguments, *([scales] if group else []))
    summed = x.astype(np.float32) + (r.astype(np.float32) if residual else 0)
    wide = summed.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * weight
    wrong = count_wrong(summed.astype(total.dtype), total) if residual else 0
    if not group:
        return {"error": float(np.abs(normed.astype(np.float64) - expected).max()), "wrong": wrong}
    q = quantize(expected.astype(np.float32), {"group": group, "rotation": 0})
    assert scales is not None
    steps = np.abs(normed.astype(int).reshape(-1) - np.asarray(q.values, int).reshape(-1))
    error = np.abs(scales / np.where(q.scales > 0, q.scales, 1) - (q.scales > 0)).max()
    return {"error": float(error), "steps": int(steps.max()), "wrong": wrong}


def norm_cases(launch: Launch) -> Iterator[tuple[str, Case]]:
    for compute in NUMPY:
        for group in (0, 32):
            for residual in (False, True):
                name = f"norm-{compute}{'-int8' * bool(group)}{'-residual' * residual}"
                yield name, lambda c=compute, g=group, r=residual: run_norm(launch, c, g, r)
