"""The kernel headers compiled as a library of single kernels, and numpy's way of calling them."""

from __future__ import annotations

import ctypes
import os
from ctypes import c_int32, c_size_t, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from enginewright.builder.network import Weight
from enginewright.builder.targets.cpu import toolchain
from enginewright.builder.targets.cpu.isa import IsaLevel
from enginewright.builder.targets.cpu.pack import pack, plan_panels
from enginewright.builder.targets.cpu.toolchain import compile_engine
from enginewright.runtime import machine
from enginewright.runtime.abi_cpu import ResultStruct
from enginewright.runtime.session import Sampling
from enginewright.runtime.session_cpu import _sampling_struct  # pyright: ignore[reportPrivateUsage]

Float32 = npt.NDArray[np.float32]

# What test_sanitizers.py adds to every engine that tests compile.
toolchain.COMMON_FLAGS += tuple(os.environ.get("ENGINEWRIGHT_TEST_CFLAGS", "").split())

SOURCES = Path(__file__).parent / "kernels"
GROUP, ROTATION = 128, 64  # as kernels/kernels.c has them
FORMAT_GROUPS = {"f32": (0, 0), "bf16": (0, 0), "int8": (GROUP, ROTATION), "uint4": (32, 0)}
HEAD_TOP = 64  # EW_HEAD_TOP
HEADS, KV_HEADS, HEAD_DIM = 6, 2, 22  # as kernels/attend.inc has them
FORMATS = ("f32", "bf16", "int8", "uint4")


class Product(ctypes.Structure):
    """`ew_product` of plugins/cpu/gemm.h."""

    _fields_ = (
        ("panels", c_void_p),
        ("panel_bytes", c_size_t),
        ("k", c_int32),
        ("bias", c_void_p),
        ("x", c_void_p),
        ("x_stride", c_size_t),
        ("out", c_void_p),
        ("out_stride", c_size_t),
        ("residual", c_void_p),
        ("residual_stride", c_size_t),
        ("rows", c_int32),
        ("first_panel", c_int32),
        ("last_panel", c_int32),
        ("tiles", c_int32),
        ("out_panel", c_int32),
        ("block_rows", c_int32),
        ("ahead", c_int32),
    )


@dataclass(frozen=True)
class Operands:
    """A product, its output, and the arrays that must outlive the call."""

    facts: Product
    format: str  # that the weight was packed in
    out: Float32
    arrays: tuple[Any, ...]


@dataclass(frozen=True)
class Head:
    """What the head has found: ids of the highest logit and of the highest ones, and logits."""

    highest: npt.NDArray[np.int32]
    top: npt.NDArray[np.int32]
    logits: Float32


class Kernels:
    """The kernels of one instruction set."""

    def __init__(self, level: IsaLevel, folder: Path) -> None:
        self.level = level
        path = folder / f"{level.name}.so"
        others = tuple(str(SOURCES / f"attend_{kv}.c") for kv in ("f32", "bf16", "int8"))
        arch = level.arch or machine.detect().arch
        compile_engine(SOURCES / "kernels.c", path, level, arch, None, others)
        self.library: Any = ctypes.CDLL(str(path))
        assert self.library.test_start() == 0, "the system refuses the registers of this level"
        self.library.test_philox.restype = ctypes.c_double
        self.library.test_philox.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
        self.library.test_log.restype = ctypes.c_double
        self.library.test_log.argtypes = [ctypes.c_double]

    def gemm(
        self,
        x: Float32,
        weight: Float32,
        format: str,
        *,
        swiglu: bool = False,
        bias: Float32 | None = None,
        residual: Float32 | None = None,
        panels: tuple[int, int] | None = None,
        guard: float = 0.0,
        rounded: npt.NDArray[np.uint8] | None = None,
        block_rows: int | None = None,
        ahead: bool = True,
    ) -> Float32:
        """Multiply as an engine does: packs the weight, quantizes rows for int8.

        Returns whole panels of columns, [rows, padded]; columns that were not computed are `guard`.
        With `rounded` a gated int8 product rounds its output into that instead.
        """
        product = self._product(
            x, weight, format, swiglu, bias, residual, panels, guard, block_rows, ahead
        )
        facts, out = ctypes.byref(product.facts), product.out
        if rounded is not None:
            self.library.test_gemm_quantize(
                facts,
                c_void_p(address(rounded)),
                c_size_t(rounded.strides[0]),
                c_int32(rounded.shape[1] * GROUP // (GROUP + 8)),
            )
        else:
            self.library.test_gemm(FORMATS.index(product.format), int(swiglu), facts)
        return out

    def head(self, x: Float32, weight: Float32, wanted: Any, guard: float) -> Head:
        """Find the highest of f32 logits; `wanted` is as plugins/cpu/gemm.h has it."""
        product = self._product(x, weight, "f32", guard=guard)
        highest = np.empty(len(x), np.int32)
        top = np.full((len(x), HEAD_TOP), -1, np.int32)
        arrays = [c_void_p(address(array)) for array in (wanted, highest, top)]
        facts, vocab = ctypes.byref(product.facts), c_int32(len(weight))
        self.library.test_head(facts, arrays[0], vocab, *arrays[1:])
        return Head(highest, top, product.out)

    def _product(
        self,
        x: Float32,
        weight: Float32,
        format: str,
        swiglu: bool = False,
        bias: Float32 | None = None,
        residual: Float32 | None = None,
        panels: tuple[int, int] | None = None,
        guard: float = 0.0,
        block_rows: int | None = None,
        ahead: bool = True,
    ) -> Operands:
        packed = Weight("w", weight.shape, lambda: weight)
        packed.format = format
        packed.group, packed.rotation = FORMAT_GROUPS[format]
        layout = plan_panels(packed, self.level, swiglu)
        data = np.concatenate(
            [piece.view(np.uint8).ravel() for piece in pack(packed, layout, self.level)]
        )
        data = np.concatenate([data, np.zeros(8192, np.uint8)])  # prefetches run ahead
        rows, width = len(x), layout.panels * self.level.panel // (2 if swiglu else 1)
        operand = self.quantize(x, format) if packed.group else np.ascontiguousarray(x)
        out = np.full((rows, width), guard, np.float32)
        add = None if residual is None else padded(residual, width)
        offsets = None if bias is None else self._bias(bias, layout.panels, swiglu)
        first, last = panels or (0, layout.panels)
        facts = Product(
            address(data),
            layout.panel_bytes,
            layout.k,
            address(offsets),
            address(operand),
            operand.strides[0],
            address(out),
            out.strides[0],
            address(add),
            0 if add is None else add.strides[0],
            rows,
            first,
            last,
            block_rows=block_rows or self.level.max_rows,
            ahead=int(ahead),
        )
        return Operands(facts, layout.format, out, (data, operand, offsets, add))

    def _bias(self, bias: Float32, panels: int, swiglu: bool) -> Float32:
        if not swiglu:
            return padded(bias[None], panels * self.level.panel)[0]
        half = self.level.panel // 2
        parts = [
            padded(part[None], panels * half).reshape(panels, half) for part in np.split(bias, 2)
        ]
        return np.ascontiguousarray(np.concatenate(parts, axis=1)).ravel()

    def quantize(
        self, x: Float32, format: str = "int8", first: int = 0, last: int | None = None
    ) -> npt.NDArray[np.uint8]:
        """Quantize rows for weights of `format`; rows outside the range are all 0xA5."""
        rows, n = x.shape
        group = FORMAT_GROUPS[format][0]
        k = -(-n // group) * group
        out = np.full((rows, k + 8 * (k // group)), 0xA5, np.uint8)
        name = "quantize" if format == "int8" else "quantize_plain"
        self.row_op(name, x, out, c_int32(n), c_int32(k), first=first, last=last)
        return out

    def row_op(
        self,
        name: str,
        x: npt.NDArray[Any],
        out: npt.NDArray[Any],
        *rest: Any,
        first: int = 0,
        last: int | None = None,
    ) -> None:
        """Call a kernel that goes row by row over rows `first` to `last`."""
        getattr(self.library, f"test_{name}")(
            c_void_p(address(x)),
            c_size_t(x.strides[0]),
            c_void_p(address(out)),
            c_size_t(out.strides[0]),
            *rest,
            c_int32(first),
            c_int32(len(x) if last is None else last),
        )

    def sample(self, sampling: Sampling, logits: Float32) -> tuple[npt.NDArray[Any], ...]:
        """Sample rows; returns tokens, logprobs, ids and logprobs of the likeliest."""
        rows, vocab = logits.shape
        logits = np.ascontiguousarray(logits)
        struct = _sampling_struct(sampling)
        tokens, logprobs = np.empty(rows, np.int32), np.empty(rows, np.float32)
        ids = np.full((rows, struct.top_logprobs), -1, np.int32)
        top = np.full(ids.shape, np.nan, np.float32)
        result = ResultStruct(
            address(tokens), address(logprobs), address(ids), address(top), None, 0.0
        )
        self.library.test_sample(
            ctypes.byref(struct), rows, c_void_p(address(logits)), vocab, ctypes.byref(result)
        )
        return tokens, logprobs, ids, top


def address(array: npt.NDArray[Any] | None) -> int | None:
    """Return where an array lies; None stays None."""
    return None if array is None else array.ctypes.data


def padded(array: Float32, width: int) -> Float32:
    """Return the array with columns of zeros up to `width`."""
    return np.pad(array, ((0, 0), (0, width - array.shape[1]))).astype(np.float32)
