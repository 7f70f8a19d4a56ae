"""Fixtures that several folders of tests share."""

import pytest

from tests.support.cpu_engine import EngineCache


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> EngineCache:
    """Tiny CPU engines, each compiled once."""
    return EngineCache(tmp_path_factory.mktemp("engines"))
