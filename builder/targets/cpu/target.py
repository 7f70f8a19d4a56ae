"""The CPU target: a lowered network becomes a shared object and a file of packed weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ....runtime import machine
from ....runtime.abi_cpu import ABI_VERSION
from ....runtime.artifact import Engine
from ....runtime.errors import UnsupportedModelError
from ....runtime.machine import Machine
from ....runtime.manifest import KvFacts, Needs, TensorFacts
from ....runtime.session_cpu import CODE_FILE, WEIGHTS_FILE
from ...config import BuildConfig
from ...network import Network
from ...passes.roll_layers import roll_layers
from ...progress import Progress
from ..base import Reuse, TargetResult, Tune
from .calls import PackedWeight
from .code_cache import CodeCache
from .emit import emit
from .isa import IsaLevel, find_level
from .program import ModelFacts, Program, build_program
from .reuse import recipe, take_file
from .tactics import Tunable, cost_model, measure
from .toolchain import Compilation
from .weights_file import PAGE, write_weights

BLOCK_TOKENS = 32
TIMINGS_FILE = "timings.json"


class CpuTarget:
    """Compiles for one instruction set of x86-64 or AArch64, with Linux around it."""

    name = "cpu"

    def describe(self, config: BuildConfig) -> dict[str, Any]:
        """Say what the engine will need. Raises InputError for an unknown instruction set."""
        level, arch = self._choose(config)
        return {"isa": level.name, "features": list(level.features), "os": "linux", "machine": arch}

    def compile(
        self,
        network: Network,
        config: BuildConfig,
        folder: Path,
        progress: Progress,
        reuse: Reuse | None = None,
    ) -> TargetResult:
        """Write `rank0.engine` and `rank0.weights` into `folder`, both at the same time.

        Raises BuildError, or UnsupportedModelError for a network that the kernels cannot run.
        """
        level, arch = self._choose(config)
        with progress.phase("lower"):
            facts = model_facts(network, config)
            program = build_program(network, roll_layers(network), facts, level)
            tensors = _place(program.packed)
            source = folder / "engine.c"
            source.write_text(emit(program))
        cache = CodeCache(reuse.cache / "code") if reuse and reuse.cache else None
        code, weights = folder / CODE_FILE, folder / WEIGHTS_FILE
        recipes: dict[str, str] = {}
        with Compilation(source, code, level, arch, config.cc, cache=cache) as compilation:
            with progress.phase("pack weights", len(program.packed)):
                if reuse is not None:
                    recipes[WEIGHTS_FILE] = recipe(program.packed, level, reuse.source())
                if reuse is None or not take_file(reuse.engine, weights, recipes[WEIGHTS_FILE]):
                    write_weights(program.packed, level, weights, progress)
            with progress.phase("compile"):
                compilation.finish()
        source.unlink()
        kv = KvFacts(
            dtype=facts.kv_dtype,
            block_tokens=BLOCK_TOKENS,
            block_bytes=kv_block_bytes(facts, level),
            num_layers=facts.num_layers,
        )
        return TargetResult(
            files={CODE_FILE: "engine", WEIGHTS_FILE: "weights"},
            kv=kv,
            tensors=tensors,
            tactics=msgspec.to_builtins(cost_model(program.product_calls, level)),
            tune=_tune(program, level),
            needs=Needs(features=level.features, os="linux", machine=arch),
            isa=level.name,
            abi=ABI_VERSION,
            recipes=recipes,
        )

    def _choose(self, config: BuildConfig) -> tuple[IsaLevel, str]:
        here: Machine = machine.detect()
        level = find_level(config.isa, here)
        return level, level.arch or here.arch


def _tune(program: Program, level: IsaLevel) -> Tune:
    """Return what measures tactics for the finished engine of a program."""
    calls = [call for segment in program.segments for call in segment.calls]
    slots = {call.product: call.slot for call in calls if call.product is not None}
    numbers = range(len(program.product_calls))
    tunable = Tunable(program.product_calls, [slots[number] for number in numbers], level)

    def tune(engine: Engine, effort: str, cache: Path | None, progress: Progress) -> dict[str, Any]:
        file = None if cache is None else cache / TIMINGS_FILE
        return measure(engine, tunable, effort, file, progress)

    return tune


def model_facts(network: Network, config: BuildConfig) -> ModelFacts:
    """Collect the constants that the attention kernels are compiled for.

    Raises UnsupportedModelError when layers differ in heads or head size.
    """
    shapes = {
        (node.attrs["num_heads"], node.attrs["num_kv_heads"], node.attrs["head_dim"])
        for node in network.nodes
        if node.op == "attention"
    }
    if len(shapes) != 1:
        raise UnsupportedModelError(
            f"the CPU target needs one attention shape for all layers, found {sorted(shapes)}"
        )
    heads, kv_heads, head_dim = shapes.pop()
    return ModelFacts(
        title=f"{network.config.family}, {network.config.num_layers} layers",
        row_size=int(network.outputs[0].shape[-1]),
        num_layers=sum(node.op == "attention" for node in network.nodes),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        kv_dtype=config.kv_format,
    )


def kv_block_bytes(facts: ModelFacts, level: IsaLevel) -> int:
    """Bytes of one KV block, all layers of it; plugins/cpu/attention.h has the same sum."""
    keys = -(-facts.head_dim // 4) * 4
    values = -(-facts.head_dim // level.lanes) * level.lanes
    if facts.kv_dtype == "int8":
        size = (keys + values + 8) * BLOCK_TOKENS
    else:
        size = (facts.head_dim + values) * BLOCK_TOKENS * (2 if facts.kv_dtype == "bf16" else 4)
    return facts.num_layers * facts.num_kv_heads * (-(-size // 64) * 64)


def _place(packed: list[PackedWeight]) -> list[TensorFacts]:
    """Give every weight its page-aligned place in the file."""
    at = 0
    tensors: list[TensorFacts] = []
    for item in packed:
        item.offset = at
        tensors.append(
            TensorFacts(
                name=item.weight.name,
                shape=item.weight.sizes,
                format=item.layout.format,
                file=WEIGHTS_FILE,
                offset=at,
                bytes=item.layout.bytes,
            )
        )
        at += -(-item.layout.bytes // PAGE) * PAGE
    return tensors
