"""The op table: what each operation takes, which attributes it needs, what it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..runtime.dtypes import DType
from .network import ROWS, TOKENS, Dim, NetworkError, Node, Shape, Value, Weight

LINEAR_OPS = ("linear", "linear_quantize")
F32 = (DType.F32,)
BATCH = (DType.BATCH,)

Inputs = list[Value | None]
Attrs = Mapping[str, Any]
Infer = Callable[["Arguments"], tuple[DType, Shape]]


@dataclass(frozen=True, slots=True)
class Param:
    """One input of an op: the types it may have, whether it may be absent, or must be a weight."""

    name: str
    dtypes: tuple[DType, ...] = F32
    optional: bool = False
    weight: bool = False


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One op: its parameters in order, its attributes with their types, and its inference."""

    name: str
    params: tuple[Param, ...]
    infer: Infer
    attrs: Mapping[str, type] = field(default_factory=dict[str, type])
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Arguments:
    """The inputs and attributes of a node while its output is inferred."""

    op: str
    values: Mapping[str, Value | None]
    attrs: Attrs

    def __getitem__(self, name: str) -> Value:
        value = self.values[name]
        if value is None:
            raise NetworkError(f"{self.op}: input {name} is absent")
        return value

    def get(self, name: str) -> Value | None:
        """Return an optional input; None also where the op has none of that name."""
        return self.values.get(name)

    def want(self, condition: bool, expected: str) -> None:
        """Raise NetworkError with the inputs' types unless `condition` holds."""
        if not condition:
            found = ", ".join(repr(value) for value in self.values.values())
            raise NetworkError(f"{self.op}: expected {expected}; found {found}; {dict(self.attrs)}")

    def last(self, name: str) -> int:
        """Return the size of the last axis, which is a number in every value that has axes."""
        shape = self[name].shape
        if not shape or not isinstance(shape[-1], int):
            raise NetworkError(f"{self.op}: {self[name]} has no numbered last axis")
        return shape[-1]


def _embedding(a: Arguments) -> tuple[DType, Shape]:
    a.want(len(a["ids"].shape) == 1 and len(a["table"].shape) == 2, "ids[tokens], table[V, H]")
    return DType.F32, (a["ids"].shape[0], a.last("table"))


def _rms_norm(a: Arguments) -> tuple[DType, Shape]:
    width = a.last("weight")
    a.want(len(a["weight"].shape) == 1, "weight[w]")
    a.want(a.last("x") % width == 0, "a last axis of whole runs of the weight's length")
    return DType.F32, a["x"].shape


def _linear(a: Arguments) -> tuple[DType, Shape]:
    weight, bias, residual = a["weight"], a.get("bias"), a.get("residual")
    a.want(len(weight.shape) == 2 and a.last("x") == weight.shape[1], "x[.., K], weight[N, K]")
    a.want(bias is None or bias.shape == weight.shape[:1], "bias[N]")
    a.want(a.attrs["epilogue"] in ("", "swiglu"), 'epilogue "" or "swiglu"')
    size = weight.shape[0]
    if a.attrs["epilogue"] == "swiglu":
        a.want(isinstance(size, int) and size % 2 == 0, "gate rows, then as many up rows")
        size = int(size) // 2
    shape = (*a["x"].shape[:-1], size)
    a.want(residual is None or residual.shape == shape, "a residual of the output's shape")
    return DType.F32, shape


def _elementwise(a: Arguments) -> tuple[DType, Shape]:
    a.want(a["a"].shape == a["b"].shape, "two inputs of one shape")
    return DType.F32, a["a"].shape


def _silu(a: Arguments) -> tuple[DType, Shape]:
    return DType.F32, a["x"].shape


def _rope(a: Arguments) -> tuple[DType, Shape]:
    width = a.attrs["head_dim"]
    a.want(width % 2 == 0 and a.last("x") % width == 0, "x[.., heads * head_dim], head_dim even")
    a.want(len(a["table"].shape) == 2 and a.last("table") == width, "table[max_seq, head_dim]")
    return DType.F32, a["x"].shape


def _want_kv(a: Arguments) -> None:
    width = a.attrs["num_kv_heads"] * a.attrs["head_dim"]
    a.want(a.last("k") == width and a.last("v") == width, "k and v[tokens, kv_heads * head_dim]")
    a.want(a["k"].shape == a["v"].shape, "k and v of one shape")


def _want_q(a: Arguments) -> None:
    a.want(a.last("q") == a.attrs["num_heads"] * a.attrs["head_dim"], "q[tokens, heads * head_dim]")
    a.want(a.attrs["num_heads"] % a.attrs["num_kv_heads"] == 0, "whole groups of query heads")
    a.want(a.attrs["window"] >= 0, "a window of 0 or more tokens")


def _paged_attention(a: Arguments) -> tuple[DType, Shape]:
    _want_q(a)
    _want_kv(a)
    a.want(a["q"].shape[:-1] == a["k"].shape[:-1], "q and k of the same tokens")
    return DType.F32, a["q"].shape


def _attention(a: Arguments) -> tuple[DType, Shape]:
    _want_q(a)
    return DType.F32, a["q"].shape


def _kv_write(a: Arguments) -> tuple[DType, Shape]:
    _want_kv(a)
    return DType.KV, ()


def _gather_rows(a: Arguments) -> tuple[DType, Shape]:
    a.want(len(a["x"].shape) == 2 and a["x"].shape[0] == TOKENS, "x[tokens, H]")
    return DType.F32, (ROWS, *a["x"].shape[1:])


def _slice(a: Arguments) -> tuple[DType, Shape]:
    start, size = a.attrs["start"], a.attrs["size"]
    a.want(0 <= start and 0 < size and start + size <= a.last("x"), "a run inside the last axis")
    return DType.F32, (*a["x"].shape[:-1], size)


def _swiglu(a: Arguments) -> tuple[DType, Shape]:
    a.want(a.last("x") % 2 == 0, "x[.., 2F]")
    shape: tuple[Dim, ...] = (*a["x"].shape[:-1], a.last("x") // 2)
    return DType.F32, shape


def _want_groups(a: Arguments) -> None:
    group, rotation = a.attrs["group"], a.attrs["rotation"]
    a.want(group > 0 and a.last("x") > 0, "x[.., K] and groups of 1 or more elements")
    whole = rotation >= 0 and rotation & (rotation - 1) == 0 and group % max(rotation, 1) == 0
    a.want(whole, "a group of whole rotated blocks, each a power of two")


def _quantize(a: Arguments) -> tuple[DType, Shape]:
    _want_groups(a)
    return DType.Q8, a["x"].shape


def _linear_quantize(a: Arguments) -> tuple[DType, Shape]:
    _want_groups(a)
    return DType.Q8, _linear(a)[1]


def _rms_norm_quantize(a: Arguments) -> tuple[DType, Shape]:
    a.want(a["weight"].shape == a["x"].shape[-1:], "x[.., K], weight[K]")
    _want_groups(a)
    return DType.Q8, a["x"].shape


_X = Param("x")
_BATCH = Param("batch", BATCH)
_LINEAR = (
    Param("x", (DType.F32, DType.Q8)),
    Param("weight", weight=True),
    Param("bias", optional=True, weight=True),
)
_KV_ATTRS = {"layer": int, "num_kv_heads": int, "head_dim": int}
_GROUP_ATTRS = {"group": int, "rotation": int}
_ATTENTION_ATTRS = {**_KV_ATTRS, "num_heads": int, "scale": float, "window": int}

OPS: Mapping[str, OpSpec] = {
    spec.name: spec
    for spec in (
        OpSpec("embedding", (Param("ids", (DType.I32,)), Param("table", weight=True)), _embedding),
        OpSpec("rms_norm", (_X, Param("weight", weight=True)), _rms_norm, {"eps": float}),
        OpSpec(
            "linear",
            (*_LINEAR, Param("residual", optional=True)),
            _linear,
            {"epilogue": str},
            {"epilogue": ""},
        ),
        OpSpec("add", (Param("a"), Param("b")), _elementwise),
        OpSpec("mul", (Param("a"), Param("b")), _elementwise),
        OpSpec("silu", (_X,), _silu),
        OpSpec("rope", (_X, Param("table", weight=True), _BATCH), _rope, {"head_dim": int}),
        OpSpec(
            "paged_attention",
            (Param("q"), Param("k"), Param("v"), _BATCH),
            _paged_attention,
            _ATTENTION_ATTRS,
        ),
        OpSpec("gather_rows", (_X, _BATCH), _gather_rows),
        # Made by passes only, from here on.
        OpSpec("slice", (_X,), _slice, {"start": int, "size": int}),
        OpSpec("swiglu", (_X,), _swiglu),
        OpSpec("quantize", (_X,), _quantize, _GROUP_ATTRS, {"rotation": 0}),
        OpSpec(
            "linear_quantize",
            _LINEAR,
            _linear_quantize,
            {"epilogue": str, **_GROUP_ATTRS},
        ),
        OpSpec(
            "rms_norm_quantize",
            (_X, Param("weight", weight=True)),
            _rms_norm_quantize,
            {"eps": float, **_GROUP_ATTRS},
        ),
        OpSpec("kv_write", (Param("k"), Param("v"), _BATCH), _kv_write, _KV_ATTRS),
        OpSpec(
            "attention",
            (Param("q"), Param("kv", (DType.KV,)), _BATCH),
            _attention,
            _ATTENTION_ATTRS,
        ),
    )
}


def spec_of(op: str) -> OpSpec:
    """Return the table's entry; raises NetworkError for an unknown name."""
    if op not in OPS:
        raise NetworkError(f"unknown op {op!r}; the table has {', '.join(sorted(OPS))}")
    return OPS[op]


def infer(op: str, inputs: Iterable[Value | None], attrs: Attrs) -> tuple[DType, Shape]:
    """Return dtype and shape of the op's output; raises NetworkError naming what does not fit."""
    spec, values = spec_of(op), list(inputs)
    if len(values) != len(spec.params):
        raise NetworkError(f"{op}: {len(values)} inputs, expected {len(spec.params)}")
    for param, value in zip(spec.params, values, strict=True):
        if value is None:
            if not param.optional:
                raise NetworkError(f"{op}: input {param.name} is absent")
        elif value.dtype not in param.dtypes:
            allowed = " or ".join(dtype.value for dtype in param.dtypes)
            raise NetworkError(f"{op}: input {param.name} is {value}, expected {allowed}")
        elif param.weight != isinstance(value, Weight):
            kind = "a weight" if param.weight else "not a weight"
            raise NetworkError(f"{op}: input {param.name} is {value}, expected {kind}")
    if set(attrs) != set(spec.attrs):
        raise NetworkError(f"{op}: attributes {sorted(attrs)}, expected {sorted(spec.attrs)}")
    for name, kind in spec.attrs.items():
        if type(attrs[name]) is not kind:
            raise NetworkError(f"{op}: {name} is {attrs[name]!r}, expected {kind.__name__}")
    names = (param.name for param in spec.params)
    return spec.infer(Arguments(op, dict(zip(names, values, strict=True)), attrs))


def make_node(op: str, inputs: Iterable[Value | None], name: str, **attrs: Any) -> Node:
    """Return a node whose output `name` has the inferred type.

    Trailing optional inputs may be left out; attributes that have a default too.
    """
    spec, values = spec_of(op), list(inputs)
    values += [None] * (len(spec.params) - len(values))
    attrs = {**spec.defaults, **attrs}
    dtype, shape = infer(op, values, attrs)
    return Node(op, values, [Value(name, dtype, shape)], attrs)
