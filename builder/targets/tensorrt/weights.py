"""Weights as ONNX has them: transposed for MatMul, and integers behind a DequantizeLinear."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
from onnx import helper

from ....runtime.errors import UnsupportedModelError
from ...network import Weight
from ...quantize.weight_only import (
    fake_quantize,
    quantize_fp8,
    quantize_int4,
    quantize_int8,
    round_f16,
)
from .onnx_graph import DTYPES, OnnxGraph

Float32 = npt.NDArray[np.float32]


def plain(graph: OnnxGraph, weight: Weight, dtype: str) -> str:
    """Store a table or a vector as floats, rounded first to the format that it carries."""
    array = fake_quantize(weight.load(), weight.format, weight.group)
    return graph.weight(weight.name, dtype, weight.sizes, _floats(array, dtype))


def matrix(graph: OnnxGraph, weight: Weight, dtype: str) -> str:
    """Store a linear's weight [N, K] as MatMul reads it, [K, N] of `dtype`; returns that value.

    int8 and fp8 have one scale a column, int4 one for each `group` rows of a column. Raises
    UnsupportedModelError for an int4 weight whose rows are not whole groups.
    """
    name, (rows, columns) = weight.name, weight.sizes
    array = weight.load()
    if weight.format in ("f32", "f16", "bf16"):
        array = fake_quantize(array, weight.format, 0)
        return graph.weight(f"{name}.t", dtype, (columns, rows), _floats(array.T, dtype))
    if weight.format == "int4":
        return _int4(graph, weight, array, dtype)
    if weight.format == "int8":
        values, scales = quantize_int8(array, columns)
    else:
        values, scales = quantize_fp8(array)
    stored = graph.weight(f"{name}.{weight.format}", weight.format, (columns, rows), values.T)
    scale = graph.weight(f"{name}.scale", dtype, (rows,), _floats(scales[:, 0], dtype))
    return graph.op("DequantizeLinear", [stored, scale], f"{name}.t", axis=1)


def _int4(graph: OnnxGraph, weight: Weight, array: Float32, dtype: str) -> str:
    name, group, (rows, columns) = weight.name, weight.group, weight.sizes
    if columns % group or rows % 2:
        raise UnsupportedModelError(
            f"{name} is {rows} x {columns}, and int4 needs an even number of rows and whole groups "
            f"of {group} columns; give a smaller --group or another --quant"
        )
    values, scales = quantize_int4(array, group)
    nibbles = np.ascontiguousarray(values.T).view(np.uint8) & 0xF
    packed = nibbles[:, 0::2] | (nibbles[:, 1::2] << 4)  # the first of a pair in the low bits
    stored = graph.weight(f"{name}.int4", "int4", (columns, rows), packed)
    scale = graph.weight(f"{name}.scale", dtype, (columns // group, rows), _floats(scales.T, dtype))
    return graph.op("DequantizeLinear", [stored, scale], f"{name}.t", axis=0, block_size=group)


def _floats(array: Float32, dtype: str) -> npt.NDArray[np.generic]:
    if dtype == "f16":
        array = round_f16(array)
    elif dtype == "bf16":
        return np.ascontiguousarray(array, ml_dtypes.bfloat16)
    return np.ascontiguousarray(array, helper.tensor_dtype_to_np_dtype(DTYPES[dtype]))
