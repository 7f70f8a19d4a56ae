"""Every kernel of plugins/cuda in Triton's interpreter against numpy: one JSON line a case.

Runs in a process of its own with TRITON_INTERPRET=1, since the interpreter and the compiler do not
share one: `python -m tests.support.triton_cases`. A line has the case's name and its figures.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import dataclasses
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl

from enginewright.builder.reference_ops import quantize
from enginewright.plugins.cuda import attention, kv_write, norm
from enginewright.plugins.cuda import sample as sample_module
from enginewright.plugins.cuda.launch import attention_grid, merge_grid, splits_of
from enginewright.plugins.cuda.variants import (
    AttentionShape,
    Variant,
    attention_variant,
    kv_write_variant,
    merge_variant,
    norm_variant,
    session_variants,
)
from enginewright.runtime.session import Sampling

from .attention_twin import Caches, attend, decode, encode, turn
from .generate import make_sampling
from .sampling_twin import choose, log_softmax, uniform

Array = npt.NDArray[Any]
NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
TL = {"fp32": tl.float32, "fp16": tl.float16, "bf16": tl.bfloat16}
MODULES = {"attention": attention, "kv_write": kv_write, "norm": norm, "sample": sample_module}
CASES: dict[str, Callable[[], dict[str, Any]]] = {}


def device(array: Array | None) -> Any:
    """Return a torch tensor over an array's memory."""
    if array is None:
        return None
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def launch(variant: Variant, grid: tuple[int, ...], *arguments: Any, **changes: Any) -> None:
    """Run a variant; arguments are those that a launch passes, in order."""
    given = iter(arguments)
    values: list[Any] = []
    for name, kind in variant.signature.items():
        if kind != "constexpr":
            value = next(given)
            values.append(device(value) if isinstance(value, np.ndarray) else value)
            continue
        value = changes.get(name, variant.constants[name])
        if isinstance(value, str) and value.startswith("dtype:"):
            value = TL[value[6:]]
        values.append(value)
    assert next(given, None) is None, "more arguments than the variant has parameters"
    getattr(MODULES[variant.source], variant.function)[grid](*values)


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


def run_attention(shape: AttentionShape, step: Step, split: bool) -> dict[str, Any]:
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
    up = {"UP": shape.compute == "bf16"}
    with_sinks = () if sinks is None else (sinks,)
    if split:
        splits = splits_of(width)
        partial = np.full((tokens, shape.heads, splits, shape.width), np.nan, np.float32)
        marks = np.full((tokens, shape.heads, splits, 2), np.nan, np.float32)
        launch(variant, grid, *inputs, seqs, width, partial, marks, **up)
        launch(
            merge_variant(shape),
            merge_grid(shape, tokens),
            *(partial, marks, *with_sinks, splits, out),
        )
    else:
        launch(variant, grid, *inputs, *with_sinks, seqs, width, out, **up)
    expected = attend(shape, q.astype(np.float64), starts, past, tables, caches, sinks)
    return {"error": float(np.abs(out.astype(np.float64) - expected).max())}


def attention_cases() -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
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
        yield f"attention-context-{name}", lambda s=shape: run_attention(s, MIXED, False)
        yield f"attention-split-{name}", lambda s=shape: run_attention(s, GENERATION, True)


def alone_and_together() -> dict[str, Any]:
    """A sequence's bits, computed alone and in company, by both kernels."""
    shape = AttentionShape(4, 2, 32, "f32", "f32", scale=0.2)
    generator = np.random.default_rng(9)
    starts, past, tables, blocks = GENERATION.facts(generator)
    _, arguments = make_caches(shape, blocks, generator)
    q = generator.standard_normal((4, 128)).astype(np.float32)
    same = True
    for split in (False, True):
        together = _outputs(shape, split, q, starts, past, tables, arguments)
        for i in range(4):
            blocks_of_one = int(past[i]) // 32 + 1
            table = tables[i : i + 1, :blocks_of_one].copy()
            first = np.array([0, 1], np.int32)
            one = _outputs(
                shape, split, q[i : i + 1].copy(), first, past[i : i + 1].copy(), table, arguments
            )
            same &= one.tobytes() == together[i : i + 1].tobytes()
    return {"same": bool(same)}


def _outputs(shape: AttentionShape, split: bool, q: Array, *facts: Any) -> Array:
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


def run_write(shape: AttentionShape, rope: bool, plugin: bool) -> dict[str, Any]:
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


def write_cases() -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    for cache in ("f32", "f16", "bf16", "fp8", "int8"):
        compute = cache if cache in NUMPY else "f16"
        shape = AttentionShape(4, 2, 24, compute, cache)
        yield f"kv_write-{cache}", lambda s=shape: run_write(s, False, False)
        yield f"kv_write-{cache}-rope", lambda s=shape: run_write(s, True, False)
        yield f"kv_write-{cache}-plugin", lambda s=shape: run_write(s, False, True)


def run_store(kv_dtype: str) -> dict[str, Any]:
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


def run_norm(compute: str, group: int, residual: bool, width: int = 96) -> dict[str, Any]:
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


def norm_cases() -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    for compute in NUMPY:
        for group in (0, 32):
            for residual in (False, True):
                name = f"norm-{compute}{'-int8' * bool(group)}{'-residual' * residual}"
                yield name, lambda c=compute, g=group, r=residual: run_norm(c, g, r)


# Sampling


def run_sample(
    logits: Array, sampling: Sampling, top: int = 0, block: int = 64
) -> tuple[Array, ...]:
    rows, vocab = logits.shape
    s = sampling
    tokens, logprobs = np.full(rows, -7, np.int32), np.zeros(rows, np.float32)
    ids, values = np.zeros((rows, max(top, 1)), np.int32), np.zeros((rows, max(top, 1)), np.float32)
    masks = np.zeros((1, 1), np.uint32) if s.masks is None else s.masks
    words = 0 if s.masks is None else masks.shape[1]
    spare = [x if len(x) else np.zeros(1, x.dtype) for x in (s.history, s.bias_ids, s.bias_values)]
    arguments = (
        *(np.ascontiguousarray(logits), tokens, logprobs, ids, values),
        np.full(rows * 2 * vocab, np.nan, np.float32),
        *(s.temperature, s.top_p, s.min_p, s.repetition_penalty, s.presence_penalty),
        *(s.frequency_penalty, s.top_k, s.positions, s.num_logprobs, s.history_starts, spare[0]),
        *(s.prompt_lengths, s.bias_starts, spare[1], spare[2], s.seeds, masks),
        *(vocab, words, top),
    )
    launch(session_variants("f16", 1, 8, False)[0], (rows,), *arguments, BLOCK=block)
    return tokens, logprobs, ids, values


def judge(logits: Array, sampling: Sampling, top: int = 0) -> dict[str, Any]:
    """How many rows got a token that the double-precision twin would not give."""
    tokens, logprobs, ids, values = run_sample(logits, sampling, top)
    refused = sum(
        not choose(sampling, row, logits[row]).accepts(int(token))
        for row, token in enumerate(tokens)
    )
    shares = log_softmax(logits)
    error, wrong = 0.0, 0
    for row, wanted in enumerate(sampling.num_logprobs):
        if wanted < 0:
            wrong += not np.isnan(logprobs[row])
            continue
        error = max(error, abs(float(logprobs[row]) - shares[row, tokens[row]]))
        likeliest = np.argsort(-logits[row], kind="stable")[: int(wanted)]
        wrong += int((ids[row, : len(likeliest)] != likeliest).sum())
        if wanted:
            gap = np.abs(values[row, : len(likeliest)] - shares[row, likeliest]).max()
            error = max(error, float(gap))
    return {"refused": refused, "rows": len(tokens), "error": error, "wrong": wrong}


def sample_cases() -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    rows, vocab = 6, 150
    generator = np.random.default_rng(4)
    logits = (2 * generator.standard_normal((rows, vocab))).astype(np.float32)
    tied = np.round(logits)
    random = {
        "temperature": 0.8,
        "seeds": generator.integers(0, 2**63, rows).astype(np.uint64) * np.uint64(2),
        "positions": generator.integers(0, 2**31 - 1, rows),
    }
    masks = generator.integers(0, 2**32, (rows, 5), dtype=np.uint64).astype(np.uint32)
    history = generator.integers(0, vocab, 20 * rows).astype(np.int32)
    options: dict[str, dict[str, Any]] = {
        "greedy": {"num_logprobs": np.array([-1, 0, 1, 3, 5, 5])},
        "plain": random | {"num_logprobs": 2},
        "top-k": random | {"top_k": np.array([1, 2, 5, 20, 149, 500])},
        "top-p": random | {"top_p": np.array([0.0, 0.1, 0.5, 0.9, 0.99, 0.3])},
        "min-p": random | {"min_p": np.array([1.0, 0.5, 0.2, 0.1, 0.01, 0.001])},
        "filters": random | {"top_k": 40, "top_p": 0.8, "min_p": 0.03},
        "penalties": random
        | {
            "history_starts": np.arange(rows + 1, dtype=np.int32) * 20,
            "history": history,
            "prompt_lengths": np.array([0, 5, 10, 15, 20, 7]),
            "repetition_penalty": 1.3,
            "presence_penalty": 0.4,
            "frequency_penalty": 0.25,
        },
        "bias": {
            "bias_starts": np.array([0, 0, 1, 2, 3, 5, 6], np.int32),
            "bias_ids": np.array([3, 7, 140, 9, 9, 149], np.int32),
            "bias_values": np.array([50, -50, 90, 30, 30, 60], np.float32),
        },
        "mask": random | {"masks": masks},
    }
    for name, fields in options.items():
        s = make_sampling(rows, **fields)
        yield f"sample-{name}", lambda s=s: judge(logits, s, 5)
        if name in ("top-k", "top-p", "min-p", "filters"):
            yield f"sample-{name}-ties", lambda s=s: judge(tied, s)

    def broken() -> dict[str, Any]:
        x = logits.copy()
        x[0], x[1], x[2, 4], x[3, :] = np.nan, -np.inf, np.inf, -1
        x[4, 3] = np.nan
        s = make_sampling(rows, num_logprobs=1)
        tokens, _, _, _ = run_sample(x, s, 1)
        best = [int(np.nanargmax(x[4])), int(x[5].argmax())]
        return {"wrong": int((tokens != np.array([-1, -1, -1, 0, *best])).sum())}

    yield "sample-broken-logits", broken


def run_philox() -> dict[str, Any]:
    """Draws over 2^12 equal tokens show the first 12 bits of the uniform number."""
    wrong, size = 0, 1 << 12
    seeds = np.array([0, 1, 0xFFFFFFFF, 1 << 32, (1 << 64) - 1, 0x123456789ABCDEF], np.uint64)
    for position in (0, 77, 2**31 - 1):
        s = make_sampling(len(seeds), temperature=1, seeds=seeds, positions=position)
        tokens, *_ = run_sample(np.zeros((len(seeds), size), np.float32), s, block=size)
        expected = [int(uniform(int(seed), position) * size) for seed in seeds]
        wrong += int((tokens != np.array(expected)).sum())
    return {"wrong": wrong}


def main() -> None:
    CASES.update(attention_cases())
    CASES.update(write_cases())
    CASES["attention-company"] = alone_and_together
    for kv_dtype in ("f16", "f32", "fp8", "int8"):
        CASES[f"kv_store-{kv_dtype}"] = lambda k=kv_dtype: run_store(k)
    CASES.update(norm_cases())
    CASES.update(sample_cases())
    CASES["sample-philox"] = run_philox
    wanted = sys.argv[1:]
    for name, case in CASES.items():
        if wanted and not any(part in name for part in wanted):
            continue
        try:
            figures = case()
        except Exception:
            figures = {"failed": traceback.format_exc()[-1500:]}
        print(json.dumps({"case": name, **figures}), flush=True)


if __name__ == "__main__":
    main()
