"""Kernels compiled ahead of time for every architecture, within its limits."""

from __future__ import annotations

import dataclasses
import importlib.util
import struct
from pathlib import Path

import pytest

from enginewright.builder.targets.tensorrt import kernels
from enginewright.builder.targets.tensorrt.kernels import (
    SHARED_LIMITS,
    CompiledKernel,
    compile_kernels,
    excesses,
    kernel_capabilities,
)
from enginewright.plugins.cuda.cubin import read_resources
from enginewright.plugins.cuda.plugin_ops import strip_scratch
from enginewright.plugins.cuda.variants import (
    AttentionShape,
    Variant,
    attention_variant,
    kv_write_variant,
    merge_variant,
    norm_variant,
    sample_variant,
    session_variants,
)
from enginewright.runtime.cuda_contract import ARCHITECTURES
from enginewright.runtime.errors import BuildError
from enginewright.runtime.manifest import KernelFacts

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="needs triton, 0.5 GB that no install brings by itself (docs/nvidia.md)",
)

SHAPE = AttentionShape(32, 8, 128, "bf16", "bf16", scale=0.1)


def variants() -> list[Variant]:
    """Every kernel at the sizes of a model of 8 billion parameters, and every type of cache."""
    made = session_variants("int8", 8, 128, True)
    for compute, cache in (("bf16", "bf16"), ("f16", "f16"), ("f16", "fp8"), ("bf16", "int8")):
        shape = dataclasses.replace(SHAPE, compute=compute, cache=cache)
        pair = [attention_variant(shape, False), attention_variant(shape, True)]
        more = [kv_write_variant(shape, plugin=True), kv_write_variant(shape, rope=True)]
        made += [
            dataclasses.replace(one, name=f"{one.function}_{compute}_{cache}")
            for one in (*pair, *more)
        ]
    everything = dataclasses.replace(SHAPE, window=100, softcap=30.0, sinks=True)
    made.append(dataclasses.replace(attention_variant(everything, False), variant="all"))
    made.append(merge_variant(everything))
    made.append(norm_variant(4096, "bf16", 1e-5, 32, True))
    return made


@needs_triton
@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_every_kernel_compiles_within_the_limits(capability: str, tmp_path: Path) -> None:
    wanted = variants()
    made = compile_kernels(wanted, [capability], tmp_path, text=True)
    assert len(made) == len(wanted)
    for variant, kernel in zip(wanted, made, strict=True):
        facts = kernel.facts
        print(
            f"{capability} {facts.name} {facts.variant}: {kernel.registers} registers, "
            f"{facts.shared_bytes} bytes shared, {kernel.stack_bytes} bytes stack"
        )
        assert (tmp_path / facts.file).stat().st_size > 0
        assert kernel.stack_bytes <= 64, "the kernel spills registers"
        pointers = sum(variant.signature[name].startswith("*") for name in variant.parameters)
        numbers = len(variant.parameters) - pointers
        scratch = 2
        assert kernel.parameter_bytes >= 8 * (pointers + scratch) + 4 * numbers
        ptx = (tmp_path / facts.file).with_suffix(".ptx").read_text()
        version = {"10.0": "8.6", "12.0": "8.7"}.get(capability, "8.0")
        assert f".version {version}\n" in ptx
        declared = ptx.partition(f".entry {facts.symbol}(")[2].partition(")")[0]
        assert declared.count(".param") == len(variant.parameters) + scratch
        stripped = strip_scratch(ptx, facts.symbol)
        assert stripped.count(".param .") == ptx.count(".param .") - scratch
    attention = (tmp_path / made[3].facts.file).with_suffix(".ptx").read_text()
    assert "mma" in attention, "products are left to the tensor cores"
    assert "cvt.rn.bf16" in attention, "bf16 is rounded to the nearest"


@needs_triton
def test_what_does_not_compile_is_said_in_the_compiler_s_words(tmp_path: Path) -> None:
    broken = dataclasses.replace(sample_variant(), constants={"BLOCK": 100})
    with pytest.raises(BuildError, match=r"the kernel sample for compute capability 8.6 does not"):
        compile_kernels([broken], ["8.6"], tmp_path)


def test_without_triton_a_build_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "has_triton", lambda: False)
    with pytest.raises(BuildError, match=r"triton, which is missing: pip install 'enginewright\["):
        compile_kernels([sample_variant()], ["8.6"], tmp_path)


def test_a_compiler_that_dies_ends_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "has_triton", lambda: True)
    monkeypatch.setattr(kernels, "WORKER", "plugins.cuda.no_such_worker")
    with pytest.raises(BuildError, match=r"ended with 1: .*no_such_worker"):
        compile_kernels([sample_variant()], ["8.6"], tmp_path)


def kernel_of(shared: int, registers: int, threads: int = 128, capability: str = "8.6") -> str:
    facts = KernelFacts(
        name="k",
        variant="",
        compute_capability=capability,
        file="k.cubin",
        symbol="k",
        threads=threads,
        shared_bytes=shared,
    )
    return "; ".join(excesses(CompiledKernel(facts, registers, 0, 200)))


def test_limits() -> None:
    assert kernel_of(99 << 10, 255) == ""
    assert "101377 bytes of shared memory, and there are 101376" in kernel_of((99 << 10) + 1, 32)
    assert kernel_of(160 << 10, 32, capability="9.0") == ""
    assert "256 registers a thread" in kernel_of(0, 256)
    assert "registers a block, and there are 65536" in kernel_of(0, 129, threads=512)
    assert set(SHARED_LIMITS) == set(ARCHITECTURES)


def test_kernels_are_for_the_engine_s_devices() -> None:
    assert kernel_capabilities(("7.5", "8.9")) == ("8.9",)
    assert kernel_capabilities(()) == ARCHITECTURES


def make_cubin(sections: dict[str, bytes]) -> bytes:
    """An ELF file with these sections and a table of their names."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*sections, ".shstrtab"))
    body, headers = b"", [struct.pack("<IIQQQQIIQQ", *[0] * 10)]
    for name, data in (*sections.items(), (".shstrtab", names)):
        at = names.index(b"\0" + name.encode() + b"\0") + 1
        headers.append(
            struct.pack("<IIQQQQIIQQ", at, 1, 0, 0, 64 + len(body), len(data), 0, 0, 1, 0)
        )
        body += data
    head = b"\x7fELF\x02\x01" + bytes(10) + struct.pack("<HHIQQQ", 2, 190, 1, 0, 0, 64 + len(body))
    head += struct.pack("<IHHHHHH", 0, 64, 0, 0, 64, len(headers), len(headers) - 1)
    return head + body + b"".join(headers)


def test_resources_are_read_from_the_file() -> None:
    info = struct.pack("<BBHII", 4, 0x2F, 8, 1, 96) + struct.pack("<BBHII", 4, 0x11, 8, 1, 24)
    own = struct.pack("<BBH", 3, 0x19, 72)
    cubin = make_cubin({".nv.info": info, ".nv.info.kernel": own})
    found = read_resources(cubin, "kernel")
    assert (found.registers, found.stack_bytes, found.parameter_bytes) == (96, 24, 72)
    with pytest.raises(ValueError, match="nothing about a kernel"):
        read_resources(make_cubin({".nv.info.kernel": own}), "kernel")
    with pytest.raises(ValueError, match="not a 64-bit"):
        read_resources(b"#!/bin/sh", "kernel")
