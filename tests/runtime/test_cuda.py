"""The probe: what it says of each answer of the CUDA runtime, and of none."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from enginewright.runtime import cuda
from enginewright.runtime.cuda import GpuDevice, probe, probe_with
from enginewright.runtime.errors import IncompatibleMachineError
from tests.support.gpu_machine import ROOT, search_path


def runtime(driver: int = 13000, status: int = 0, count: int = 1) -> Any:
    facts = SimpleNamespace(name=b"RTX 4090\0", major=8, minor=9, totalGlobalMem=24 << 30)
    return SimpleNamespace(
        cudaDriverGetVersion=lambda: (0, driver),
        cudaGetDeviceCount=lambda: (status, count),
        cudaGetDeviceProperties=lambda index: (0, facts),
    )


def test_a_device_is_described() -> None:
    found = probe_with(runtime())
    assert (found.reason, found.driver) == ("", "13.0")
    assert found.devices == (GpuDevice("RTX 4090", "8.9", 24 << 30),)


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"status": 35, "driver": 0}, "there is no NVIDIA driver here"),
        ({"status": 35, "driver": 12080}, "speaks CUDA 12.8, older than"),
        ({"status": 100}, "lists no device"),
        ({"count": 0}, "lists no device"),
        ({"status": 999}, r"the CUDA runtime reports error \(999\)"),
    ],
)
def test_reasons(answers: dict[str, int], reason: str) -> None:
    found = probe_with(runtime(**answers))
    assert found.devices == ()
    assert re.search(reason, found.reason)


def test_a_runtime_that_raises_is_a_reason() -> None:
    def fail() -> Any:
        raise RuntimeError("no libcudart")

    broken = SimpleNamespace(cudaDriverGetVersion=fail)
    assert "RuntimeError: no libcudart" in probe_with(broken).reason


def test_without_the_package_the_reason_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    assert "pip install 'enginewright[cuda]'" in probe().reason


def test_a_device_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "probe", lambda: cuda.Probe("the NVIDIA driver lists no device"))
    with pytest.raises(IncompatibleMachineError, match="GPU, and the NVIDIA driver lists no dev"):
        cuda.CudaDevice(Path("engine"), ())


def test_every_function_that_is_called_exists() -> None:
    """Nothing here runs them; at least they are there, under the names that are used."""
    runtime_module = pytest.importorskip("cuda.bindings.runtime")
    driver_module = pytest.importorskip("cuda.bindings.driver")
    source = Path(cuda.__file__).read_text()
    names = set(re.findall(r"\b(cuda[A-Z]\w+)", source))
    assert {name for name in names if not hasattr(runtime_module, name)} <= {
        "cudaErrorInsufficientDriver",  # these are members of enumerations
        "cudaMemcpyHostToDevice",
        "cudaMemcpyDeviceToHost",
        "cudaMemcpyDeviceToDevice",
        "cudaStreamCaptureModeThreadLocal",
    }
    kinds = runtime_module.cudaMemcpyKind
    assert kinds.cudaMemcpyHostToDevice is not kinds.cudaMemcpyDeviceToHost
    assert hasattr(runtime_module.cudaStreamCaptureMode, "cudaStreamCaptureModeThreadLocal")
    for name in set(re.findall(r"driver\.(cu[A-Z]\w+)", source)):
        assert hasattr(driver_module, name), name


def test_every_method_of_a_plan_exists() -> None:
    trt = pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is for x86-64 Linux only")
    for owner, names in {
        "Runtime": ("deserialize_cuda_engine", "engine_host_code_allowed"),
        "ICudaEngine": ("create_execution_context",),
        "IExecutionContext": (
            "set_optimization_profile_async",
            "set_input_shape",
            "set_tensor_address",
            "execute_async_v3",
        ),
        "OnnxParserRefitter": ("refit_from_file",),
        "Refitter": ("refit_cuda_engine",),
    }.items():
        for name in names:
            assert hasattr(getattr(trt, owner), name), (owner, name)


def test_the_gpu_suite_of_the_device_passes_where_cuda_is_the_host() -> None:
    """The tests that a machine with a GPU runs of runtime.cuda, on the stand-in of CUDA."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "tests/gpu/test_device.py",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": search_path()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout
