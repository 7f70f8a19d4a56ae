"""tests.support.fake_tensorrt as the module that runtime.tensorrt_plan imports."""

from tests.support.fake_tensorrt import *  # noqa: F403
from tests.support.fake_tensorrt import __version__  # noqa: F401
