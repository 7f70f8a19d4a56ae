"""The kernel libraries of every instruction set that this machine runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import pytest

from enginewright.builder.targets.cpu.isa import IsaLevel
from tests.support.cpu_engine import LEVELS
from tests.support.cpu_kernels import Kernels

Compiled = Callable[[IsaLevel], Kernels]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """Compile the library of a level, once."""
    return lru_cache(maxsize=None)(lambda level: Kernels(level, tmp_path_factory.mktemp("kernels")))


@pytest.fixture(scope="session", params=LEVELS, ids=lambda level: level.name)
def kernels(request: pytest.FixtureRequest, compiled: Compiled) -> Kernels:
    """The library of each level that this machine runs."""
    return compiled(request.param)


@pytest.fixture(
    scope="session", params=[level for level in LEVELS if level.dot_bf16], ids=lambda lv: lv.name
)
def dot_kernels(request: pytest.FixtureRequest, compiled: Compiled) -> Kernels:
    """The library of each level that this machine runs and that multiplies bf16."""
    return compiled(request.param)
