"""What a GPU engine needs against what a machine has: every difference in words, with its cure."""

from __future__ import annotations

import msgspec
import pytest

from enginewright.runtime.cuda import GpuDevice, Probe
from enginewright.runtime.gpu_check import differences
from tests.support.engines import GPU_FACTS


def lacks(
    capability: str = "8.9",
    driver: str = "13.0",
    version: str | None = "1.7.1.116",
    reason: str = "",
    **changes: object,
) -> list[str]:
    probe = Probe(reason, driver, (GpuDevice("RTX 4090", capability, 24 << 30),))
    return differences(
        msgspec.structs.replace(GPU_FACTS, **changes), probe, lambda package: version
    )


def test_a_machine_that_has_all() -> None:
    assert lacks() == []


def test_no_gpu() -> None:
    assert lacks(reason="there is no NVIDIA driver here") == [
        "an NVIDIA GPU (there is no NVIDIA driver here)"
    ]


def test_another_device() -> None:
    assert lacks("12.0") == [
        "compute capability 8.6 or 8.9 (this RTX 4090 has 12.0: build the engine again with "
        "--compute-capability 12.0)"
    ]


@pytest.mark.parametrize(("capability", "runs"), [("7.5", False), ("8.6", True), ("12.0", True)])
def test_an_engine_for_newer_devices(capability: str, runs: bool) -> None:
    assert (lacks(capability, newer_devices=True) == []) == runs


def test_an_old_driver() -> None:
    assert lacks(driver="12.8") == [
        "a driver that speaks CUDA 13 (this one speaks 12.8: update it)"
    ]


def test_another_tensorrt() -> None:
    assert lacks(version="1.6.0.1") == [
        "tensorrt-rtx 1.7.1.116 (this is 1.6.0.1: pip install tensorrt-rtx-cu13==1.7.1.116, or "
        "build the engine again)"
    ]
    assert lacks(version="1.8.0.1", version_compatible=True) == []
    assert len(lacks(version="1.6.0.1", version_compatible=True)) == 1


def test_no_tensorrt() -> None:
    assert lacks(version=None) == [
        "tensorrt-rtx 1.7.1.116 (it is not installed: pip install tensorrt-rtx-cu13==1.7.1.116)"
    ]


def test_everything_at_once() -> None:
    assert len(lacks("9.0", "12.1", None)) == 3
