"""What this machine is, read from the files in which the system says so."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from enginewright.runtime import machine
from enginewright.runtime.manifest import Needs

X86 = """processor\t: 0
model name\t: Some CPU @ 2.6GHz
flags\t\t: fpu avx2 fma

processor\t: 1
model name\t: Another
flags\t\t: fpu
"""
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd asimddp\nCPU part\t: 0xd0c\n"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put texts where the module looks for the system's files."""
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "memory_limits", list)

    def write(**texts: str) -> None:
        for name, text in texts.items():
            (tmp_path / name.replace("_", ".")).write_text(text)

    return write


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> machine.Machine:
    """A machine that is always the same."""
    made = machine.Machine(
        os="linux",
        arch="x86_64",
        model_name="Some CPU",
        features=frozenset({"avx2", "fma"}),
        cores=4,
        memory_bytes=1 << 30,
    )
    monkeypatch.setattr(machine, "detect", lambda: made)
    return made


def test_this_machine_is_detected() -> None:
    found = machine.detect()
    assert found.os == "linux"
    assert found.arch
    assert found.model_name
    assert 1 <= found.cores <= (os.cpu_count() or 1)
    assert found.memory_bytes > 1 << 20
    assert machine.detect() is found


def test_features_are_those_of_the_first_processor(files: Callable[..., None]) -> None:
    files(cpuinfo=X86)
    assert machine._processor() == (frozenset({"fpu", "avx2", "fma"}), "Some CPU @ 2.6GHz")  # pyright: ignore[reportPrivateUsage]
    files(cpuinfo=ARM)
    assert machine._processor()[0] == {"fp", "asimd", "asimddp"}  # pyright: ignore[reportPrivateUsage]


def test_without_cpuinfo_there_are_no_features(files: Callable[..., None]) -> None:
    features, name = machine._processor()  # pyright: ignore[reportPrivateUsage]
    assert features == frozenset()
    assert name


def test_nothing_is_missing_where_everything_is_there(here: machine.Machine) -> None:
    assert machine.missing(Needs(features=("avx2",), os="linux", machine="x86_64")) == []
    assert machine.missing(Needs(features=(), os=here.os, machine=here.arch)) == []


@pytest.mark.usefixtures("here")
def test_what_is_missing_is_named() -> None:
    needs = Needs(features=("avx2", "avx512f", "amx_int8"), os="linux", machine="x86_64")
    assert machine.missing(needs) == [
        "the processor feature avx512f",
        "the processor feature amx_int8",
    ]
    needs = Needs(features=("asimddp",), os="darwin", machine="aarch64")
    assert machine.missing(needs) == [
        "the operating system darwin (this is linux)",
        "the processor architecture aarch64 (this is x86_64)",
    ]


def test_missing_features_are_given_in_the_order_of_the_needs(here: machine.Machine) -> None:
    bare = dataclasses.replace(here, features=frozenset())
    assert bare.features == frozenset()
    lacks = machine.missing(Needs(features=("fma", "b", "a"), os="linux", machine="x86_64"))
    assert [text.split()[-1] for text in lacks] == ["b", "a"]


@pytest.mark.parametrize(
    ("quota", "expected"), [(None, 8), (3.0, 3), (1.5, 1), (0.5, 1), (99.0, 8)]
)
def test_cores_are_those_of_the_affinity_and_of_the_group(
    quota: float | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4, 5, 6, 7})
    monkeypatch.setattr(machine, "cpu_quota", lambda: quota)
    assert machine.usable_cores() == expected


def test_memory_is_the_least_of_the_machine_and_its_groups(
    files: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    files(meminfo="MemTotal:  8000 kB\nMemFree: 1 kB\nMemAvailable:  5000 kB\n")
    for groups, available, total in (
        ([], 5000, 8000),
        ([(3000, 1000), (9000, 100)], 2000, 3000),
        ([(6000, 5500)], 500, 6000),
        ([(500, 1000)], 0, 500),
    ):
        limits = [(limit * 1024, used * 1024) for limit, used in groups]
        monkeypatch.setattr(machine, "memory_limits", lambda limits=limits: limits)
        assert machine.available_memory() == available * 1024
        assert machine._memory_limit() == total * 1024  # pyright: ignore[reportPrivateUsage]


def test_without_meminfo_the_system_is_asked(files: Callable[..., None]) -> None:
    assert machine.available_memory() > 0
    files(meminfo="nonsense\n")
    assert machine.available_memory() > 0
