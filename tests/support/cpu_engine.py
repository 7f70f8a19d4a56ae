"""CPU engines of tiny models: built once a session, opened and stepped as often as tests like."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from enginewright.builder.config import BuildConfig
from enginewright.builder.model_config import ModelConfig
from enginewright.builder.models.registry import build_network
from enginewright.builder.network import Network
from enginewright.builder.passes.pipeline import run_pipeline
from enginewright.builder.progress import Progress
from enginewright.builder.reference import Reference
from enginewright.builder.targets.cpu.isa import IsaLevel, runnable_levels
from enginewright.builder.targets.cpu.target import CpuTarget
from enginewright.runtime import machine
from enginewright.runtime.artifact import Engine, open_engine, write_engine
from enginewright.runtime.manifest import Limits, TargetFacts
from enginewright.runtime.session import Batch
from enginewright.runtime.session_cpu import CpuSession
from enginewright.runtime.tactics_cpu import CpuTactics

from .engines import make_manifest
from .tiny import ArrayTensor, as_tensors, make_tiny_config, make_tiny_weights

BLOCK_TOKENS = 32
MAX_BATCH_SIZE = 512  # rows whose logits one step gives
MAX_NUM_TOKENS = 1024
LEVELS: tuple[IsaLevel, ...] = tuple(runnable_levels(machine.detect()))
FORMATS = ("f32", "bf16", "int8", "int4")

# What each family is tried with: sizes that are multiples of nothing, windows across blocks, few
# and many query heads to a KV head, shared and separate heads.
_SIZES: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 96,
        "intermediate_size": 160,
        "head_dim": 24,
        "vocab_size": 253,
    },
    "mistral": {
        "num_kv_heads": 1,
        "intermediate_size": 96,
        "sliding_window": 40,
        "vocab_size": 161,
    },
    "qwen2": {
        "hidden_size": 80,
        "intermediate_size": 112,
        "head_dim": 20,
        "num_layers": 4,
        "sliding_window": 33,
        "window_layers": (1, 3),
        "vocab_size": 131,
    },
    "qwen3": {
        "num_heads": 6,
        "intermediate_size": 100,
        "num_layers": 2,
        "vocab_size": 97,
    },
}


@dataclass(frozen=True)
class Spec:
    """What a tiny engine is built from."""

    family: str
    weights: str
    isa: str = LEVELS[0].name
    kv_dtype: str | None = None
    head_weights: str | None = None
    group: int = 256
    changes: tuple[tuple[str, Any], ...] = field(default=())  # to the model's config

    @property
    def name(self) -> str:
        """A name for test ids and folders."""
        parts = [self.family, self.weights, self.isa, self.kv_dtype, self.head_weights]
        return "-".join([*filter(None, parts), *(f"{k}{v}" for k, v in self.changes)])

    @property
    def model(self) -> ModelConfig:
        """The model's config."""
        sizes = {"max_position_embeddings": 1500, **_SIZES[self.family], **dict(self.changes)}
        return make_tiny_config(self.family, **sizes)

    @property
    def build(self) -> BuildConfig:
        """The build's config, resolved."""
        config = BuildConfig(
            weights=self.weights,
            head_weights=self.head_weights,
            kv_dtype=self.kv_dtype,
            isa=self.isa,
            max_batch_size=MAX_BATCH_SIZE,
            max_num_tokens=MAX_NUM_TOKENS,
            group=self.group,
        )
        return config.resolve(self.model)

    def tensors(self) -> dict[str, ArrayTensor]:
        """Random weights; the last 40 rows of the head repeat the first, so that logits tie."""
        arrays = make_tiny_weights(self.model, seed=1)
        head = arrays.get("head.weight", arrays["embedding.weight"])
        head[-40:] = head[:40]
        return as_tensors(arrays)

    def network(self, lowered: bool = True) -> Network:
        """The model's network, through the passes if it is to be `lowered`."""
        network = build_network(self.model, self.tensors(), self.build.seq_len)
        return run_pipeline(network, self.build) if lowered else network

    def reference(self) -> Reference:
        """The interpreter with the engine's own roundings."""
        return Reference(self.network(), self.build.kv_format, fake_quantize=True)

    def plain_reference(self) -> Reference:
        """The interpreter of the model itself."""
        return Reference(self.network(lowered=False))


# Levels over one set of vectors differ in their integer products only.
_FLOAT_LEVELS = tuple({level.macros[:1]: level for level in reversed(LEVELS)}.values())


def _family_specs() -> tuple[Spec, ...]:
    """Every family in every format, and every format at every level that has its own kernels."""
    made: list[Spec] = []
    for j, weights in enumerate(FORMATS):
        levels = LEVELS if weights in ("int8", "int4") else _FLOAT_LEVELS
        for i in range(max(len(_SIZES), len(levels))):
            family = list(_SIZES)[i % len(_SIZES)]
            made.append(Spec(family, weights, levels[(i + j) % len(levels)].name))
    return tuple(made)


FAMILY_SPECS = _family_specs()


def family_spec(family: str, weights: str) -> Spec:
    """Return the first of FAMILY_SPECS that is of this family and format."""
    return next(s for s in FAMILY_SPECS if (s.family, s.weights) == (family, weights))


class EngineCache:
    """Builds each engine once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[Spec, Engine] = {}

    def get(self, spec: Spec) -> Engine:
        """Return the engine of a spec; nobody may change its files."""
        if spec not in self._made:
            self._made[spec] = build_engine(spec, self._folder / str(len(self._made)))
        return self._made[spec]

    @contextlib.contextmanager
    def session(
        self, spec: Spec, threads: int = 1, blocks: int = 400, tactics: CpuTactics | None = None
    ) -> Iterator[CpuSession]:
        """Open a session with room for `blocks` KV blocks, and close it."""
        engine = self.get(spec)
        if tactics is not None:
            plain = msgspec.to_builtins(tactics)
            manifest = msgspec.structs.replace(engine.manifest, tactics=plain)
            engine = dataclasses.replace(engine, manifest=manifest)
        memory = engine.manifest.kv.block_bytes * blocks
        session = CpuSession(engine, threads=threads, kv_cache_memory=memory)
        with contextlib.closing(session):
            yield session


def build_engine(spec: Spec, folder: Path) -> Engine:
    """Compile an engine into a new folder and open it."""
    folder.mkdir(parents=True)
    model, build = spec.model, spec.build
    result = CpuTarget().compile(spec.network(), build, folder, Progress())
    manifest = msgspec.structs.replace(
        make_manifest(),
        name=spec.name,
        model=dataclasses.asdict(model),
        build=build.to_json(),
        target=TargetFacts(name="cpu", isa=result.isa, needs=result.needs, abi=result.abi),
        limits=Limits(
            max_batch_size=build.max_batch_size,
            max_num_tokens=build.max_num_tokens,
            max_seq_len=build.seq_len,
        ),
        kv=result.kv,
        tensors=tuple(result.tensors),
        tactics=result.tactics,
    )
    write_engine(folder, manifest)
    return open_engine(folder, "full")


def make_batch(
    parts: Sequence[npt.ArrayLike],
    past: Sequence[int],
    tables: Sequence[npt.ArrayLike],
    rows: npt.ArrayLike | None = None,
) -> Batch:
    """Pack one run of ids a sequence; tables are padded with -1; None for `rows` means all."""
    ids = [np.asarray(part, np.int32) for part in parts]
    starts = np.cumsum([0, *map(len, ids)]).astype(np.int32)
    blocks = [np.asarray(table, np.int32) for table in tables]
    padded = np.full((len(ids), max(map(len, blocks))), -1, np.int32)
    for row, table in zip(padded, blocks, strict=True):
        row[: len(table)] = table
    wanted = np.arange(starts[-1]) if rows is None else np.asarray(rows)
    return Batch(
        token_ids=np.concatenate(ids),
        seq_starts=starts,
        past_tokens=np.asarray(past, np.int32),
        block_tables=padded,
        logit_rows=wanted.astype(np.int32),
    )


def run_chunks(
    step: Callable[[Batch], npt.NDArray[np.float32]],
    ids: npt.NDArray[np.int32],
    table: npt.ArrayLike,
    chunk: int,
) -> npt.NDArray[np.float32]:
    """Compute one sequence `chunk` tokens at a time; returns the logits of all its tokens."""
    return np.concatenate(
        [
            step(make_batch([ids[start : start + chunk]], [start], [table]))
            for start in range(0, len(ids), chunk)
        ]
    )


def random_ids(spec: Spec, count: int, seed: int = 0) -> npt.NDArray[np.int32]:
    """Return random token ids of a spec's vocabulary."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, spec.model.vocab_size, count).astype(np.int32)
