"""Every op infers the type of its output, and says what does not fit."""

from typing import Any

import numpy as np
import pytest

from enginewright.builder.network import NetworkError, Shape, Value, Weight
from enginewright.builder.ops import OPS, infer, make_node
from enginewright.builder.reference_ops import CACHE_MEANINGS, MEANINGS
from enginewright.runtime.dtypes import DType

ATTENTION: dict[str, Any] = {
    "layer": 0,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "scale": 0.5,
    "window": 0,
}
KV: dict[str, Any] = {name: ATTENTION[name] for name in ("layer", "num_kv_heads", "head_dim")}
PLAIN = {"epilogue": ""}
SWIGLU = {"epilogue": "swiglu"}
GROUPS = {"group": 32, "rotation": 0}


def x(*shape: int | str, dtype: DType = DType.F32) -> Value:
    return Value("x", dtype, shape or ("tokens", 32))


def w(*shape: int) -> Weight:
    return Weight("w", shape, lambda: np.zeros(shape, np.float32))


IDS = Value("ids", DType.I32, ("tokens",))
BATCH = Value("batch", DType.BATCH, ())
CACHE = Value("cache", DType.KV, ())
Q8 = x(dtype=DType.Q8)
T32: Shape = ("tokens", 32)

GOOD: list[tuple[str, list[Value | None], dict[str, Any], DType, Shape]] = [
    ("embedding", [IDS, w(100, 32)], {}, DType.F32, T32),
    ("rms_norm", [x(), w(32)], {"eps": 1e-5}, DType.F32, T32),
    ("rms_norm", [x(), w(8)], {"eps": 1e-5}, DType.F32, T32),
    ("linear", [x(), w(7, 32), None, None], PLAIN, DType.F32, ("tokens", 7)),
    ("linear", [Q8, w(32, 32), w(32), x()], PLAIN, DType.F32, T32),
    ("linear", [x(), w(6, 32), w(6), None], {"epilogue": "swiglu"}, DType.F32, ("tokens", 3)),
    ("add", [x(), x()], {}, DType.F32, T32),
    ("mul", [x(), x()], {}, DType.F32, T32),
    ("silu", [x()], {}, DType.F32, T32),
    ("rope", [x(), w(50, 8), BATCH], {"head_dim": 8}, DType.F32, T32),
    (
        "paged_attention",
        [x(), x("tokens", 16), x("tokens", 16), BATCH],
        ATTENTION,
        DType.F32,
        T32,
    ),
    ("gather_rows", [x(), BATCH], {}, DType.F32, ("rows", 32)),
    ("slice", [x()], {"start": 4, "size": 28}, DType.F32, ("tokens", 28)),
    ("swiglu", [x()], {}, DType.F32, ("tokens", 16)),
    ("quantize", [x()], {"group": 32, "rotation": 0}, DType.Q8, T32),
    ("quantize", [x()], {"group": 24, "rotation": 8}, DType.Q8, T32),
    ("rms_norm_quantize", [x(), w(32)], {"eps": 1e-5, **GROUPS}, DType.Q8, T32),
    ("linear_quantize", [x(), w(6, 32), None], {**SWIGLU, **GROUPS}, DType.Q8, ("tokens", 3)),
    ("kv_write", [x("tokens", 16), x("tokens", 16), BATCH], KV, DType.KV, ()),
    ("attention", [x(), CACHE, BATCH], ATTENTION, DType.F32, T32),
]

BAD: list[tuple[str, list[Value | None], dict[str, Any], str]] = [
    ("nonsense", [x()], {}, "unknown op 'nonsense'"),
    ("silu", [x(), x()], {}, "2 inputs, expected 1"),
    ("silu", [None], {}, "input x is absent"),
    ("silu", [x()], {"eps": 1.0}, "attributes"),
    ("silu", [Q8], {}, "expected f32"),
    ("embedding", [x(), w(100, 32)], {}, "expected i32"),
    ("embedding", [IDS, x()], {}, "expected a weight"),
    ("rms_norm", [x(), w(5)], {"eps": 1e-5}, "whole runs"),
    ("rms_norm", [x(), w(32)], {}, "expected \\['eps'\\]"),
    ("rms_norm", [x(), w(32)], {"eps": 1}, "expected float"),
    ("linear", [x(), w(7, 31), None, None], PLAIN, "weight\\[N, K\\]"),
    ("linear", [x(), w(7, 32), w(6), None], PLAIN, "bias\\[N\\]"),
    ("linear", [x(), w(7, 32), None, x()], PLAIN, "residual of the output's shape"),
    ("linear", [x(), w(7, 32), None, None], {"epilogue": "swiglu"}, "up rows"),
    ("linear", [x(), w(7, 32), None, None], {"epilogue": "gelu"}, "epilogue"),
    ("add", [x(), x("rows", 32)], {}, "one shape"),
    ("rope", [x(), w(50, 10), BATCH], {"head_dim": 10}, "head_dim even"),
    ("rope", [x(), w(50, 4), BATCH], {"head_dim": 8}, "table"),
    ("paged_attention", [x(), x(), x(), BATCH], ATTENTION, "kv_heads"),
    ("attention", [x("tokens", 8), CACHE, BATCH], ATTENTION, "heads \\* head_dim"),
    ("attention", [x(), CACHE, BATCH], {**ATTENTION, "window": -1}, "window"),
    ("attention", [x(), x(), BATCH], ATTENTION, "expected kv"),
    ("kv_write", [x("tokens", 16), x("rows", 16), BATCH], KV, "one shape"),
    ("gather_rows", [x("rows", 32), BATCH], {}, "tokens"),
    ("slice", [x()], {"start": 4, "size": 29}, "inside the last axis"),
    ("swiglu", [x("tokens", 3)], {}, "2F"),
    ("quantize", [x()], {"group": 0, "rotation": 0}, "groups of 1 or more"),
    ("quantize", [x()], {"group": 96, "rotation": 64}, "whole rotated blocks"),
    ("quantize", [x()], {"group": 96, "rotation": 48}, "whole rotated blocks"),
    ("rms_norm_quantize", [x(), w(8)], {"eps": 1e-5, **GROUPS}, r"weight\[K\]"),
    (
        "linear_quantize",
        [x(), w(6, 32), None],
        {**SWIGLU, "group": 0, "rotation": 0},
        "groups of 1",
    ),
    ("linear_quantize", [x(), w(7, 32), None], {**SWIGLU, **GROUPS}, "up rows"),
]


@pytest.mark.parametrize(("op", "inputs", "attrs", "dtype", "shape"), GOOD)
def test_output_is_inferred(
    op: str, inputs: list[Value | None], attrs: dict[str, Any], dtype: DType, shape: Shape
) -> None:
    assert infer(op, inputs, attrs) == (dtype, shape)


@pytest.mark.parametrize(("op", "inputs", "attrs", "message"), BAD)
def test_misfits_are_named(
    op: str, inputs: list[Value | None], attrs: dict[str, Any], message: str
) -> None:
    with pytest.raises(NetworkError, match=message):
        infer(op, inputs, attrs)


def test_every_op_is_covered_here_and_has_a_meaning() -> None:
    assert {case[0] for case in GOOD} == set(OPS)
    assert set(MEANINGS) | set(CACHE_MEANINGS) == set(OPS)


def test_optional_inputs_and_defaults_may_be_left_out() -> None:
    node = make_node("linear", [x(), w(7, 32)], "y")
    assert node.inputs[2:] == [None, None]
    assert node.attrs == {"epilogue": ""}
    assert (node.output.name, node.output.shape) == ("y", ("tokens", 7))
