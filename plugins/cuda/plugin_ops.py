"""The TensorRT plugins as pure functions: types, shapes, aliases, arguments and launches.

`qdp.py` hands them to TensorRT; nothing here needs it, or a GPU. Sizes may be numbers or
TensorRT's symbolic expressions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...runtime.cuda_contract import (
    BLOCK_TOKENS,
    CUSTOM_OPS,
    KV_WRITE_OP,
    PAGED_ATTENTION_OP,
    OpSpec,
)
from .launch import attention_grid, kv_write_grid
from .variants import AttentionShape, Variant, attention_variant, kv_write_variant


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type, in this project's names, and shape of an input or output."""

    dtype: str
    shape: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """How TensorRT starts a kernel: the compiled variant, its grid and its extra arguments."""

    variant: Variant
    grid: tuple[Any, Any, Any]
    extra: tuple[tuple[str, Any], ...] = ()  # i32 arguments between inputs and outputs


def input_names(op: str, has_scales: bool) -> tuple[str, ...]:
    """Return the inputs of an op in order; a cache without scales has none of theirs."""
    names = (name for name, _ in CUSTOM_OPS[op].inputs)
    return tuple(name for name in names if has_scales or not name.endswith("_scale"))


def signature(spec: OpSpec, has_scales: bool) -> str:
    """Return an op for people: `KvWrite(k, v, ...; num_kv_heads: int, ...)`."""
    attributes = ", ".join(f"{name}: {kind.split(',')[0]}" for name, kind in spec.attributes)
    return f"{spec.name}({', '.join(input_names(spec.name, has_scales))}; {attributes})"


def aliases(op: str, has_scales: bool) -> dict[int, int]:
    """Return which input each output is, written in place."""
    if op != KV_WRITE_OP.name:
        return {}
    names = input_names(op, has_scales)
    outputs = [name for name, _ in KV_WRITE_OP.outputs if name in names]
    return {index: names.index(name) for index, name in enumerate(outputs)}


def read_shape(op: str, inputs: Sequence[TensorType], attributes: Mapping[str, Any]) -> Any:
    """Return the AttentionShape of an op with these inputs.

    Raises ValueError with what was found and expected.
    """
    spec = CUSTOM_OPS[op]
    lacks = [name for name, _ in spec.attributes if name not in attributes]
    if lacks:
        raise ValueError(f"{op} needs the attributes {', '.join(lacks)}")
    counts = [len(input_names(op, has_scales)) for has_scales in (False, True)]
    if len(inputs) not in counts:
        raise ValueError(f"{op} has {len(inputs)} inputs, expected {counts[0]} or {counts[1]}")
    named = dict(zip(input_names(op, len(inputs) == counts[1]), inputs, strict=True))
    heads, width = int(attributes["num_kv_heads"]), int(attributes["head_dim"])
    query_heads = int(attributes.get("num_heads", heads))
    if min(heads, width, query_heads) < 1 or query_heads % heads or width % 2:
        raise ValueError(
            f"{op} has {query_heads} heads over {heads} of {width} elements; expected whole groups "
            "and an even size"
        )
    cache = named["k_cache"].dtype
    if (cache == "int8") != ("k_scale" in named):
        raise ValueError(f"{op} has a cache of {cache}; int8, and nothing else, comes with scales")
    first = named["q" if op == PAGED_ATTENTION_OP.name else "k"]
    if first.dtype not in ("f32", "f16", "bf16") or cache not in (first.dtype, "fp8", "int8"):
        raise ValueError(f"{op} has no kernel for {first.dtype} with a cache of {cache}")
    shape = AttentionShape(
        query_heads,
        heads,
        width,
        first.dtype,
        cache,
        scale=float(attributes.get("scale", 1.0)),
        window=int(attributes.get("window", 0)),
    )
    for name, found in named.items():
        want = _expected(name, shape)
        sizes = zip(found.shape, want.shape, strict=False)
        fits = len(found.shape) == len(want.shape)
        fits = fits and all(size == w or None in (size, w) for size, w in sizes)
        if found.dtype != want.dtype or not fits:
            text = ", ".join("any" if size is None else str(size) for size in want.shape)
            raise ValueError(
                f"{op}: {name} is {found.dtype}{list(found.shape)}, expected {want.dtype}[{text}]"
            )
    return shape


def _expected(name: str, shape: AttentionShape) -> TensorType:
    """Return the type of an input; None, here and there, is a size that the graph decides."""
    pages = (None, shape.kv_heads, BLOCK_TOKENS)
    if name in ("k_cache", "v_cache"):
        return TensorType(shape.cache, (*pages, shape.width))
    if name in ("k_scale", "v_scale"):
        return TensorType("f32", pages)
    if name == "q":
        return TensorType(shape.compute, (None, shape.heads * shape.width))
    if name in ("k", "v"):
        return TensorType(shape.compute, (None, shape.kv_heads * shape.width))
    return TensorType("i32", (None, None) if name == "block_tables" else (None,))


def output_types(op: str, inputs: Sequence[TensorType]) -> list[TensorType]:
    """Return the outputs: the caches, or attention of the queries' type and shape."""
    if op == PAGED_ATTENTION_OP.name:
        return [inputs[0]]
    has_scales = len(inputs) == len(input_names(op, True))
    return [inputs[index] for index in aliases(op, has_scales).values()]


def type_combinations(op: str) -> list[tuple[str, ...]]:
    """Return the types of inputs, then outputs, of all that `read_shape` takes."""
    made: list[tuple[str, ...]] = []
    for compute in ("f32", "f16", "bf16"):
        for cache in (compute, "fp8", "int8"):
            shape = AttentionShape(1, 1, 2, compute, cache)
            names = input_names(op, shape.has_scales)
            types = [_expected(name, shape).dtype for name in names]
            outputs = [types[index] for index in aliases(op, shape.has_scales).values()]
            made.append((*types, *(outputs or [compute])))
    return made


def launch_of(op: str, shape: AttentionShape, inputs: Sequence[TensorType]) -> Launch:
    """Return the launch for inputs of these sizes.

    The attention of a plugin is the kernel for any step, `context`: TensorRT starts one kernel for
    a plugin, and splitting needs two.
    """
    tokens = inputs[0].shape[0]
    if op == KV_WRITE_OP.name:
        return Launch(kv_write_variant(shape, plugin=True), kv_write_grid(shape, tokens))
    seqs, blocks = inputs[3].shape
    return Launch(
        attention_variant(shape, generation=False),
        attention_grid(shape, tokens, seqs),
        (("seqs", seqs), ("blocks", blocks)),
    )


def strip_scratch(ptx: str, symbol: str) -> str:
    """Return PTX without the two scratch pointers that Triton appends to the parameters.

    TensorRT passes inputs, extra arguments and outputs only. Raises ValueError if the kernel uses
    the pointers or has none.
    """
    head, found, rest = ptx.partition(f".entry {symbol}(")
    declared, closed, body = rest.partition(")")
    parameters = [line.strip().rstrip(",") for line in declared.strip().splitlines()]
    if not found or not closed or len(parameters) < 2:
        raise ValueError(f"the PTX has no kernel {symbol} with parameters")
    dropped = [line.split()[-1] for line in parameters[-2:]]
    used = [name for name in dropped if f"[{name}]" in body]
    if used:
        raise ValueError(f"the kernel {symbol} uses its scratch memory ({', '.join(used)})")
    kept = ",\n".join(f"\t{line}" for line in parameters[:-2])
    return f"{head}{found}\n{kept}\n{closed}{body}"
