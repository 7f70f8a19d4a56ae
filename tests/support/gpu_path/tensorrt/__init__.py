"""The stand-ins of TensorRT as one module; `tensorrt.plugin` is NVIDIA's own, of its bindings."""

import importlib.util

from tests.support.fake_tensorrt import *  # noqa: F403
from tests.support.fake_tensorrt import __version__  # noqa: F401
from tests.support.fake_tensorrt_builder import *  # noqa: F403
from tests.support.fake_tensorrt_plugins import *  # noqa: F403

_bindings = importlib.util.find_spec("tensorrt_bindings")
if _bindings is not None:  # it needs the library to be imported, and its Python sources do not
    __path__ += _bindings.submodule_search_locations or []  # noqa: F405
