"""Starts a variant of a kernel in Triton's interpreter, on numpy's memory."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl

from enginewright.plugins.cuda import attention, kv_write, norm
from enginewright.plugins.cuda import sample as sample_module
from enginewright.plugins.cuda.variants import Variant

Array = npt.NDArray[Any]
NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
TL = {"fp32": tl.float32, "fp16": tl.float16, "bf16": tl.bfloat16}
MODULES = {"attention": attention, "kv_write": kv_write, "norm": norm, "sample": sample_module}


def device(array: Array | None) -> Any:
    """Return a torch tensor over an array's memory."""
    if array is None:
        return None
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def launch(variant: Variant, grid: tuple[int, ...], *arguments: Any, **changes: Any) -> None:
    """Run a variant; arguments are those that a launch passes, in order."""
    given = iter(arguments)
    values: list[Any] = []
    for name, kind in variant.signature.items():
        if kind != "constexpr":
            value = next(given)
            values.append(device(value) if isinstance(value, np.ndarray) else value)
            continue
        value = changes.get(name, variant.constants[name])
        if isinstance(value, str) and value.startswith("dtype:"):
            value = TL[value[6:]]
        values.append(value)
    assert next(given, None) is None, "more arguments than the variant has parameters"
    getattr(MODULES[variant.source], variant.function)[grid](*values)
