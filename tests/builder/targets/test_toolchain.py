"""The compiler: what it is asked, what is said when it fails, and other machines' engines."""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from enginewright.builder.config import KV_DTYPES
from enginewright.builder.passes.roll_layers import roll_layers
from enginewright.builder.progress import Progress
from enginewright.builder.targets.cpu import toolchain
from enginewright.builder.targets.cpu.code_cache import CodeCache
from enginewright.builder.targets.cpu.emit import emit
from enginewright.builder.targets.cpu.isa import LEVELS, IsaLevel
from enginewright.builder.targets.cpu.program import build_program
from enginewright.builder.targets.cpu.target import CpuTarget, model_facts
from enginewright.builder.targets.cpu.toolchain import Compilation, compile_engine
from enginewright.runtime import machine
from enginewright.runtime.errors import BuildError
from tests.support.cpu_engine import FAMILY_SPECS, Spec
from tests.support.cpu_kernels import SOURCES

GENERIC = LEVELS[-1]
ARCH = machine.detect().arch
ELF_MACHINES = {"x86_64": 62, "aarch64": 183}


def by_name(name: str) -> IsaLevel:
    return next(level for level in LEVELS if level.name == name)


def source_of(spec: Spec, level: IsaLevel) -> str:
    network = spec.network()
    return emit(
        build_program(network, roll_layers(network), model_facts(network, spec.build), level)
    )


@pytest.mark.parametrize("spec", FAMILY_SPECS, ids=lambda spec: spec.name)
def test_one_network_is_always_emitted_as_the_same_text(spec: Spec) -> None:
    first = source_of(spec, by_name(spec.isa))
    assert first == source_of(spec, by_name(spec.isa))
    assert "/tmp" not in first


def test_the_text_does_not_depend_on_the_weights_or_the_number_of_layers_unrolled() -> None:
    """Twelve layers are a loop: the functions are those of three."""
    short = FAMILY_SPECS[0]
    long = dataclasses.replace(short, changes=(("num_layers", 12),))
    functions = [
        [line for line in source_of(spec, GENERIC).splitlines() if line.startswith("static void")]
        for spec in (short, long)
    ]
    assert functions[0] == functions[1]


def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    source = tmp_path / "a.c"
    source.write_text("int x;")
    with pytest.raises(BuildError, match=r"'no-such-cc' cannot be started .*--cc"):
        compile_engine(source, tmp_path / "a.so", GENERIC, ARCH, "no-such-cc -O3")


def test_a_compiler_that_is_no_program_is_named(tmp_path: Path) -> None:
    source = tmp_path / "a.c"
    source.write_text("int x;")
    with pytest.raises(BuildError, match="cannot be started"):
        compile_engine(source, tmp_path / "a.so", GENERIC, ARCH, str(source))


def test_a_failing_compiler_shows_its_own_lines(tmp_path: Path) -> None:
    compiler = tmp_path / "bad-cc"
    compiler.write_text('#!/bin/sh\necho "a.c:1: error: it is Monday" >&2\nexit 3\n')
    compiler.chmod(0o755)
    with pytest.raises(BuildError, match=r"ended with status 3:\na\.c:1: error: it is Monday"):
        compile_engine(tmp_path / "a.c", tmp_path / "a.so", GENERIC, ARCH, str(compiler))


def test_the_options_of_a_named_compiler_are_kept(tmp_path: Path) -> None:
    compiler = tmp_path / "echo-cc"
    compiler.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/seen\n')
    compiler.chmod(0o755)
    level = by_name("avx2-vnni")
    compile_engine(tmp_path / "a.c", tmp_path / "a.so", level, "x86_64", f"{compiler} -g")
    seen = (tmp_path / "seen").read_text().split()
    assert seen[0] == "-g"
    assert {*level.gcc_flags, "-DEW_ISA_AVX2", "-DEW_HAS_AVXVNNI", "-ffp-contract=off"} <= set(seen)
    assert "-ffast-math" not in seen
    assert seen[-3:] == [str(tmp_path / "a.c"), "-o", str(tmp_path / "a.so")]


def counting_compiler(folder: Path, version: str = "1") -> str:
    """A compiler that notes every run and copies its source to its output."""
    compiler = folder / f"cc-{version}"
    compiler.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec echo {version}\necho run >> {folder}/runs\n'
        'while [ "$1" != -o ]; do last="$1"; shift; done\ncp "$last" "$2"\n'
    )
    compiler.chmod(0o755)
    return str(compiler)


def test_code_is_compiled_again_when_anything_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = CodeCache(tmp_path / "cache")
    source = tmp_path / "a.c"

    def runs(text: str, level: IsaLevel, cc: str, *extra: str) -> int:
        source.write_text(text)
        output = tmp_path / "a.so"
        output.unlink(missing_ok=True)
        with Compilation(source, output, level, ARCH, cc, extra, cache) as compilation:
            compilation.finish()
        assert output.read_text() == text
        return (tmp_path / "runs").read_text().count("run")

    cc = counting_compiler(tmp_path)
    assert runs("one", GENERIC, cc) == 1
    assert runs("one", GENERIC, cc) == 1
    assert runs("two", GENERIC, cc) == 2
    assert runs("two", by_name("avx2"), cc) == 3
    assert runs("two", by_name("avx2"), cc, "-g") == 4
    assert runs("two", by_name("avx2"), counting_compiler(tmp_path, "2"), "-g") == 5
    assert runs("one", GENERIC, cc) == 5
    headers = tmp_path / "cpu"
    headers.mkdir()
    (headers / "isa.h").write_text("/* changed */")
    monkeypatch.setattr(toolchain.resources, "files", lambda name: tmp_path)
    assert runs("one", GENERIC, cc) == 6


def test_a_compiler_that_is_no_longer_waited_for_ends_with_its_children(tmp_path: Path) -> None:
    compiler = tmp_path / "slow-cc"
    compiler.write_text(
        f"#!/bin/sh\n(touch {tmp_path}/begun; sleep 0.5; touch {tmp_path}/late) &\nwait\n"
    )
    compiler.chmod(0o755)
    with Compilation(tmp_path / "a.c", tmp_path / "a.so", GENERIC, ARCH, str(compiler)):
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
    time.sleep(0.7)
    assert not (tmp_path / "late").exists()


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_gcc_compiles_an_engine(tmp_path: Path) -> None:
    source = tmp_path / "engine.c"
    source.write_text(source_of(Spec("qwen2", "f32"), GENERIC))
    compile_engine(source, tmp_path / "a.so", GENERIC, ARCH, "gcc", ("-Werror",))
    assert elf_machine(tmp_path / "a.so") == ELF_MACHINES[ARCH]


def test_without_ziglang_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        BuildError, match=r"'ziglang' is not installed; install enginewright\[build"
    ):
        compile_engine(tmp_path / "a.c", tmp_path / "a.so", GENERIC, ARCH, None)


def test_errors_of_the_bundled_compiler_are_shown(tmp_path: Path) -> None:
    source = tmp_path / "wrong.c"
    source.write_text("int f(void) { return nothing; }\n")
    with pytest.raises(BuildError, match="nothing"):
        compile_engine(source, tmp_path / "a.so", GENERIC, ARCH, None)
    assert not (tmp_path / "a.so").exists()


def elf_machine(path: Path) -> int:
    head = path.read_bytes()[:20]
    assert head[:4] == b"\x7fELF"
    return int.from_bytes(head[18:20], "little")


def test_an_engine_for_aarch64_compiles_here(tmp_path: Path) -> None:
    """All formats of weights and cache are in the one library of kernels."""
    others = tuple(str(SOURCES / f"attend_{kv}.c") for kv in KV_DTYPES)
    compile_engine(
        SOURCES / "kernels.c",
        tmp_path / "a.so",
        by_name("neon"),
        "aarch64",
        None,
        ("-Werror", *others),
    )
    assert elf_machine(tmp_path / "a.so") == ELF_MACHINES["aarch64"]


@pytest.mark.skipif(ARCH != "x86_64", reason="builds for an x86-64 machine from another one")
@pytest.mark.parametrize("isa", ["neon", "avx2"])
def test_a_build_for_another_machine(isa: str, tmp_path: Path) -> None:
    spec = Spec("llama", "int8", isa=isa)
    result = CpuTarget().compile(spec.network(), spec.build, tmp_path, Progress())
    arch = by_name(isa).arch
    assert (result.isa, result.needs.machine) == (isa, arch)
    assert elf_machine(tmp_path / "rank0.engine") == ELF_MACHINES[arch or ARCH]
    assert not (tmp_path / "engine.c").exists()


@pytest.mark.skipif(
    shutil.which("qemu-aarch64") is None, reason="qemu-aarch64 (user mode) is not installed"
)
def test_aarch64_kernels_multiply_under_emulation(tmp_path: Path) -> None:
    source = tmp_path / "main.c"
    source.write_text(
        '#define EW_GROUP 32\n#include "rows.h"\n'
        "int main(void) {\n"
        "    int8_t w[16], a[4] = {1, -2, 3, 127};\n"
        "    for (int i = 0; i < 16; i++) w[i] = (int8_t)(i * 7 - 50);\n"
        "    vi c = vi_dot(vi_set1(5), vb_load(w), vb_set1(a));\n"
        "    for (int i = 0; i < 4; i++) {\n"
        "        int sum = 5;\n"
        "        for (int j = 0; j < 4; j++) sum += w[4 * i + j] * a[j];\n"
        "        if (c[i] != sum) return 1;\n"
        "    }\n"
        "    vi even = vi_from_vf(vf_set1(2.5f)), odd = vi_from_vf(vf_set1(-3.5f));\n"
        "    return even[0] == 2 && odd[3] == -4 ? 0 : 2;\n"
        "}\n"
    )
    program = tmp_path / "main"
    compile_engine(source, program, by_name("neon"), "aarch64", None, ("-static", "-fno-PIC"))
    assert subprocess.run(["qemu-aarch64", str(program)], check=False).returncode == 0
