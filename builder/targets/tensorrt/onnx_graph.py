"""An ONNX graph that is being written: nodes by name, constants once, weights beside the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

OPSET = 24
IR_VERSION = 11  # of ONNX 1.19, the first with opset 24; later readers take it too
DTYPES: dict[str, int] = {
    "f32": TensorProto.FLOAT,
    "f16": TensorProto.FLOAT16,
    "bf16": TensorProto.BFLOAT16,
    "fp8": TensorProto.FLOAT8E4M3FN,
    "int8": TensorProto.INT8,
    "int4": TensorProto.INT4,
    "i32": TensorProto.INT32,
    "i64": TensorProto.INT64,
}
_ALIGNMENT = 4096  # of a weight in its file, so that it can be mapped
_INLINE_BYTES = 1024  # constants up to here stand in the model itself

Dim = int | str


class OnnxGraph:
    """Collects a graph; the numbers of weights go to a file beside it as they come."""

    def __init__(self, path: Path, data: Path, domain: str) -> None:
        """`path` is the model's file, `data` that of its weights, in the same folder."""
        self._path = path
        self._domain = domain
        self._data = data.open("wb")
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._initializers: list[TensorProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._names: dict[str, int] = {}

    def __enter__(self) -> Self:
        """Return the graph; leaving closes the file of weights."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the file of weights."""
        self._data.close()

    def input(self, name: str, dtype: str, shape: Sequence[Dim]) -> str:
        """Declare an input of the whole graph."""
        self._inputs.append(helper.make_tensor_value_info(name, DTYPES[dtype], shape))
        return name

    def output(self, value: str, name: str, dtype: str, shape: Sequence[Dim]) -> None:
        """Let `value` be an output of the whole graph, under a name of its own."""
        self._nodes.append(helper.make_node("Identity", [value], [name], name=name))
        self._outputs.append(helper.make_tensor_value_info(name, DTYPES[dtype], shape))

    def op(self, op: str, inputs: Sequence[str], name: str, **attrs: Any) -> str:
        """Append a node of ONNX's own ops with one output; returns the output's name."""
        return self.custom(op, inputs, name, 1, "", **attrs)[0]

    def custom(
        self, op: str, inputs: Sequence[str], name: str, outputs: int, domain: str, **attrs: Any
    ) -> list[str]:
        """Append a node of any domain; returns the names of its outputs."""
        name = self._fresh(name)
        made = [name] if outputs == 1 else [f"{name}.{i}" for i in range(outputs)]
        self._nodes.append(helper.make_node(op, inputs, made, name=name, domain=domain, **attrs))
        return made

    def ints(self, *values: int) -> str:
        """Return an i64 vector constant."""
        return self.constant(np.array(values, np.int64), "i64")

    def scalar(self, value: float, dtype: str) -> str:
        """Return a constant without axes."""
        return self.constant(np.array(value), dtype)

    def constant(self, array: npt.NDArray[Any], dtype: str) -> str:
        """Return a small constant; equal ones are stored once."""
        data = array.astype(helper.tensor_dtype_to_np_dtype(DTYPES[dtype])).tobytes()
        key = (dtype, array.shape, data)
        if key not in self._constants:
            name = self._fresh("constant")
            tensor = helper.make_tensor(name, DTYPES[dtype], array.shape, data, raw=True)
            self._initializers.append(tensor)
            self._constants[key] = name
        return self._constants[key]

    def weight(self, name: str, dtype: str, shape: Sequence[int], data: npt.NDArray[Any]) -> str:
        """Store a weight: `data` holds its bytes in order, and is not kept."""
        name = self._fresh(name)
        tensor = TensorProto(name=name, data_type=DTYPES[dtype], dims=list(shape))
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if raw.nbytes <= _INLINE_BYTES:
            tensor.raw_data = raw.tobytes()
        else:
            at = -(-self._data.tell() // _ALIGNMENT) * _ALIGNMENT
            self._data.seek(at)
            self._data.write(raw.data)
            tensor.data_location = TensorProto.EXTERNAL
            location = Path(self._data.name).name
            for key, value in (("location", location), ("offset", at), ("length", raw.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
        self._initializers.append(tensor)
        return name

    def save(self, title: str, check: bool = True) -> None:
        """Write the model. Raises what onnx.checker raises for one that breaks ONNX's rules."""
        graph = helper.make_graph(
            self._nodes, title, self._inputs, self._outputs, self._initializers
        )
        opsets = [helper.make_opsetid("", OPSET)]
        if any(node.domain == self._domain for node in self._nodes):
            opsets.append(helper.make_opsetid(self._domain, 1))
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="enginewright"
        )
        self._data.flush()
        self._path.write_bytes(model.SerializeToString())
        if check:
            onnx.checker.check_model(str(self._path), full_check=len(opsets) == 1)

    def _fresh(self, base: str) -> str:
        count = self._names[base] = self._names.get(base, 0) + 1
        return base if count == 1 else f"{base}_{count}"
