"""A machine whose GPU is the host: CUDA and TensorRT are stand-ins, the product is itself."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent / "gpu_path"


def search_path() -> str:
    """Return the PYTHONPATH of a process on such a machine."""
    return os.pathsep.join((str(FOLDER), str(ROOT)))


@contextlib.contextmanager
def gpu_machine() -> Iterator[None]:
    """Make this process, and those that it starts, run on such a machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        patch.setenv("PYTHONPATH", search_path())
        for name in ("cuda.bindings.runtime", "cuda.bindings.driver", "tensorrt"):
            patch.setitem(sys.modules, name, _stand_in(name))
        yield


@lru_cache
def _stand_in(name: str) -> ModuleType:
    """Return a module of the folder, made once: what it registers stays registered."""
    path = FOLDER.joinpath(*name.split("."))
    package = path.is_dir()
    spec = importlib.util.spec_from_file_location(
        name,
        path / "__init__.py" if package else path.with_suffix(".py"),
        submodule_search_locations=[str(path)] if package else None,
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
