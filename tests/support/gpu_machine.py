"""A machine whose GPU is the host: CUDA and TensorRT are stand-ins, the product is itself."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent / "gpu_path"
MODULES = {
    "cuda.bindings.runtime": "tests.support.fake_cuda",
    "cuda.bindings.driver": "tests.support.fake_cuda",
    "tensorrt": "tests.support.fake_tensorrt",
}


def search_path() -> str:
    """Return the PYTHONPATH of a process on such a machine."""
    return os.pathsep.join((str(FOLDER), str(ROOT)))


@contextlib.contextmanager
def gpu_machine() -> Iterator[None]:
    """Make this process, and those that it starts, run on such a machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        patch.setenv("PYTHONPATH", search_path())
        for name, stand_in in MODULES.items():
            patch.setitem(sys.modules, name, importlib.import_module(stand_in))
        yield
