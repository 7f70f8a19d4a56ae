"""The options of `enginewright build` that only a target for NVIDIA GPUs has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

TARGETS = ("cpu", "tensorrt", "tensorrt-rtx")

_OPTIONS = (
    click.option(
        "--compute-capability",
        "compute_capabilities",
        metavar="LIST",
        help="GPU: the devices to compile for, as 8.6,8.9,12.0.",
    ),
    click.option(
        "--attention",
        type=click.Choice(["gather", "plugin"]),
        help="GPU: how pages are read, by the network itself (the default) or by a plugin.",
    ),
    click.option(
        "--compute-dtype",
        type=click.Choice(["f32", "f16", "bf16"]),
        help="GPU: type of activations; that of the weights if it is a float, else f16.",
    ),
    click.option(
        "--multiple-profiles",
        is_flag=True,
        default=None,
        help="GPU: optimize small and large steps apart; takes longer and more memory.",
    ),
    click.option(
        "--timing-cache",
        type=click.Path(dir_okay=False),
        help="GPU: file of measured times, read if it is there and written after the build; not "
        "with TensorRT-RTX.",
    ),
    click.option(
        "--version-compatible",
        is_flag=True,
        default=None,
        help="GPU: later versions of TensorRT can read the engine; not with TensorRT-RTX.",
    ),
    click.option(
        "--hardware-compatible",
        type=click.Choice(["ampere_plus", "same_compute_capability"]),
        help="GPU: devices beside the one of this machine; not with TensorRT-RTX.",
    ),
    click.option(
        "--strip-plan",
        is_flag=True,
        default=None,
        help="GPU: keep weights beside the plan and put them in when it is opened; not with "
        "TensorRT-RTX.",
    ),
)
_NAMES = (
    "compute_capabilities",
    "attention",
    "compute_dtype",
    "multiple_profiles",
    "timing_cache",
    "version_compatible",
    "hardware_compatible",
    "strip_plan",
)


def gpu_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_gpu_options(settings: dict[str, Any]) -> dict[str, Any]:
    """Take the options out of a command's settings; returns those that were given."""
    taken = {name: settings.pop(name) for name in _NAMES}
    given = {name: value for name, value in taken.items() if value is not None}
    if "compute_capabilities" in given:
        parts = given["compute_capabilities"].split(",")
        given["compute_capabilities"] = tuple(part.strip() for part in parts)
    return given
