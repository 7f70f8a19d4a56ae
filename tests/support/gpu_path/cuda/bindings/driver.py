"""tests.support.fake_cuda as the module that runtime.cuda imports."""

from tests.support.fake_cuda import *  # noqa: F403
