"""Kernels that nobody compiles: files that tests.support.fake_cuda runs, and PTX of no body."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from enginewright.builder.targets.tensorrt.kernels import CompiledKernel
from enginewright.plugins.cuda.variants import Variant
from enginewright.runtime.manifest import KernelFacts

_ELEMENT_BYTES = {"*i8": 1, "*i16": 2, "*i32": 4}
_SCRATCH = 2  # parameters that Triton appends


def compile_kernels(
    variants: Sequence[Variant], capabilities: Sequence[str], folder: Path, text: bool = False
) -> list[CompiledKernel]:
    """Stand for builder.targets.tensorrt.kernels.compile_kernels."""
    made: list[CompiledKernel] = []
    for capability in capabilities:
        for variant in variants:
            path = folder / f"{variant.name}{variant.variant}-{capability}.cubin"
            path.write_text(json.dumps(_facts(variant)))
            if text:
                path.with_suffix(".ptx").write_text(_ptx(variant))
            facts = KernelFacts(
                name=variant.name,
                variant=variant.variant,
                compute_capability=capability,
                file=path.name,
                symbol=variant.function,
                threads=32 * variant.warps,
                shared_bytes=0,
            )
            made.append(CompiledKernel(facts, 32, 0, 8 * len(variant.parameters)))
    return made


def _facts(variant: Variant) -> dict[str, object]:
    facts: dict[str, object] = {"symbol": variant.function}
    if variant.name == "kv_store":
        width = int(variant.constants["WIDTH"] or 0)
        width *= _ELEMENT_BYTES[variant.signature["cache"]]
        facts |= {"heads": variant.constants["KV_HEADS"], "width": width}
    return facts


def _ptx(variant: Variant) -> str:
    names = [*variant.parameters, *(f"scratch_{index}" for index in range(_SCRATCH))]
    parameters = ",\n".join(f"\t.param .u64 {name}" for name in names)
    return f".visible .entry {variant.function}(\n{parameters}\n)\n{{\n\tret;\n}}\n"
