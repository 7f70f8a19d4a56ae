"""THE ordered list of passes, run one by one, each verified, each dumped if asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..config import BuildConfig
from ..network import Network, NetworkError
from ..printer import format_network
from ..verify import verify
from .assign_formats import AssignFormats
from .base import Pass
from .dead_code import DeadCode
from .fuse_gate_up import FuseGateUp
from .fuse_qkv import FuseQkv
from .fuse_quantize import FuseQuantize
from .fuse_residual import FuseResidual
from .fuse_swiglu_epilogue import FuseSwigluEpilogue
from .quantize_activations import QuantizeActivations
from .split_attention import SplitAttention

Observer = Callable[[str, bool, float], None]
"""Told after each pass: its name, whether it modified the network, its seconds."""


def make_passes(config: BuildConfig) -> list[Pass]:
    """Return the passes of a build, in order.

    A GPU engine multiplies in floats, so its activations are not quantized.
    """
    rounding: list[Pass] = [] if config.for_gpu else [QuantizeActivations(), FuseQuantize()]
    return [
        FuseQkv(),
        FuseGateUp(),
        FuseSwigluEpilogue(),
        FuseResidual(),
        AssignFormats(config),
        *rounding,
        SplitAttention(),
        DeadCode(),
    ]


def run_pipeline(
    network: Network,
    config: BuildConfig,
    dump_dir: Path | None = None,
    observer: Observer | None = None,
) -> Network:
    """Run every pass on `network`, in place, and return it.

    With `dump_dir` the printed network is written there before the first pass (00-model.txt) and
    after each (01-fuse_qkv.txt ...). Raises NetworkError if a pass breaks a rule.
    """
    return run_passes(network, make_passes(config), dump_dir, observer)


def run_passes(
    network: Network,
    passes: Sequence[Pass],
    dump_dir: Path | None = None,
    observer: Observer | None = None,
) -> Network:
    """Run the given passes; see `run_pipeline`."""
    verify(network)
    _dump(network, dump_dir, 0, "model")
    done: set[str] = set()
    for number, step in enumerate(passes, start=1):
        missing = [name for name in step.requires if name not in done]
        if missing:
            raise NetworkError(f"{step.name} needs {', '.join(missing)} to have run before it")
        begin = time.perf_counter()
        modified = step.run(network)
        seconds = time.perf_counter() - begin
        try:
            verify(network)
        except NetworkError as error:
            raise NetworkError(f"after {step.name}: {error}") from error
        done.add(step.name)
        _dump(network, dump_dir, number, step.name)
        if observer is not None:
            observer(step.name, modified, seconds)
    return network


def _dump(network: Network, folder: Path | None, number: int, name: str) -> None:
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number:02d}-{name}.txt"
    path.write_text(format_network(network), encoding="utf-8")
