"""The TensorRT targets: a network is exported, compiled, and described."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from ....runtime import machine
from ....runtime.artifact import ENGINE_FILE, WEIGHTS_FILE, Engine
from ....runtime.cuda_contract import CONTRACT_VERSION
from ....runtime.dtypes import DType
from ....runtime.errors import BuildError
from ....runtime.manifest import Needs, TensorRTFacts
from ....runtime.open_tensorrt import MODEL_FILE
from ....runtime.session import Session
from ...config import BuildConfig
from ...network import Network
from ...progress import Progress
from ..base import Reuse, TargetResult
from .compile import compile_plan
from .facts import engine_facts, kv_facts
from .kernels import INSTALL, session_kernels
from .library import LibraryName, check_capabilities, check_options, load_library
from .plugins import check_plugins

_MOST_BF16_PARAMETERS = 5_000_000  # numpy multiplies bf16 element by element

EXPORT_FOLDER = ".export"
"""Where the exported model lies while the engine is made; a dot keeps it out of the engine."""


class TensorRTTarget:
    """Compiles for NVIDIA GPUs, with TensorRT-RTX or the full TensorRT."""

    def __init__(self, name: LibraryName) -> None:
        self.name: str = name
        self._library: LibraryName = name

    def rounded_activations(self, config: BuildConfig) -> dict[str, DType]:
        """None: products are of floats, in the type that the graph computes in."""
        return {}

    def describe(self, config: BuildConfig) -> dict[str, Any]:
        """Say what the engine will need. Raises InputError for what the library does not allow."""
        check_options(self.name, config)
        capabilities = check_capabilities(self.name, config)
        return {
            "isa": architectures(capabilities),
            "features": [],
            "os": "linux",
            "machine": machine.detect().arch,
        }

    def compile(
        self,
        network: Network,
        config: BuildConfig,
        folder: Path,
        progress: Progress,
        reuse: Reuse | None = None,
    ) -> TargetResult:
        """Write `rank0.engine`, and for a stripped plan its model and weights beside it.

        Nothing is reused: the library compiles a plan as a whole. Raises BuildError with the
        library's error line, or UnsupportedModelError.
        """
        described = self.describe(config)
        library = load_library(self._library)
        if config.gpu.attention == "plugin":
            check_plugins(library, config)  # an export may take minutes
        from .onnx_export import export

        if config.gpu.strip_plan:
            model, data = folder / MODEL_FILE, folder / WEIGHTS_FILE
        else:
            (folder / EXPORT_FOLDER).mkdir()
            model = folder / EXPORT_FOLDER / MODEL_FILE
            data = folder / EXPORT_FOLDER / WEIGHTS_FILE
        with progress.phase("export", len(network.nodes)):
            export(network, config, model, progress, data)
        facts = engine_facts(network, config, library)
        with progress.phase("compile"):
            plan = compile_plan(library, model, facts.profiles, config, folder / ENGINE_FILE)
        with progress.phase("kernels"):
            kernels = session_kernels(facts, config.kv_format, folder)
        facts = msgspec.structs.replace(facts, kernels=tuple(kernels))
        files = {ENGINE_FILE: "engine"} | {kernel.file: "engine" for kernel in kernels}
        if config.gpu.strip_plan:
            files |= {MODEL_FILE: "engine", WEIGHTS_FILE: "weights"}
        return TargetResult(
            files=files,
            kv=kv_facts(network, config),
            tensors=[],
            tactics={"layers": plan.layers, "timing_cache_bytes": plan.cache_bytes},
            needs=Needs(features=(), os="linux", machine=described["machine"]),
            isa=described["isa"],
            abi=CONTRACT_VERSION,
            notes=_notes(facts),
            tensorrt=facts,
            opener=_opener(model, facts, _parameters(network)),
            scratch=folder / EXPORT_FOLDER,
        )


def architectures(capabilities: tuple[str, ...]) -> str:
    """Return compute capabilities as compilers name them: sm_86, sm_89."""
    names = [f"sm_{capability.replace('.', '')}" for capability in capabilities]
    return ", ".join(names) or "this GPU"


def _notes(facts: TensorRTFacts) -> list[str]:
    notes = [
        "the plan was compiled and not run: no GPU took part, and a self-check is of the exported "
        "graph on the CPU"
    ]
    if not facts.kernels:
        notes.append(
            "the engine holds no GPU kernels for sampling and KV writing, so no GPU can serve it: "
            f"they are compiled by the Python package triton, which is missing; {INSTALL}"
        )
    return notes


def _parameters(network: Network) -> int:
    return sum(math.prod(weight.sizes) for weight in network.weights())


def _opener(model: Path, facts: TensorRTFacts, parameters: int) -> Any:
    """Return what opens a session over the exported graph, or a sentence that says why not."""
    if facts.compute_dtype == "bf16" and parameters > _MOST_BF16_PARAMETERS:
        return (
            "the self-check was skipped: onnxruntime has no bf16 kernels for the CPU, and ONNX's "
            "own evaluator would take hours; build with --compute-dtype f16 to have it"
        )

    def open_stand_in(engine: Engine, **options: Any) -> Session:
        try:
            from .stand_in import open_stand_in as opened

            return opened(engine, model, **options)
        except ImportError as error:
            raise BuildError(
                f"the self-check needs the Python package onnxruntime ({error}); install it, or "
                "give --no-self-check"
            ) from error

    return open_stand_in
