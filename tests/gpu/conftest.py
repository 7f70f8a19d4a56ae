"""The suite for machines with an NVIDIA GPU; elsewhere it skips with the probe's reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginewright.builder.targets.tensorrt.library import RTX_CAPABILITIES
from enginewright.runtime.cuda import Probe, probe


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what stands in this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session", autouse=True)
def gpu() -> Probe:
    """The device that the suite runs on."""
    found = probe()
    if found.reason:
        pytest.skip(f"no GPU: {found.reason}")
    return found


@pytest.fixture(scope="session")
def capability(gpu: Probe) -> str:
    """Its compute capability, if TensorRT-RTX compiles for it."""
    found = gpu.devices[0].compute_capability
    if found not in RTX_CAPABILITIES:
        pytest.skip(f"TensorRT-RTX has no target for compute capability {found}")
    return found
