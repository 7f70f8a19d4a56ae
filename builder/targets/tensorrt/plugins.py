"""The plugins of a build: the custom ops registered with the library, their kernels as PTX."""

from __future__ import annotations

import importlib
import json
import tempfile
from pathlib import Path
from typing import Any

from ....plugins.cuda.plugin_ops import Launch
from ....plugins.cuda.qdp import plugins_of
from ....runtime.cuda_contract import ARCHITECTURES
from ....runtime.errors import BuildError
from ....runtime.tensorrt_plan import MODULES
from ...config import BuildConfig
from .kernels import NO_TRITON, compile_kernels, has_triton
from .library import Library

_EVERY_NEWER_DEVICE = "8.0"  # its PTX runs on all that --hardware-compatible ampere_plus names


class PluginKernels:
    """Compiles what the plugins of one build launch, each kernel once."""

    def __init__(self, architecture: str) -> None:
        """`architecture` is the compute capability that PTX is made for."""
        self._architecture = architecture
        self._made: dict[str, tuple[str, str, int, int]] = {}
        self._failure: BuildError | None = None

    def compile(self, launch: Launch) -> tuple[str, str, int, int]:
        """Return symbol, PTX, threads and shared bytes of a launch's kernel.

        TensorRT is the caller, and makes a line of its own of what is raised: `check` has it.
        """
        key = json.dumps(launch.variant.to_json(), sort_keys=True)
        if key not in self._made:
            try:
                self._made[key] = self._compile(launch)
            except BuildError as error:
                self._failure = self._failure or error
                raise
        return self._made[key]

    def _compile(self, launch: Launch) -> tuple[str, str, int, int]:
        with tempfile.TemporaryDirectory(prefix="enginewright-plugin-") as name:
            folder = Path(name)
            [kernel] = compile_kernels([launch.variant], [self._architecture], folder, text=True)
            facts = kernel.facts
            ptx = (folder / facts.file).with_suffix(".ptx").read_text()
        return facts.symbol, ptx, facts.threads, facts.shared_bytes

    def check(self) -> None:
        """Raise the BuildError of the first kernel that did not compile, if there is one."""
        if self._failure is not None:
            raise self._failure


def check_plugins(library: Library, config: BuildConfig) -> tuple[Any, str]:
    """Return the library's module of plugins, and the compute capability that PTX is made for.

    Raises BuildError for a library without plugins, without triton, or for a device that no kernel
    is written for.
    """
    plugin = _plugin_module(library)
    if not has_triton():
        raise BuildError(NO_TRITON)
    return plugin, _architecture(config)


def register_plugins(library: Library, config: BuildConfig) -> PluginKernels:
    """Let the library know the custom ops; returns what compiles their kernels.

    Raises BuildError as `check_plugins`.
    """
    plugin, architecture = check_plugins(library, config)
    kernels = PluginKernels(architecture)
    plugins_of(library.module, plugin).compile_launch = kernels.compile
    return kernels


def has_plugins(trt: Any) -> bool:
    """Whether a TensorRT module takes plugins that are compiled ahead of time."""
    return hasattr(trt.NetworkDefinitionCreationFlag, "PREFER_AOT_PYTHON_PLUGINS")


def _plugin_module(library: Library) -> Any:
    name = f"{MODULES[library.name]}.plugin"
    if has_plugins(library.module):
        try:
            return importlib.import_module(name)
        except ImportError:
            pass  # the sentence is the same
    raise BuildError(
        f"{library.name} {library.version} has no plugins that are compiled ahead of time (there "
        f"is no {name}), which --attention plugin needs; leave it out, or build with TensorRT 11.4"
    )


def _architecture(config: BuildConfig) -> str:
    if config.gpu.hardware_compatible == "ampere_plus":
        return _EVERY_NEWER_DEVICE
    asked = config.gpu.compute_capabilities or _of_this_machine()
    unknown = [one for one in asked if one not in ARCHITECTURES]
    if unknown or len(asked) != 1:
        raise BuildError(
            f"--attention plugin is compiled for one device among {', '.join(ARCHITECTURES)}, and "
            f"this build is for {', '.join(asked)}; give one of them as --compute-capability, or "
            "--hardware-compatible ampere_plus"
        )
    return asked[0]


def _of_this_machine() -> tuple[str, ...]:
    from ....runtime.cuda import probe

    return tuple(device.compute_capability for device in probe().devices[:1])
