"""Can this machine run a GPU engine: driver, device and TensorRT against the manifest."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable

from .cuda import Probe
from .manifest import TensorRTFacts

PACKAGES = {"tensorrt": "tensorrt-cu13-bindings", "tensorrt-rtx": "tensorrt-rtx-cu13-bindings"}
_BUILD_AGAIN = "build the engine again with --compute-capability"


def installed_version(package: str) -> str | None:
    """Return the version of an installed package; None if there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def differences(
    facts: TensorRTFacts,
    probe: Probe,
    installed: Callable[[str], str | None] = installed_version,
) -> list[str]:
    """Say what the engine needs and this machine lacks, and what to do; empty if it can run."""
    found: list[str] = []
    if probe.reason:
        found.append(f"an NVIDIA GPU ({probe.reason})")
    else:
        found += _device_differences(facts, probe)
    found += _library_differences(facts, installed)
    return found


def _device_differences(facts: TensorRTFacts, probe: Probe) -> list[str]:
    found: list[str] = []
    device, driver = probe.devices[0], probe.driver
    wanted = facts.compute_capabilities
    here = device.compute_capability
    newer = facts.newer_devices and _pair(here) >= min(map(_pair, wanted), default=(0, 0))
    if wanted and here not in wanted and not newer:
        found.append(
            f"compute capability {' or '.join(wanted)} (this {device.name} has {here}: "
            f"{_BUILD_AGAIN} {here})"
        )
    if int(driver.split(".")[0] or 0) < int(facts.cuda):
        found.append(
            f"a driver that speaks CUDA {facts.cuda} (this one speaks {driver}: update it)"
        )
    return found


def _library_differences(facts: TensorRTFacts, installed: Callable[[str], str | None]) -> list[str]:
    version = installed(PACKAGES[facts.library])
    if version == facts.version:
        return []
    install = f"pip install {PACKAGES[facts.library].removesuffix('-bindings')}=={facts.version}"
    if version is None:
        return [f"{facts.library} {facts.version} (it is not installed: {install})"]
    if facts.version_compatible and _numbers(version) >= _numbers(facts.version):
        return []
    return [
        f"{facts.library} {facts.version} (this is {version}: {install}, or build the engine again)"
    ]


def _pair(capability: str) -> tuple[int, int]:
    major, _, minor = capability.partition(".")
    return int(major), int(minor)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
