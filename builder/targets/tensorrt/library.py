"""The two TensorRT libraries as one: the module, its version, and what each of them allows."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

from ....runtime.errors import BuildError, InputError
from ...config import BuildConfig

LibraryName = Literal["tensorrt", "tensorrt-rtx"]
RTX_VERSION = "1.7.1.116"
RTX_CAPABILITIES = ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1")
_FP8_FROM = (8, 9)
_BF16_FROM = (8, 0)


@dataclass(frozen=True, slots=True)
class Library:
    """A TensorRT-like module that was imported, and which of the two it is."""

    name: LibraryName
    module: ModuleType
    version: str
    cuda: str  # major version of the CUDA that it was made for

    def compute_capabilities(self, config: BuildConfig) -> tuple[str, ...]:
        """Return what the plan will run on: what was asked for, else the library's default.

        Raises InputError for one that the library has no target for.
        """
        return check_capabilities(self.name, config)

    def runs_on_newer_devices(self, config: BuildConfig) -> bool:
        """Whether devices after those named can run the plan."""
        return config.gpu.hardware_compatible == "ampere_plus"


def check_capabilities(name: str, config: BuildConfig) -> tuple[str, ...]:
    """Return the compute capabilities of a build, without importing the library.

    Raises InputError for one that has no target, or that lacks the type of a weight.
    """
    asked = config.gpu.compute_capabilities
    if name == "tensorrt-rtx":
        asked = asked or ("8.6", "8.9", "12.0")
        unknown = [one for one in asked if one not in RTX_CAPABILITIES]
        if unknown:
            raise InputError(
                f"TensorRT-RTX {RTX_VERSION} has no target for compute capability "
                f"{', '.join(unknown)}; it has {', '.join(RTX_CAPABILITIES)}: choose among these, "
                "or build with --target tensorrt on such a device"
            )
    formats = (config.weights, config.head_format, config.kv_format, config.compute_dtype)
    for wanted, least in (("fp8", _FP8_FROM), ("bf16", _BF16_FROM)):
        old = [one for one in asked if _pair(one) < least]
        if wanted in formats and old:
            raise InputError(
                f"compute capability {', '.join(old)} has no {wanted}, which needs "
                f"{least[0]}.{least[1]} or newer; leave it out or choose another format"
            )
    return asked


def check_options(name: str, config: BuildConfig) -> None:
    """Raise InputError for an option that the library, or the form of attention, does not allow."""
    gpu = config.gpu
    if gpu.attention == "gather" and config.kv_format == "fp8":
        raise InputError(
            "an fp8 KV cache cannot be gathered: ONNX's Gather has no fp8; give --kv-dtype int8, "
            "or --attention plugin with --target tensorrt"
        )
    if name == "tensorrt":
        return
    if gpu.attention == "plugin":
        raise InputError(
            "TensorRT-RTX takes no plugins that are compiled ahead of time, so it cannot have "
            "--attention plugin; leave it out, or build with --target tensorrt"
        )
    for given, option, reason in (
        (gpu.strip_plan, "--strip-plan", "its builder strips weights only beside a GPU driver"),
        (
            gpu.version_compatible,
            "--version-compatible",
            "the package has no lean runtime to put into the plan",
        ),
        (
            gpu.timing_cache is not None,
            "--timing-cache",
            "it measures on the device when an engine is loaded, and its builder reads none",
        ),
        (
            gpu.hardware_compatible is not None,
            "--hardware-compatible",
            "it compiles for the devices of --compute-capability",
        ),
    ):
        if given:
            raise InputError(f"TensorRT-RTX has no {option}: {reason}; leave it out")


def load_library(name: str) -> Library:
    """Import a library. Raises BuildError with what to install, or if no driver answers.

    The full TensorRT crashes without a driver, so the driver is asked before it is touched.
    """
    if name == "tensorrt-rtx":
        return wrap_module("tensorrt-rtx", _import("tensorrt_rtx", "tensorrt-rtx"))
    from ....runtime.cuda import probe

    found = probe()
    if found.reason:
        raise BuildError(
            f"the full TensorRT builds only beside a GPU, and {found.reason}; build with --target "
            "tensorrt-rtx, or on a machine that has one"
        )
    return wrap_module("tensorrt", _import("tensorrt", "tensorrt"))


def wrap_module(name: LibraryName, module: ModuleType) -> Library:
    """Return a library of a module that is imported already."""
    return Library(name, module, str(module.__version__), cuda="13")


def _import(module: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:
        raise BuildError(
            f"the Python package {module} cannot be imported ({error}); install it with "
            f"pip install 'enginewright[{extra}]'"
        ) from error


def _pair(capability: str) -> tuple[int, int]:
    major, minor = capability.split(".")
    return int(major), int(minor)
