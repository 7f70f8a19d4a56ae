"""Paged attention as ONNX: pages gathered for the native op, or the custom ops of the plugin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ....runtime.cuda_contract import (
    BLOCK_TOKENS,
    DOMAIN,
    KV_WRITE_OP,
    PAGED_ATTENTION_OP,
    OpSpec,
    op_name,
)
from ...network import Node
from .onnx_graph import DTYPES, Dim, OnnxGraph

_INT8_MAX = 127.0
_LARGEST = {"f32": 3.0e38, "f16": 65504.0, "bf16": 3.0e38}  # finite in the type


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What the caches of all layers share."""

    kv_heads: int
    head_dim: int
    dtype: str  # of the cache
    compute: str  # of activations

    @property
    def has_scales(self) -> bool:
        """Whether a token's head has a scale."""
        return self.dtype == "int8"


class AttentionForm(Protocol):
    """How the tokens of a step lie in the graph, and how its ops reach the cache."""

    prefix: tuple[Dim, ...]  # the axes of tokens in front of every activation

    def ids(self) -> str:
        """Return the token ids."""
        ...

    def rope_input(self, x: str, name: str) -> tuple[str, str]:
        """Return x as [batch, tokens, width], and its positions i64[batch, tokens]."""
        ...

    def rope_output(self, x: str, name: str) -> str:
        """Return what RotaryEmbedding gave in the form's own shape."""
        ...

    def write(self, node: Node, k: str, v: str) -> None:
        """Put keys and values of the step into a layer's cache."""
        ...

    def attend(self, node: Node, q: str) -> str:
        """Return the attention of the step's queries over the cache, the step's own included."""
        ...


def declare_caches(graph: OnnxGraph, layer: int, cache: CacheShape) -> list[str]:
    """Declare a layer's caches as inputs: keys, values, and their scales if they have some."""
    pages = ("pool_blocks", cache.kv_heads, BLOCK_TOKENS)
    names = [
        graph.input(f"{side}_cache.{layer}", cache.dtype, (*pages, cache.head_dim))
        for side in ("k", "v")
    ]
    if cache.has_scales:
        names += [graph.input(f"{side}_scale.{layer}", "f32", pages) for side in ("k", "v")]
    return names


class GatherForm:
    """Sequences of one length side by side, [seqs, tokens]; new keys and values are outputs.

    A query sees the gathered past and, behind it, the step's own keys; each is hidden by a mask
    of its own, so nothing has to be scattered into the past.
    """

    prefix: tuple[Dim, ...] = ("seqs", "tokens")

    def __init__(self, graph: OnnxGraph, cache: CacheShape) -> None:
        self._graph = graph
        self._cache = cache
        g = graph
        self._ids = g.input("ids", "i32", self.prefix)
        self._past_tokens = g.input("past_tokens", "i32", ("seqs",))
        self._tables = g.input("block_tables", "i32", ("seqs", "blocks"))
        past = g.op("Cast", [self._past_tokens], "past64", to=DTYPES["i64"])
        past = g.op("Unsqueeze", [past, g.ints(1)], "past")
        count = g.op("Shape", [self._ids], "token_count", start=1, end=2)
        self._own = self._range(count, "own")  # [tokens]
        self._positions = g.op("Add", [past, self._own], "positions")  # [seqs, tokens]
        blocks = g.op("Shape", [self._tables], "block_count", start=1, end=2)
        length = g.op("Mul", [blocks, g.ints(BLOCK_TOKENS)], "gathered_count")
        self._gathered = self._range(length, "gathered")  # [blocks * 32]
        self._past = g.op("Unsqueeze", [past, g.ints(1)], "past_by_query")  # [seqs, 1, 1]
        self._masks: dict[int, str] = {}
        self._written: dict[int, tuple[str, str]] = {}

    def ids(self) -> str:
        """Return [seqs, tokens]."""
        return self._ids

    def rope_input(self, x: str, name: str) -> tuple[str, str]:
        """Return x as it is."""
        return x, self._positions

    def rope_output(self, x: str, name: str) -> str:
        """Return x as it is."""
        return x

    def write(self, node: Node, k: str, v: str) -> None:
        """Give the new keys and values out, and keep them for this step's attention."""
        g, cache, layer = self._graph, self._cache, int(node.attrs["layer"])
        past = declare_caches(g, layer, cache)
        full: list[str] = []
        for index, (side, value) in enumerate((("k", k), ("v", v))):
            at = f"{node.output.name}.{side}"
            heads = g.op(
                "Reshape", [value, g.ints(0, 0, cache.kv_heads, cache.head_dim)], f"{at}.heads"
            )
            scale = past[2 + index] if cache.has_scales else None
            own = self._store(_finite(g, heads, cache.compute, at), side, layer, at)
            own = g.op("Transpose", [own], f"{at}.own", perm=[0, 2, 1, 3])
            gathered = self._pages(past[index], scale, at)
            full.append(g.op("Concat", [gathered, own], f"{at}.all", axis=2))
        self._written[layer] = (full[0], full[1])

    def attend(self, node: Node, q: str) -> str:
        """Return [seqs, tokens, heads * head_dim]."""
        g, attrs, at = self._graph, node.attrs, node.output.name
        heads, width = int(attrs["num_heads"]), int(attrs["head_dim"])
        keys, values = self._written[int(attrs["layer"])]
        q = g.op("Reshape", [q, g.ints(0, 0, heads, width)], f"{at}.heads")
        q = g.op("Transpose", [q], f"{at}.q", perm=[0, 2, 1, 3])
        mask = self._mask(int(attrs["window"]))
        mixed = g.op(
            "Attention", [q, keys, values, mask], f"{at}.mixed", scale=float(attrs["scale"])
        )
        mixed = g.op("Transpose", [mixed], f"{at}.tokens", perm=[0, 2, 1, 3])
        return g.op("Reshape", [mixed, g.ints(0, 0, heads * width)], at)

    def _store(self, heads: str, side: str, layer: int, at: str) -> str:
        """Output [seqs, tokens, heads, d] in the cache's type; return it as it will be read."""
        g, cache = self._graph, self._cache
        shape = (*self.prefix, cache.kv_heads, cache.head_dim)
        if cache.dtype == "int8":
            wide = g.op("Cast", [heads], f"{at}.wide", to=DTYPES["f32"])
            most = g.op("ReduceMax", [g.op("Abs", [wide], f"{at}.abs"), g.ints(-1)], f"{at}.most")
            scale = g.op("Div", [most, g.scalar(_INT8_MAX, "f32")], f"{at}.scale")
            zero = g.op("Equal", [scale, g.scalar(0.0, "f32")], f"{at}.zero")
            divisor = g.op("Where", [zero, g.scalar(1.0, "f32"), scale], f"{at}.divisor")
            rounded = g.op("Round", [g.op("Div", [wide, divisor], f"{at}.scaled")], f"{at}.rounded")
            limits = [g.scalar(-_INT8_MAX, "f32"), g.scalar(_INT8_MAX, "f32")]
            rounded = g.op("Clip", [rounded, *limits], f"{at}.clipped")
            stored = g.op("Cast", [rounded], f"{at}.int8", to=DTYPES["int8"])
            g.output(stored, f"new_{side}.{layer}", "int8", shape)
            flat = g.op("Reshape", [scale, g.ints(0, 0, cache.kv_heads)], f"{at}.flat_scale")
            g.output(flat, f"new_{side}_scale.{layer}", "f32", shape[:3])
            read = g.op("Mul", [rounded, scale], f"{at}.read")
            return self._to_compute(read, "f32", f"{at}.read")
        stored = heads
        if cache.dtype != cache.compute:
            stored = g.op("Cast", [heads], f"{at}.stored", to=DTYPES[cache.dtype])
        g.output(stored, f"new_{side}.{layer}", cache.dtype, shape)
        return self._to_compute(stored, cache.dtype, f"{at}.read")

    def _pages(self, pool: str, scale: str | None, at: str) -> str:
        """Return the pages of each sequence in a row, [seqs, heads, blocks * 32, d]."""
        g, cache = self._graph, self._cache
        pages = g.op("Gather", [pool, self._tables], f"{at}.pages", axis=0)
        pages = g.op("Transpose", [pages], f"{at}.by_head", perm=[0, 2, 1, 3, 4])
        rows = g.op("Reshape", [pages, g.ints(0, 0, -1, cache.head_dim)], f"{at}.past")
        if scale is not None:
            scales = g.op("Gather", [scale, self._tables], f"{at}.page_scales", axis=0)
            scales = g.op("Transpose", [scales], f"{at}.scales_by_head", perm=[0, 2, 1, 3])
            scales = g.op("Reshape", [scales, g.ints(0, 0, -1, 1)], f"{at}.past_scales")
            wide = g.op("Cast", [rows], f"{at}.past_wide", to=DTYPES["f32"])
            return self._to_compute(g.op("Mul", [wide, scales], f"{at}.product"), "f32", at)
        return self._to_compute(rows, cache.dtype, f"{at}.past_read")

    def _to_compute(self, value: str, dtype: str, at: str) -> str:
        if dtype == self._cache.compute:
            return value
        return self._graph.op("Cast", [value], f"{at}.cast", to=DTYPES[self._cache.compute])

    def _mask(self, window: int) -> str:
        """Return which keys a query sees, bool[seqs, 1, tokens, blocks * 32 + tokens]."""
        if window in self._masks:
            return self._masks[window]
        g, at = self._graph, f"mask_{window}"
        past = g.op("Less", [self._gathered, self._past], f"{at}.past")  # [seqs, 1, keys]
        query = g.op("Unsqueeze", [self._own, g.ints(1)], f"{at}.query")  # [tokens, 1]
        own = g.op("LessOrEqual", [self._own, query], f"{at}.own")  # [tokens, tokens]
        positions = g.op("Unsqueeze", [self._positions, g.ints(2)], f"{at}.position")
        zeros = g.op("Mul", [positions, g.ints(0)], f"{at}.zeros")  # [seqs, tokens, 1]
        if window:
            first = g.op("Sub", [positions, g.ints(window)], f"{at}.first")
            near = g.op("Greater", [self._gathered, first], f"{at}.near")
            past = g.op("And", [past, near], f"{at}.past_near")
            edge = g.op("Sub", [query, g.ints(window)], f"{at}.edge")
            near = g.op("Greater", [self._own, edge], f"{at}.own_near")
            own = g.op("And", [own, near], f"{at}.own_window")
        every = g.op("Equal", [zeros, g.ints(0)], f"{at}.every")
        past = g.op("And", [past, every], f"{at}.past_all")  # [seqs, tokens, blocks * 32]
        own = g.op("And", [own, every], f"{at}.own_all")  # [seqs, tokens, tokens]
        both = g.op("Concat", [past, own], f"{at}.both", axis=2)
        self._masks[window] = g.op("Unsqueeze", [both, g.ints(1)], at)
        return self._masks[window]

    def _range(self, length: str, name: str) -> str:
        g = self._graph
        end = g.op("Squeeze", [length, g.ints(0)], f"{name}_end")
        return g.op("Range", [g.scalar(0, "i64"), end, g.scalar(1, "i64")], name)


class PluginForm:
    """Packed tokens; the custom ops of runtime.cuda_contract write and read the pages."""

    prefix: tuple[Dim, ...] = ("tokens",)

    def __init__(self, graph: OnnxGraph, cache: CacheShape) -> None:
        self._graph = graph
        self._cache = cache
        g = graph
        self._ids = g.input("ids", "i32", self.prefix)
        self._slots = g.input("slots", "i32", self.prefix)
        positions = g.input("positions", "i32", self.prefix)
        self._facts = [
            g.input("seq_starts", "i32", ("starts",)),
            g.input("past_tokens", "i32", ("seqs",)),
            g.input("block_tables", "i32", ("seqs", "blocks")),
        ]
        positions = g.op("Cast", [positions], "positions64", to=DTYPES["i64"])
        self._positions = g.op("Unsqueeze", [positions, g.ints(0)], "positions_3d")
        self._written: dict[int, list[str]] = {}

    def ids(self) -> str:
        """Return [tokens]."""
        return self._ids

    def rope_input(self, x: str, name: str) -> tuple[str, str]:
        """Return x as a batch of one."""
        g = self._graph
        return g.op("Unsqueeze", [x, g.ints(0)], f"{name}.batch"), self._positions

    def rope_output(self, x: str, name: str) -> str:
        """Return x without the batch."""
        return self._graph.op("Squeeze", [x, self._graph.ints(0)], f"{name}.tokens")

    def write(self, node: Node, k: str, v: str) -> None:
        """Write pages in place."""
        g, cache, layer = self._graph, self._cache, int(node.attrs["layer"])
        caches = declare_caches(g, layer, cache)
        at = node.output.name
        k, v = (_finite(g, x, cache.compute, f"{at}.{side}") for side, x in (("k", k), ("v", v)))
        inputs = [k, v, self._slots, *caches]
        self._written[layer] = self._custom(KV_WRITE_OP, inputs, at, len(caches), node)

    def attend(self, node: Node, q: str) -> str:
        """Return [tokens, heads * head_dim]."""
        caches = self._written[int(node.attrs["layer"])]
        inputs = [q, *self._facts, *caches]
        return self._custom(PAGED_ATTENTION_OP, inputs, node.output.name, 1, node)[0]

    def _custom(
        self, spec: OpSpec, inputs: list[str], at: str, outputs: int, node: Node
    ) -> list[str]:
        """Append a custom op. TensorRT's parser looks for a plugin in the namespace of the node."""
        attributes: dict[str, Any] = {name: node.attrs[name] for name, _ in spec.attributes}
        attributes["plugin_namespace"] = DOMAIN
        name = op_name(spec.name, self._cache.has_scales)
        return self._graph.custom(name, inputs, at, outputs, DOMAIN, **attributes)


def _finite(graph: OnnxGraph, x: str, dtype: str, at: str) -> str:
    """Replace what is no finite number.

    Hidden keys and values are multiplied by a weight of zero, and one NaN that a broken request
    left in a page would reach the sequence that gets the page next.
    """
    bounds = [graph.scalar(sign * _LARGEST[dtype], dtype) for sign in (-1, 1)]
    nan = graph.op("IsNaN", [x], f"{at}.nan")
    x = graph.op("Where", [nan, graph.scalar(0.0, dtype), x], f"{at}.number")
    return graph.op("Clip", [x, *bounds], f"{at}.finite")
