"""Runs the cases of kernel_cases.py in Triton's interpreter: one JSON line a case.

In a process of its own with TRITON_INTERPRET=1, since the interpreter and the compiler do not share
one: `python -m tests.support.triton_launch [PART OF A NAME ...]`. A line has a case's name and its
figures.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import sys
import traceback
from typing import Any

import ml_dtypes
import numpy as np
import torch
import triton.language as tl

from enginewright.plugins.cuda import attention, kv_write, norm
from enginewright.plugins.cuda import sample as sample_module
from enginewright.plugins.cuda.variants import Variant

from .kernel_cases import all_cases
from .kernel_sample_cases import Array

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
    """Run a variant (kernel_sample_cases.Launch)."""
    given = iter(arguments)
    if variant.constants.get("COMPUTE") == "dtype:bf16" and "UP" in variant.constants:
        changes["UP"] = True  # the interpreter multiplies the bits of bf16
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


def main() -> None:
    wanted = sys.argv[1:]
    for name, case in all_cases(launch).items():
        if wanted and not any(part in name for part in wanted):
            continue
        try:
            figures = case()
        except Exception:
            figures = {"failed": traceback.format_exc()[-1500:]}
        print(json.dumps({"case": name, **figures}), flush=True)


if __name__ == "__main__":
    main()
