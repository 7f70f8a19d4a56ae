"""TensorRT plugins as pure functions, and how the adapter hands them over, with no TensorRT."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, get_args

import pytest

from enginewright.plugins.cuda import qdp
from enginewright.plugins.cuda.plugin_ops import (
    Launch,
    TensorType,
    aliases,
    input_names,
    launch_of,
    output_types,
    read_shape,
    signature,
    strip_scratch,
    type_combinations,
)
from enginewright.runtime.cuda_contract import CUSTOM_OPS, KV_WRITE_OP, PAGED_ATTENTION_OP, op_name

WRITE, ATTEND = KV_WRITE_OP.name, PAGED_ATTENTION_OP.name
ATTRIBUTES = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 16, "scale": 0.25, "window": 9}


def inputs_of(op: str, compute: str = "f16", cache: str = "f16") -> list[TensorType]:
    pages = TensorType(cache, (50, 2, 32, 16))
    caches = [pages, pages]
    if cache == "int8":
        caches += [TensorType("f32", (50, 2, 32))] * 2
    new = TensorType(compute, (7, 32))
    if op == WRITE:
        return [new, new, TensorType("i32", (7,)), *caches]
    facts = [TensorType("i32", (4,)), TensorType("i32", (3,)), TensorType("i32", (3, 5))]
    return [TensorType(compute, (7, 96)), *facts, *caches]


@pytest.mark.parametrize("cache", ["f16", "fp8", "int8"])
@pytest.mark.parametrize("op", CUSTOM_OPS)
def test_arguments_are_inputs_then_extras_then_outputs(op: str, cache: str) -> None:
    inputs = inputs_of(op, cache=cache)
    shape = read_shape(op, inputs, ATTRIBUTES)
    launch = launch_of(op, shape, inputs)
    names = input_names(op, cache == "int8")
    extras = [name for name, _ in launch.extra]
    parameters = launch.variant.parameters
    assert parameters[: len(names)] == names
    assert list(parameters[len(names) : len(names) + len(extras)]) == extras
    assert len(parameters) == len(names) + len(extras) + len(output_types(op, inputs))
    assert [launch.variant.signature[name] for name in extras] == ["i32"] * len(extras)


def test_shapes_are_read_from_inputs_and_attributes() -> None:
    shape = read_shape(ATTEND, inputs_of(ATTEND, "bf16", "int8"), ATTRIBUTES)
    assert (shape.heads, shape.kv_heads, shape.width) == (6, 2, 16)
    assert (shape.compute, shape.cache, shape.scale, shape.window) == ("bf16", "int8", 0.25, 9)


def test_outputs_are_the_caches_in_place_or_of_the_queries_type() -> None:
    assert aliases(WRITE, False) == {0: 3, 1: 4}
    assert aliases(WRITE, True) == {0: 3, 1: 4, 2: 5, 3: 6}
    assert aliases(ATTEND, True) == {}
    inputs = inputs_of(WRITE, cache="int8")
    assert output_types(WRITE, inputs) == inputs[3:]
    assert output_types(ATTEND, inputs_of(ATTEND)) == [TensorType("f16", (7, 96))]


def test_launches() -> None:
    inputs = inputs_of(ATTEND)
    launch = launch_of(ATTEND, read_shape(ATTEND, inputs, ATTRIBUTES), inputs)
    tile = int(launch.variant.constants["TOKENS"] or 0)
    assert launch.grid == (7 // tile + 3, 2, 1)
    assert launch.extra == (("seqs", 3), ("blocks", 5))
    inputs = inputs_of(WRITE)
    launch = launch_of(WRITE, read_shape(WRITE, inputs, ATTRIBUTES), inputs)
    assert (launch.grid, launch.extra) == ((7, 2, 1), ())


@pytest.mark.parametrize(
    ("op", "change", "attributes", "words"),
    [
        (ATTEND, {}, {"num_heads": 5}, "5 heads over 2"),
        (ATTEND, {}, {"head_dim": 15}, "15 elements"),
        (ATTEND, {4: TensorType("bf16", (50, 2, 32, 16))}, {}, "no kernel for f16 with a cache of"),
        (ATTEND, {4: TensorType("int8", (50, 2, 32, 16))}, {}, "comes with scales"),
        (ATTEND, {3: TensorType("i32", (3,))}, {}, r"block_tables is i32\[3\], expected"),
        (ATTEND, {5: TensorType("f16", (50, 2, 64, 16))}, {}, r"expected f16\[any, 2, 32, 16\]"),
        (WRITE, {2: TensorType("i64", (7,))}, {}, r"slots is i64\[7\], expected i32\[any\]"),
    ],
)
def test_what_does_not_fit_is_refused(
    op: str, change: dict[int, TensorType], attributes: dict[str, Any], words: str
) -> None:
    inputs = [change.get(index, one) for index, one in enumerate(inputs_of(op))]
    with pytest.raises(ValueError, match=words):
        read_shape(op, inputs, ATTRIBUTES | attributes)


def test_missing_inputs_and_attributes_are_named() -> None:
    with pytest.raises(ValueError, match="has 3 inputs, expected 5 or 7"):
        read_shape(WRITE, inputs_of(WRITE)[:3], ATTRIBUTES)
    with pytest.raises(ValueError, match="needs the attributes head_dim"):
        read_shape(WRITE, inputs_of(WRITE), {"num_kv_heads": 2})


@pytest.mark.parametrize("op", CUSTOM_OPS)
def test_every_combination_of_types_is_one_that_is_read(op: str) -> None:
    combinations = type_combinations(op)
    assert len(set(combinations)) == len(combinations) == 9
    for types in combinations:
        cache = types[input_names(op, True).index("k_cache")]
        inputs = inputs_of(op, types[0], cache)
        assert tuple(one.dtype for one in inputs) == types[: len(inputs)]
        read_shape(op, inputs, ATTRIBUTES)


def test_signatures_are_readable() -> None:
    assert signature(KV_WRITE_OP, False) == (
        "KvWrite(k, v, slots, k_cache, v_cache; num_kv_heads: int, head_dim: int)"
    )


PTX = """.visible .entry kernel(
\t.param .u64 .ptr .global .align 1 kernel_param_0,
\t.param .u32 kernel_param_1,
\t.param .u64 .ptr .global .align 1 kernel_param_2,
\t.param .u64 .ptr .global .align 1 kernel_param_3
)
.reqntid 128
{
\tld.param.u64 \t%rd1, [kernel_param_0];
\tret;
}
"""


def test_scratch_pointers_are_taken_out() -> None:
    stripped = strip_scratch(PTX, "kernel")
    assert "kernel_param_1\n)" in stripped
    assert "kernel_param_2" not in stripped
    with pytest.raises(ValueError, match=r"uses its scratch memory \(kernel_param_3\)"):
        strip_scratch(PTX.replace("[kernel_param_0]", "[kernel_param_3]"), "kernel")
    with pytest.raises(ValueError, match="no kernel other"):
        strip_scratch(PTX, "other")


class FakeTensor:
    """A plugin's tensor as the adapter sees it."""

    def __init__(self, one: TensorType) -> None:
        self.dtype = f"trt.{one.dtype}"
        self.shape_expr = one.shape

    def aliased(self) -> str:
        return f"alias of {self.dtype}"

    def like(self) -> str:
        return f"like {self.dtype}"


def fake_modules(registered: dict[str, dict[str, Any]]) -> tuple[Any, Any]:
    """Modules that note what is registered, with the names that the adapter uses."""

    def note(kind: str) -> Any:
        def named(name: str) -> Any:
            return lambda function: registered.setdefault(name, {}).update({kind: function})

        return named

    class Extra(dict[int, Any]):
        def __init__(self, count: int) -> None:
            super().__init__()

    plugin = SimpleNamespace(
        TensorDesc=FakeTensor,
        AutoTuneCombination=str,
        KernelLaunchParams=SimpleNamespace,
        SymIntExprs=Extra,
        SymExprs=dict,
        SymInt32=int,
        register=note("describe"),
        autotune=note("tune"),
        aot_impl=note("implement"),
    )
    names = {enum: f"trt.{ours}" for ours, enum in qdp._ENUMS.items()}
    return SimpleNamespace(**names), plugin


def test_the_adapter_registers_what_the_functions_say() -> None:
    registered: dict[str, dict[str, Any]] = {}
    launches: list[Launch] = []

    def compile_launch(launch: Launch) -> tuple[str, str, int, int]:
        launches.append(launch)
        return "kernel", PTX, 128, 1024

    qdp.Plugins(*fake_modules(registered)).compile_launch = compile_launch
    assert sorted(registered) == sorted(
        f"enginewright::{op_name(op, scales)}" for op in CUSTOM_OPS for scales in (False, True)
    )
    functions = registered["enginewright::PagedAttentionWithScales"]
    inputs = [FakeTensor(one) for one in inputs_of(ATTEND, "f16", "int8")]
    annotations = functions["implement"].__annotations__
    assert list(annotations)[-3:] == ["outputs", "tactic", "return"]
    assert annotations["scale"] is float
    assert get_args(annotations["outputs"]) == (FakeTensor,)
    assert functions["describe"](*inputs, *ATTRIBUTES.values()) == ("like trt.f16",)
    combinations = functions["tune"](*inputs, *ATTRIBUTES.values(), ())
    assert combinations[1] == "FP16, INT32, INT32, INT32, INT8, INT8, FP32, FP32, FP16"
    name, ptx, parameters, extra = functions["implement"](*inputs, *ATTRIBUTES.values(), (), 0)
    assert (name, parameters.block_x, parameters.shared_mem) == (b"kernel", 128, 1024)
    assert b"kernel_param_3" not in ptx
    assert (parameters.grid_y, dict(extra)) == (2, {0: 3, 1: 5})
    assert launches[0].variant.variant == "context"
    write = registered["enginewright::KvWrite"]
    tensors = [FakeTensor(one) for one in inputs_of(WRITE)]
    assert write["describe"](*tensors, 2, 16) == ("alias of trt.f16",) * 2
