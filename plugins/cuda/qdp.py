"""The custom ops as TensorRT plugins (QDP, compiled ahead of time), for the full TensorRT.

All that is decided is decided in plugin_ops.py. TensorRT-RTX has none of this kind, and this module
has never met a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, List, Tuple, Union  # noqa: UP035 - TensorRT compares with these

from ...runtime.cuda_contract import CUSTOM_OPS, DOMAIN, op_name
from .plugin_ops import (
    Launch,
    TensorType,
    aliases,
    input_names,
    launch_of,
    read_shape,
    strip_scratch,
    type_combinations,
)

Compile = Callable[[Launch], tuple[str, str, int, int]]
"""From a launch to the kernel's symbol, PTX, threads and shared bytes."""

_ENUMS = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "fp8": "fp8",
    "int8": "int8",
    "i32": "int32",
}
_TUNED = {
    "f32": "FP32",
    "f16": "FP16",
    "bf16": "BF16",
    "fp8": "FP8",
    "int8": "INT8",
    "i32": "INT32",
}


class Plugins:
    """Every custom op, with and without scales, as a plugin of one TensorRT module.

    A name can be registered once in a process, so that builds share it and change `compile_launch`.
    """

    def __init__(self, trt: Any, plugin: Any) -> None:
        """Register with `plugin`, the module tensorrt.plugin of `trt`."""
        self.compile_launch: Compile | None = None
        for op, spec in CUSTOM_OPS.items():
            for has_scales in (False, True):
                _register(trt, plugin, op, spec.attributes, has_scales, self._compile)

    def _compile(self, launch: Launch) -> tuple[str, str, int, int]:
        assert self.compile_launch is not None, "nothing is being built"
        return self.compile_launch(launch)


@lru_cache(maxsize=1)
def plugins_of(trt: Any, plugin: Any) -> Plugins:
    """Return the plugins of a module, registered when it is asked for first."""
    return Plugins(trt, plugin)


def _register(
    trt: Any,
    plugin: Any,
    op: str,
    attributes: tuple[tuple[str, str], ...],
    has_scales: bool,
    compile_launch: Compile,
) -> None:
    """TensorRT reads inputs and attributes off annotations, so the functions are given some."""
    names = input_names(op, has_scales)
    kinds = {name: float if kind.startswith("float") else int for name, kind in attributes}
    given: dict[str, Any] = {name: plugin.TensorDesc for name in names} | kinds
    in_place = aliases(op, has_scales)
    count = len(in_place) or 1
    outputs_type = Tuple[(plugin.TensorDesc,) * count]  # type: ignore[valid-type] # noqa: UP006
    dtypes = {getattr(trt, kind): name for name, kind in _ENUMS.items()}

    def describe(*values: Any) -> Any:
        if in_place:
            return tuple(values[index].aliased() for index in in_place.values())
        return (values[0].like(),)

    def tune(*_: Any) -> list[Any]:
        return [
            plugin.AutoTuneCombination(", ".join(_TUNED[name] for name in types))
            for types in type_combinations(op)
            if len(types) == len(names) + count
        ]

    def implement(*values: Any) -> Any:
        passed = dict(zip(given, values, strict=False))
        inputs = [
            TensorType(dtypes[passed[name].dtype], tuple(passed[name].shape_expr)) for name in names
        ]
        known = [_concrete(tensor) for tensor in inputs]
        shape = read_shape(op, known, {name: passed[name] for name in kinds})
        launch = launch_of(op, shape, inputs)
        symbol, ptx, threads, shared = compile_launch(launch)
        parameters = plugin.KernelLaunchParams()
        parameters.grid_x, parameters.grid_y, parameters.grid_z = launch.grid
        parameters.block_x, parameters.shared_mem = threads, shared
        extra = plugin.SymIntExprs(len(launch.extra))
        for index, (_, value) in enumerate(launch.extra):
            extra[index] = plugin.SymInt32(value)
        return symbol.encode(), strip_scratch(ptx, symbol).encode(), parameters, extra

    name = f"{DOMAIN}::{op_name(op, has_scales)}"
    text = Union[str, bytes]  # noqa: UP007
    made = Tuple[text, text, plugin.KernelLaunchParams, plugin.SymExprs]  # noqa: UP006
    tuned = List[plugin.AutoTuneCombination]  # noqa: UP006
    outputs = {"outputs": outputs_type}
    for function, decorate, typed in (
        (describe, plugin.register(name), given | {"return": outputs_type}),
        (tune, plugin.autotune(name), given | outputs | {"return": tuned}),
        (implement, plugin.aot_impl(name), given | outputs | {"tactic": int, "return": made}),
    ):
        decorate(_with_signature(function, typed))


def _concrete(tensor: TensorType) -> TensorType:
    """Return a tensor whose symbolic sizes are those that are constant, and None otherwise."""
    sizes = tuple(
        size if isinstance(size, int) else size.constant_value() if size.is_constant else None
        for size in tensor.shape
    )
    return TensorType(tensor.dtype, sizes)


def _with_signature(function: Callable[..., Any], annotations: dict[str, Any]) -> Any:
    """Return a function of named, annotated parameters that calls `function` with their values."""
    names = ", ".join(name for name in annotations if name != "return")
    scope: dict[str, Any] = {"function": function}
    exec(f"def {function.__name__}({names}):\n    return function({names})", scope)
    made = scope[function.__name__]
    made.__annotations__ = dict(annotations)
    return made
