"""The compilation: an ONNX model becomes a plan, and any error line of the library ends it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....runtime.errors import BuildError
from ....runtime.manifest import ProfileFacts
from ....runtime.tensorrt_plan import logger_of
from ...config import BuildConfig
from .library import Library
from .plugins import register_plugins


@dataclass(frozen=True, slots=True)
class CompiledPlan:
    """What the library made of a model."""

    plan_bytes: int
    layers: dict[str, int]  # how many of each type the network has
    warnings: tuple[str, ...]
    cache_bytes: int  # of the timing cache that was written; 0: none was


def compile_plan(
    library: Library,
    model: Path,
    profiles: tuple[ProfileFacts, ...],
    config: BuildConfig,
    plan: Path,
) -> CompiledPlan:
    """Compile `model` into `plan`. Raises BuildError with the library's first error line."""
    trt: Any = library.module
    logger = logger_of(trt)
    logger.clear()
    kinds = trt.NetworkDefinitionCreationFlag
    flags = 1 << int(kinds.STRONGLY_TYPED)
    kernels = None
    if config.gpu.attention == "plugin":
        kernels = register_plugins(library, config)
        flags |= 1 << int(kinds.PREFER_AOT_PYTHON_PLUGINS)
    builder = trt.Builder(logger)
    network = builder.create_network(flags)
    parser = trt.OnnxParser(network, logger)
    parsed = parser.parse_from_file(str(model))
    _fail_on_errors(library, logger, "cannot read the exported network")
    if not parsed:
        raise BuildError(f"{library.name} cannot read {model}, and does not say why")
    layers = _prepare(trt, network)
    settings = builder.create_builder_config()
    _set_device(trt, settings, library, config)
    if kernels is not None:  # pages are written in place
        settings.set_preview_feature(trt.PreviewFeature.ALIASED_PLUGIN_IO_10_03, True)
    cache = _read_timing_cache(settings, config.gpu.timing_cache)
    for facts in profiles:
        _add_profile(builder, network, settings, facts)
    _fail_on_errors(library, logger, "refused the build's settings")
    data = builder.build_serialized_network(network, settings)
    if kernels is not None:
        kernels.check()
    _fail_on_errors(library, logger, "cannot compile the network")
    if data is None:
        raise BuildError(f"{library.name} compiled nothing, and does not say why")
    plan.write_bytes(data)
    written = 0
    if cache is not None and config.gpu.timing_cache is not None:
        serialized = settings.get_timing_cache().serialize()
        Path(config.gpu.timing_cache).write_bytes(serialized)
        written = serialized.nbytes
    return CompiledPlan(plan.stat().st_size, layers, tuple(logger.warnings), written)


def _fail_on_errors(library: Library, logger: Any, what: str) -> None:
    """Raise BuildError if the library logged an error: it may go on as if nothing were wrong."""
    errors = logger.real_errors()
    if errors:
        raise BuildError(f"{library.name} {library.version} {what}: {errors[0]}")


def _prepare(trt: Any, network: Any) -> dict[str, int]:
    """Let every attention fall back to plain layers where no fused kernel is; count the layers."""
    types: Counter[str] = Counter()
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        types[layer.type.name] += 1
        if layer.type == trt.LayerType.ATTENTION_INPUT:
            layer.__class__ = trt.IAttentionInputLayer  # get_layer gives the base class only
            layer.attention.decomposable = True
    return dict(sorted(types.items()))


def _set_device(trt: Any, settings: Any, library: Library, config: BuildConfig) -> None:
    gpu = config.gpu
    if library.name == "tensorrt-rtx":
        capabilities = library.compute_capabilities(config)
        settings.num_compute_capabilities = len(capabilities)
        for index, capability in enumerate(capabilities):
            name = f"SM{capability.replace('.', '')}"
            settings.set_compute_capability(getattr(trt.ComputeCapability, name), index)
    if gpu.hardware_compatible is not None:
        level = getattr(trt.HardwareCompatibilityLevel, gpu.hardware_compatible.upper())
        settings.hardware_compatibility_level = level
    if gpu.version_compatible:
        settings.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    if gpu.strip_plan:
        settings.set_flag(trt.BuilderFlag.STRIP_PLAN)
        settings.set_flag(trt.BuilderFlag.REFIT)


def _read_timing_cache(settings: Any, path: str | None) -> Any:
    """Give the library the timings of earlier builds; returns the cache, None if none is wanted."""
    if path is None:
        return None
    file = Path(path)
    try:
        data = file.read_bytes() if file.exists() else b""
    except OSError as error:
        raise BuildError(f"the timing cache {file} cannot be read: {error}") from error
    cache = settings.create_timing_cache(data)
    if cache is None or not settings.set_timing_cache(cache, ignore_mismatch=False):
        raise BuildError(
            f"the timing cache {file} is of another TensorRT or another device; remove it or name "
            "another file"
        )
    return cache


def _add_profile(builder: Any, network: Any, settings: Any, facts: ProfileFacts) -> None:
    profile = builder.create_optimization_profile()
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        names = [tensor.get_dimension_name(axis) for axis in range(len(tensor.shape))]
        ranges = [
            facts.dims[name] if size < 0 else (size, size, size)
            for name, size in zip(names, tensor.shape, strict=True)
        ]
        if any(size < 0 for size in tensor.shape):
            profile.set_shape(tensor.name, *(tuple(sizes) for sizes in zip(*ranges, strict=True)))
    settings.add_optimization_profile(profile)
