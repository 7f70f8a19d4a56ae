"""The instruction sets that engines are compiled for, best first, and what each one needs."""

from __future__ import annotations

from dataclasses import dataclass

from ....runtime.errors import IncompatibleMachineError, InputError
from ....runtime.machine import Machine


@dataclass(frozen=True, slots=True)
class IsaLevel:
    """One instruction set. The panel facts agree with plugins/cpu/isa.h; a test compares them."""

    name: str
    arch: str | None  # as `uname -m` says it; None: any
    features: tuple[str, ...]  # as Linux names them in /proc/cpuinfo
    macros: tuple[str, ...]
    zig_cpu: str  # zig's -mcpu
    gcc_flags: tuple[str, ...]
    lanes: int
    panel: int  # weight columns that stand side by side
    offset: int  # added to an int8 weight when it is stored
    max_rows: int  # of activations, that a product multiplies at once
    dot_bf16: int = 0  # rows for bf16 and fp8 weights are rounded, and padded to so many; 0: f32
    prefetch_rows: int = 3  # with fewer the processor's own prefetches do better


LEVELS = (
    IsaLevel(
        "amx",
        "x86_64",
        (
            "avx512f",
            "avx512bw",
            "avx512dq",
            "avx512vl",
            "avx512_vnni",
            "avx512_bf16",
            "avx512vbmi",
            "fma",
            "amx_tile",
            "amx_int8",
            "amx_bf16",
        ),
        ("EW_ISA_AVX512", "EW_HAS_BF16", "EW_HAS_AMX"),
        "x86_64_v4+avx512vnni+avx512bf16+avx512vbmi+amx_tile+amx_int8+amx_bf16",
        (
            "-march=x86-64-v4",
            "-mavx512vnni",
            "-mavx512bf16",
            "-mavx512vbmi",
            "-mamx-tile",
            "-mamx-int8",
            "-mamx-bf16",
            "-mprefer-vector-width=512",
        ),
        lanes=16,
        panel=32,
        offset=128,
        max_rows=6,
        dot_bf16=32,
    ),
    IsaLevel(
        "avx512-bf16",
        "x86_64",
        (
            "avx512f",
            "avx512bw",
            "avx512dq",
            "avx512vl",
            "avx512_vnni",
            "avx512_bf16",
            "avx512vbmi",
            "fma",
        ),
        ("EW_ISA_AVX512", "EW_HAS_BF16"),
        "x86_64_v4+avx512vnni+avx512bf16+avx512vbmi",
        (
            "-march=x86-64-v4",
            "-mavx512vnni",
            "-mavx512bf16",
            "-mavx512vbmi",
            "-mprefer-vector-width=512",
        ),
        lanes=16,
        panel=32,
        offset=128,
        max_rows=6,
        dot_bf16=4,
    ),
    IsaLevel(
        "avx512",
        "x86_64",
        ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "fma"),
        ("EW_ISA_AVX512",),
        "x86_64_v4+avx512vnni",
        ("-march=x86-64-v4", "-mavx512vnni", "-mprefer-vector-width=512"),
        lanes=16,
        panel=32,
        offset=128,
        max_rows=6,
    ),
    IsaLevel(
        "avx2-vnni",
        "x86_64",
        ("avx2", "fma", "avx_vnni"),
        ("EW_ISA_AVX2", "EW_HAS_AVXVNNI"),
        "x86_64_v3+avxvnni",
        ("-march=x86-64-v3", "-mavxvnni"),
        lanes=8,
        panel=16,
        offset=128,
        max_rows=4,
    ),
    IsaLevel(
        "avx2",
        "x86_64",
        ("avx2", "fma"),
        ("EW_ISA_AVX2",),
        "x86_64_v3",
        ("-march=x86-64-v3",),
        lanes=8,
        panel=16,
        offset=0,
        max_rows=4,
        prefetch_rows=1,
    ),
    IsaLevel(
        "neon-i8mm",
        "aarch64",
        ("asimd", "asimddp", "i8mm"),
        ("EW_ISA_NEON", "EW_HAS_I8MM"),
        "baseline+dotprod+i8mm",
        ("-march=armv8.2-a+dotprod+i8mm",),
        lanes=4,
        panel=16,
        offset=0,
        max_rows=4,
    ),
    IsaLevel(
        "neon",
        "aarch64",
        ("asimd", "asimddp"),
        ("EW_ISA_NEON",),
        "baseline+dotprod",
        ("-march=armv8.2-a+dotprod",),
        lanes=4,
        panel=16,
        offset=0,
        max_rows=3,
    ),
    IsaLevel("generic", None, (), (), "baseline", (), lanes=4, panel=16, offset=0, max_rows=2),
)


def find_level(name: str | None, machine: Machine) -> IsaLevel:
    """Return the level of that name, or the best one that `machine` can run if it is None.

    Raises InputError for an unknown name, IncompatibleMachineError where no level fits.
    """
    if name is not None:
        for level in LEVELS:
            if level.name == name:
                return level
        known = ", ".join(level.name for level in LEVELS)
        raise InputError(f"there is no instruction set {name!r}; expected one of {known}")
    for level in LEVELS:
        if level.arch in (None, machine.arch) and set(level.features) <= machine.features:
            return level
    raise IncompatibleMachineError(f"no instruction set fits this machine ({machine.arch})")


def runnable_levels(machine: Machine) -> list[IsaLevel]:
    """Return every level that `machine` can run, best first."""
    return [
        level
        for level in LEVELS
        if level.arch in (None, machine.arch) and set(level.features) <= machine.features
    ]
