"""Fixtures that several folders of tests share."""

import pytest
from hypothesis import HealthCheck, settings

from tests.support.cpu_engine import EngineCache

# Examples are generated and run on machines that are busy with other things: time is no failure.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> EngineCache:
    """Tiny CPU engines, each compiled once."""
    return EngineCache(tmp_path_factory.mktemp("engines"))
