"""What TensorRT's own Python sources of plugins (tensorrt.plugin) stand on: names of its bindings.

Sizes are numbers that may pretend not to be known, so that symbolic sizes can be checked too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum, IntEnum, auto
from typing import Any

import numpy as np
import onnx

from enginewright.builder.targets.tensorrt.onnx_graph import DTYPES


class DataType(IntEnum):
    FLOAT = onnx.TensorProto.FLOAT
    HALF = onnx.TensorProto.FLOAT16
    BF16 = onnx.TensorProto.BFLOAT16
    FP8 = onnx.TensorProto.FLOAT8E4M3FN
    INT8 = onnx.TensorProto.INT8
    INT32 = onnx.TensorProto.INT32


float32, float16, bfloat16 = DataType.FLOAT, DataType.HALF, DataType.BF16
fp8, int8, int32 = DataType.FP8, DataType.INT8, DataType.INT32
OURS = {value: name for name, value in DTYPES.items()}


class TensorFormat(Enum):
    LINEAR = auto()


class TensorRTPhase(Enum):
    BUILD = auto()


class QuickPluginCreationRequest(Enum):
    UNKNOWN = auto()
    PREFER_AOT = auto()
    PREFER_JIT = auto()
    STRICT_AOT = auto()
    STRICT_JIT = auto()


class PluginFieldType(Enum):
    INT8 = auto()
    INT16 = auto()
    INT32 = auto()
    INT64 = auto()
    FLOAT16 = auto()
    FLOAT32 = auto()
    FLOAT64 = auto()
    CHAR = auto()
    UNKNOWN = auto()


class PluginArgType(Enum):
    INT = auto()


class PluginArgDataType(Enum):
    INT8 = auto()
    INT16 = auto()
    INT32 = auto()


class DimensionOperation(Enum):
    SUM = auto()
    SUB = auto()
    PROD = auto()
    FLOOR_DIV = auto()
    CEIL_DIV = auto()
    MAX = auto()
    MIN = auto()
    EQUAL = auto()
    LESS = auto()


class IDimensionExpr:
    def __init__(self, value: int, known: bool) -> None:
        self.value = value
        self._known = known

    def is_constant(self) -> bool:
        return self._known

    def get_constant_value(self) -> int:
        assert self._known, "the size is not known when an engine is built"
        return self.value


class IExprBuilder:
    def constant(self, value: int) -> IDimensionExpr:
        return IDimensionExpr(value, True)

    def operation(
        self, op: DimensionOperation, first: IDimensionExpr, second: IDimensionExpr
    ) -> IDimensionExpr:
        a, b = first.value, second.value
        made = {
            DimensionOperation.SUM: a + b,
            DimensionOperation.SUB: a - b,
            DimensionOperation.PROD: a * b,
            DimensionOperation.FLOOR_DIV: a // b if b else 0,
        }[op]
        return IDimensionExpr(made, first.is_constant() and second.is_constant())


class DimsExprs(list[Any]):
    def __init__(self, count: int) -> None:
        super().__init__([None] * count)


class Dims(tuple[int, ...]):
    MAX_DIMS = 8


class PluginTensorDesc:
    def __init__(self) -> None:
        self.dims: Any = None
        self.type: Any = None
        self.format: Any = None
        self.scale = 0.0


class DynamicPluginTensorDesc:
    def __init__(self, dims: tuple[int, ...], type: Any) -> None:
        self.desc = PluginTensorDesc()
        self.desc.dims, self.desc.type, self.desc.format = Dims(dims), type, TensorFormat.LINEAR


class PluginField:
    def __init__(self, name: str, data: Any, type: PluginFieldType) -> None:
        self.name, self.data, self.type = name, np.asarray(data), type


class PluginFieldCollection:
    def __init__(self, fields: Iterable[PluginField]) -> None:
        self._fields = list(fields)

    def __iter__(self) -> Iterator[PluginField]:
        return iter(self._fields)


class ITensor: ...


class ISymExpr: ...


class IPluginV3: ...


class IPluginV3QuickCore: ...


class IPluginV3QuickBuild: ...


class IPluginV3QuickRuntime: ...


class IPluginV3QuickAOTBuild: ...


class IPluginCreatorV3Quick: ...


class IPluginRegistry:
    def __init__(self) -> None:
        self._creators: dict[tuple[str, str, str], Any] = {}

    def register_creator(self, creator: Any, namespace: str = "") -> None:
        key = (creator.name, creator.plugin_version, namespace)
        assert key not in self._creators, key
        self._creators[key] = creator

    def get_creator(self, type: str, version: str, namespace: str = "") -> Any:
        return self._creators.get((type, version, namespace))


_REGISTRY = IPluginRegistry()


def get_plugin_registry() -> IPluginRegistry:
    return _REGISTRY


class _Launch:
    """What a plugin says of one launch: grid, block and shared memory as expressions."""


class _Extras(dict[int, Any]):
    nbSymExprs = 0


def ask_plugin(
    plugin: Any, types: list[DataType], shapes: list[tuple[tuple[int, bool], ...]]
) -> dict[str, Any]:
    """Go through a plugin as a build does: a shape has a size and whether it is known.

    Returns the kernel's name and PTX, its launch and extra arguments as numbers, the types and
    sizes of its outputs, and which input each output is.
    """
    builder = IExprBuilder()
    outputs = list(plugin.get_output_data_types(types, [len(shape) for shape in shapes]))
    sizes = [_exprs(shape) for shape in shapes]
    made = [
        tuple(one.value for one in shape) for shape in plugin.get_output_shapes(sizes, [], builder)
    ]
    dims = [tuple(size if known else -1 for size, known in shape) for shape in shapes]
    in_out = [DynamicPluginTensorDesc(*one) for one in zip(dims, types, strict=True)]
    in_out += [DynamicPluginTensorDesc(*one) for one in zip(made, outputs, strict=True)]
    combinations = plugin.get_supported_format_combinations(in_out, len(types))
    rows = [combinations[at : at + len(in_out)] for at in range(0, len(combinations), len(in_out))]
    wanted = [*types, *outputs]
    assert wanted in [[one.type for one in row] for row in rows], "no combination of these types"
    plugin.configure_plugin(in_out[: len(types)], in_out[len(types) :])
    assert plugin.get_valid_tactics() == []
    plugin.set_tactic(0)
    launch, extras = _Launch(), _Extras()
    plugin.get_launch_params(sizes, in_out, len(types), launch, extras, builder)
    descs = [one.desc for one in in_out]
    name, ptx = plugin.get_kernel(descs[: len(types)], descs[len(types) :])
    assert len(extras) == extras.nbSymExprs
    return {
        "name": name.decode(),
        "ptx": ptx.decode(),
        "launch": {key: value.expr.value for key, value in vars(launch).items()},
        "extras": [extras[index].expr.value for index in range(len(extras))],
        "outputs": list(zip(outputs, made, strict=True)),
        "aliases": [plugin.get_aliased_input(index) for index in range(len(outputs))],
    }


def _exprs(shape: tuple[tuple[int, bool], ...]) -> DimsExprs:
    made = DimsExprs(len(shape))
    made[:] = [IDimensionExpr(size, known) for size, known in shape]
    return made
