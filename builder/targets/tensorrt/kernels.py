"""The kernels of an engine: compiled ahead of time by Triton in its own process, and checked."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....plugins.cuda.variants import Variant, session_variants
from ....runtime.cuda_contract import ARCHITECTURES
from ....runtime.errors import BuildError
from ....runtime.manifest import KernelFacts, TensorRTFacts

WORKER = "plugins.cuda.compile_worker"
INSTALL = "pip install 'enginewright[triton]'"
NO_TRITON = f"GPU kernels are compiled by the Python package triton, which is missing: {INSTALL}"

SHARED_LIMITS = {
    "8.0": 163 << 10,
    "8.6": 99 << 10,
    "8.9": 99 << 10,
    "9.0": 227 << 10,
    "10.0": 227 << 10,
    "12.0": 99 << 10,
}
"""Bytes of shared memory that one block may ask for: "Technical Specifications per Compute
Capability" of the CUDA programming guide."""

REGISTERS_A_THREAD = 255
REGISTERS_A_BLOCK = 64 << 10
PARAMETER_BYTES = 4096  # of a launch, on every architecture


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A cubin in the engine's folder, and what it takes."""

    facts: KernelFacts
    registers: int
    stack_bytes: int
    parameter_bytes: int


def has_triton() -> bool:
    """Whether kernels can be compiled here; nothing is imported to find out."""
    return importlib.util.find_spec("triton") is not None


def kernel_capabilities(capabilities: Sequence[str]) -> tuple[str, ...]:
    """Return those of an engine's compute capabilities that there are kernels for; all if none."""
    return tuple(c for c in capabilities if c in ARCHITECTURES) if capabilities else ARCHITECTURES


def session_kernels(facts: TensorRTFacts, kv_dtype: str, folder: Path) -> list[KernelFacts]:
    """Compile what an engine's session launches itself; nothing where triton is not installed.

    Raises BuildError as `compile_kernels`.
    """
    if not has_triton():
        return []
    gathers = facts.attention == "gather"
    variants = session_variants(kv_dtype, facts.num_kv_heads, facts.head_dim, gathers)
    capabilities = kernel_capabilities(facts.compute_capabilities)
    return [kernel.facts for kernel in compile_kernels(variants, capabilities, folder)]


def compile_kernels(
    variants: Sequence[Variant], capabilities: Sequence[str], folder: Path, text: bool = False
) -> list[CompiledKernel]:
    """Compile every variant for every compute capability; `text` keeps the PTX beside each cubin.

    Raises BuildError with the compiler's words, or for a kernel over an architecture's limits.
    """
    if not has_triton():
        raise BuildError(NO_TRITON)
    jobs = [(variant, capability) for capability in capabilities for variant in variants]
    names = [_file_name(variant, capability) for variant, capability in jobs]
    request = {
        "folder": str(folder),
        "jobs": [
            {
                "variant": variant.to_json(),
                "capability": capability,
                "file": name,
                "text": text,
            }
            for (variant, capability), name in zip(jobs, names, strict=True)
        ],
    }
    made: list[CompiledKernel] = []
    for (variant, capability), name, answer in zip(jobs, names, _run(request), strict=True):
        where = (
            f"{variant.name} {variant.variant}".strip() + f" for compute capability {capability}"
        )
        if "error" in answer:
            raise BuildError(f"the kernel {where} does not compile: {answer['error']}")
        kernel = CompiledKernel(
            KernelFacts(
                name=variant.name,
                variant=variant.variant,
                compute_capability=capability,
                file=name,
                symbol=answer["symbol"],
                threads=answer["threads"],
                shared_bytes=answer["shared_bytes"],
            ),
            answer["registers"],
            answer["stack_bytes"],
            answer["parameter_bytes"],
        )
        for excess in excesses(kernel):
            raise BuildError(f"the kernel {where} takes {excess}")
        made.append(kernel)
    return made


def excesses(kernel: CompiledKernel) -> Iterator[str]:
    """Yield what a kernel takes more of than its architecture has."""
    facts, registers = kernel.facts, kernel.registers
    limits = (
        (facts.shared_bytes, SHARED_LIMITS[facts.compute_capability], "bytes of shared memory"),
        (registers, REGISTERS_A_THREAD, "registers a thread"),
        (registers * facts.threads, REGISTERS_A_BLOCK, "registers a block"),
        (kernel.parameter_bytes, PARAMETER_BYTES, "bytes of parameters"),
    )
    for found, most, what in limits:
        if found > most:
            yield f"{found} {what}, and there are {most}"


def _file_name(variant: Variant, capability: str) -> str:
    parts = (variant.name, variant.variant, f"sm{capability.replace('.', '')}")
    return "-".join(part for part in parts if part) + ".cubin"


def _run(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the worker's answers. Triton's interpreter, if somebody chose it, is left out."""
    package = __name__.removesuffix(".builder.targets.tensorrt.kernels")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    with tempfile.TemporaryDirectory(prefix="enginewright-triton-") as cache:
        done = subprocess.run(
            [sys.executable, "-m", f"{package}.{WORKER}"],
            input=json.dumps(request),
            env={**environment, "TRITON_CACHE_DIR": cache},
            capture_output=True,
            text=True,
            check=False,
        )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    failed = len(answers) < len(request["jobs"]) and not any("error" in one for one in answers)
    if done.returncode or failed:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise BuildError(f"the compiler of GPU kernels ended with {done.returncode}: {last}")
    return answers
