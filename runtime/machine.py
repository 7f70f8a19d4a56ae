"""What this machine is: its processor's features, cores and memory, as far as an engine cares."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .control_groups import cpu_quota, memory_limits
from .manifest import Needs

_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine, as an engine sees it."""

    os: str  # "linux", "darwin" ...
    arch: str  # "x86_64", "aarch64"
    model_name: str
    features: frozenset[str]  # as Linux names them in /proc/cpuinfo
    cores: int  # that this process may use
    memory_bytes: int  # of the machine, or of the control group that limits this process


@lru_cache(maxsize=1)
def detect() -> Machine:
    """Look at the machine that this process runs on."""
    flags, model = _processor()
    return Machine(
        os=platform.system().lower(),
        arch={"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine()),
        model_name=model,
        features=flags,
        cores=usable_cores(),
        memory_bytes=_memory_limit(),
    )


def missing(needs: Needs) -> list[str]:
    """Say what `needs` asks for and this machine lacks; an empty list means the engine can run."""
    machine = detect()
    lacks: list[str] = []
    if needs.os != machine.os:
        lacks.append(f"the operating system {needs.os} (this is {machine.os})")
    if needs.machine != machine.arch:
        lacks.append(f"the processor architecture {needs.machine} (this is {machine.arch})")
        return lacks
    lacks += [
        f"the processor feature {name}" for name in needs.features if name not in machine.features
    ]
    return lacks


def usable_cores() -> int:
    """Return how many cores this process may use: affinity and control group limits count."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        cores = os.cpu_count() or 1
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, int(quota)))


def available_memory() -> int:
    """Return the bytes that can be taken now without swapping: the machine's or the group's."""
    left = [limit - used for limit, used in memory_limits()]
    return max(0, min([_meminfo("MemAvailable"), *left]))


def _processor() -> tuple[frozenset[str], str]:
    try:
        text = _CPUINFO.read_text()
    except OSError:
        return frozenset(), platform.processor() or "unknown"
    flags: frozenset[str] = frozenset()
    model = ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        key = key.strip()
        if key in ("flags", "Features") and not flags:
            flags = frozenset(value.split())
        elif key == "model name" and not model:
            model = value.strip()
        if not line and flags:
            break
    return flags, model or platform.processor() or "unknown"


def _meminfo(field: str) -> int:
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _memory_limit() -> int:
    return min([_meminfo("MemTotal"), *(limit for limit, _ in memory_limits())])
