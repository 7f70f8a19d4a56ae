"""Kernels of another processor: a program that an emulator runs, spoken to through its pipes."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from enginewright.builder.targets.cpu.isa import IsaLevel
from enginewright.builder.targets.cpu.toolchain import COMMON_FLAGS

from .cpu_kernels import SOURCES, Kernels, Product

EMULATOR = "qemu-aarch64"
_KINDS = ("gemm", "quantize")


class EmulatedKernels(Kernels):
    """Products and quantization of an AArch64 level, run by `qemu-aarch64`; nothing else."""

    def __init__(self, level: IsaLevel, folder: Path) -> None:
        self.level = level
        self.tiles = False
        program = folder / level.name
        flags = [flag for flag in COMMON_FLAGS if flag not in ("-shared", "-fPIC")]
        command = [sys.executable, "-m", "ziglang", "cc", "-target", f"{level.arch}-linux-musl"]
        command += [f"-mcpu={level.zig_cpu}", "-static", "-fno-sanitize=undefined", *flags]
        command += [f"-D{macro}" for macro in level.macros]
        command += [
            f"-I{resources.files('enginewright.plugins') / 'cpu'}",
            str(SOURCES / "emulated.c"),
        ]
        subprocess.run([*command, "-o", str(program)], check=True)
        self._process = subprocess.Popen(
            [EMULATOR, "-cpu", "max", str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def close(self) -> None:
        """End the program."""
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0

    def multiply(self, kind: int, swiglu: bool, product: Product) -> None:
        """Run the product there, and put its result where the product says."""
        p = product
        columns = p.panel_bytes and p.last_panel * self.level.panel
        bias = 4 * columns if p.bias else 0
        numbers = [kind, swiglu, p.panel_bytes, p.k, p.x_stride, p.out_stride, p.residual_stride]
        numbers += [p.rows, p.first_panel, p.last_panel, p.block_rows, p.ahead, bias]
        sizes = (
            (p.panels, p.panel_bytes * p.last_panel),
            (p.x, p.x_stride * p.rows),
            (p.bias, bias),
            (p.residual, p.residual_stride * p.rows),
            (p.out, p.out_stride * p.rows),
        )
        inputs = [ctypes.string_at(at, size) if size else b"" for at, size in sizes]
        result = self._ask("gemm", numbers, inputs, p.out_stride * p.rows)
        if result:
            ctypes.memmove(p.out, result, len(result))

    def row_op(
        self,
        name: str,
        x: npt.NDArray[Any],
        out: npt.NDArray[Any],
        *rest: Any,
        first: int = 0,
        last: int | None = None,
    ) -> None:
        """Quantize rows there; other row ops are not known."""
        rotated = {"quantize": 1, "quantize_plain": 0}[name]
        numbers = [rotated, len(x), x.strides[0], out.strides[0], *(n.value for n in rest)]
        numbers += [first, len(x) if last is None else last]
        result = self._ask("quantize", numbers, [x.tobytes(), out.tobytes()], out.nbytes)
        out[:] = np.frombuffer(result, out.dtype).reshape(out.shape)

    def _ask(self, kind: str, numbers: list[int], inputs: list[bytes], expected: int) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        head = np.array([_KINDS.index(kind), *numbers], np.int64).tobytes()
        self._process.stdin.write(b"".join([head, *inputs]))
        self._process.stdin.flush()
        result = self._process.stdout.read(expected)
        assert len(result) == expected, "the emulated program has ended"
        return result
