"""Compiles kernels ahead of time, in a process of its own: `python -m ... < request > answer`.

The request is JSON: `folder`, and `jobs` with a variant (variants.Variant.to_json), a compute
capability and a file name each. A line of JSON answers each job as soon as it is compiled.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from .cubin import read_resources

PTX_VERSION = 80
"""Of the text that is kept beside a cubin: CUDA 12.0; older drivers refuse a newer one."""

NEWER_PTX = {"10.0": 86, "12.0": 87}
"""The least PTX version that knows an architecture which is younger than that."""


def compile_variant(variant: dict[str, Any], capability: str, ptx_version: int | None) -> Any:
    """Return Triton's compiled kernel for a compute capability like `8.9`."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module = importlib.import_module(f".{variant['source']}", __package__)
    constants: dict[str, Any] = {}
    for name, value in variant["constants"].items():
        if isinstance(value, str) and value.startswith("dtype:"):
            value = {"fp32": tl.float32, "fp16": tl.float16, "bf16": tl.bfloat16}[value[6:]]
        constants[name] = value
    function = getattr(module, variant["function"])
    source = ASTSource(function, signature=variant["signature"], constexprs=constants)
    target = GPUTarget("cuda", int(capability.replace(".", "")), 32)
    # Products and sums stay apart: the same roundings on every device, and as in the reference.
    options = {"num_warps": variant["warps"], "num_stages": variant["stages"]}
    options |= {"enable_fp_fusion": False}
    if ptx_version is not None:
        options["ptx_version"] = ptx_version
    return triton.compile(source, target=target, options=options)


def answer(variant: dict[str, Any], capability: str, path: Path, text: bool) -> dict[str, Any]:
    """Compile one job into `path`, a cubin, and beside it its PTX if `text`."""
    compiled = compile_variant(
        variant, capability, NEWER_PTX.get(capability, PTX_VERSION) if text else None
    )
    cubin = compiled.asm["cubin"]
    path.write_bytes(cubin)
    if text:
        path.with_suffix(".ptx").write_text(compiled.asm["ptx"])
    symbol = compiled.metadata.name
    resources = read_resources(cubin, symbol)
    return {
        "symbol": symbol,
        "threads": variant["warps"] * 32,
        "shared_bytes": compiled.metadata.shared,
        "registers": resources.registers,
        "stack_bytes": resources.stack_bytes,
        "parameter_bytes": resources.parameter_bytes,
    }


def main() -> None:
    """Answer the request on stdin."""
    request = json.load(sys.stdin)
    folder = Path(request["folder"])
    for job in request["jobs"]:
        try:
            done = answer(
                job["variant"], job["capability"], folder / job["file"], bool(job.get("text"))
            )
        except Exception as error:  # the library's own, of many kinds
            done = {"error": f"{type(error).__name__}: {error}".strip()}
        print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
