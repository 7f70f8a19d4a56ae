"""The target protocol: what turns a lowered network into the files of an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ...runtime.artifact import Engine
from ...runtime.errors import InputError
from ...runtime.manifest import KvFacts, Needs, TensorFacts, TensorRTFacts
from ...runtime.session import Session
from ..config import BuildConfig
from ..network import Network
from ..progress import Progress

Opener = Callable[..., Session]
Tune = Callable[[Engine, str, "Path | None", Progress], dict[str, Any]]
"""Takes an engine, the effort ("fast" or "full"), the cache folder; returns `tactics`."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """What earlier builds have left, and what tells whether a build would make the same."""

    source: Callable[[], str]  # which checkpoint is read: a hash of its files and its config
    engine: Path | None  # what stands where the new engine goes; it is removed then
    cache: Path | None  # folder for what builds leave for each other


@dataclass(frozen=True, slots=True)
class TargetResult:
    """What a target made: the files that it wrote into the folder, and the facts about them."""

    files: dict[str, str]  # file name -> kind: "engine" (code) or "weights"
    kv: KvFacts
    tensors: list[TensorFacts]
    tactics: dict[str, Any]
    needs: Needs
    isa: str
    abi: int
    notes: list[str] = field(default_factory=list[str])  # sentences for the screen
    tensorrt: TensorRTFacts | None = None  # of an engine for GPUs
    # What opens a session for the self-check where the engine itself cannot run: a function like
    # runtime.session.open_session, or a sentence that says why there is none.
    opener: Opener | str | None = None
    scratch: Path | None = None  # folder of what the opener needs; removed after the self-check
    recipes: dict[str, str] = field(default_factory=dict[str, str])  # as in the manifest
    tune: Tune | None = None  # measures tactics in the finished engine; None: there are none


class Target(Protocol):
    """A device family that networks are compiled for. A target knows ops, never model families."""

    name: str

    def describe(self, config: BuildConfig) -> dict[str, Any]:
        """Say what the engine will need, without compiling; keys isa, features, os, machine.

        Raises InputError for an ISA that is unknown or that cannot run the chosen formats.
        """
        ...

    def compile(
        self,
        network: Network,
        config: BuildConfig,
        folder: Path,
        progress: Progress,
        reuse: Reuse | None = None,
    ) -> TargetResult:
        """Write the engine's code and weights into `folder`.

        `network` has been through the passes; its weights are loaded one at a time. Phases are
        opened on `progress` (`with progress.phase("pack weights", total): progress.advance()`).
        Without `reuse` everything is made anew.
        Raises BuildError when the compiler fails.
        """
        ...


def get_target(name: str) -> Target:
    """Find a target by name and import it. Raises InputError for an unknown one."""
    if name == "cpu":
        from .cpu.target import CpuTarget

        return CpuTarget()
    if name in ("tensorrt", "tensorrt-rtx"):
        from .tensorrt.target import TensorRTTarget

        return TensorRTTarget("tensorrt" if name == "tensorrt" else "tensorrt-rtx")
    raise InputError(f"there is no target {name!r}; expected 'cpu', 'tensorrt' or 'tensorrt-rtx'")
