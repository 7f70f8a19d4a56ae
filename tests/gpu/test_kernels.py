"""Every kernel on the device, one by one, against numpy: the interpreter's cases."""

from __future__ import annotations

import importlib.util

import pytest

from enginewright.runtime.cuda import Probe
from enginewright.runtime.cuda_contract import ARCHITECTURES
from tests.support.device_launch import DeviceLaunch
from tests.support.kernel_cases import all_cases, check

NAMES = list(all_cases(lambda *arguments, **changes: None))
SLACK = 10.0  # a device's exponentials and square roots are approximations


@pytest.fixture(scope="module")
def launch(gpu: Probe, tmp_path_factory: pytest.TempPathFactory) -> DeviceLaunch:
    capability = gpu.devices[0].compute_capability
    if capability not in ARCHITECTURES:
        pytest.skip(f"no kernel is compiled for compute capability {capability}")
    if importlib.util.find_spec("triton") is None:
        pytest.skip("kernels are compiled by triton, which is not installed (docs/nvidia.md)")
    return DeviceLaunch(tmp_path_factory.mktemp("kernels"), capability)


@pytest.mark.parametrize("name", NAMES)
def test_kernel(name: str, launch: DeviceLaunch) -> None:
    check(name, all_cases(launch)[name](), SLACK)
