"""The kernel libraries of every instruction set that this machine runs."""

from __future__ import annotations

import pytest

from tests.support.cpu_engine import LEVELS
from tests.support.cpu_kernels import Kernels


@pytest.fixture(scope="session", params=LEVELS, ids=lambda level: level.name)
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """One library of kernels, compiled once."""
    return Kernels(request.param, tmp_path_factory.mktemp("kernels"))
