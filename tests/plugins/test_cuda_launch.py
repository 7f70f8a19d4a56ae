"""The kernels that the session launches, through runtime.cuda, where numpy stands in for them.

It holds the stand-in to the cases of the real kernels, and the code that runs these on a device.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from enginewright.builder.targets.tensorrt import kernels
from tests.support import fake_kernels
from tests.support.device_launch import DeviceLaunch
from tests.support.gpu_machine import gpu_machine
from tests.support.kernel_cases import all_cases, check

NAMES = [
    name
    for name in all_cases(lambda *arguments, **changes: None)
    if name.startswith(("kv_store", "sample"))
]


@pytest.mark.parametrize("name", NAMES)
def test_kernel(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "compile_kernels", fake_kernels.compile_kernels)
    with gpu_machine():
        check(name, all_cases(DeviceLaunch(tmp_path, "8.9"))[name]())
