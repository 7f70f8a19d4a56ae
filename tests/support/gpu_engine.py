"""GPU engines without a GPU: an exported graph, its manifest, and a session on the stand-in."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import msgspec

from enginewright.builder.config import BuildConfig
from enginewright.builder.config_tensorrt import TensorRTConfig
from enginewright.builder.model_config import ModelConfig
from enginewright.builder.models.registry import build_network
from enginewright.builder.network import Network
from enginewright.builder.passes.pipeline import run_pipeline
from enginewright.builder.progress import Progress
from enginewright.builder.reference import Reference
from enginewright.builder.targets.tensorrt.facts import engine_facts, kv_facts
from enginewright.builder.targets.tensorrt.library import Library
from enginewright.builder.targets.tensorrt.onnx_export import export
from enginewright.builder.targets.tensorrt.stand_in import open_stand_in as stand_in_session
from enginewright.builder.targets.tensorrt.target import EXPORT_FOLDER
from enginewright.plugins.cuda.variants import session_variants
from enginewright.runtime.artifact import (
    ENGINE_FILE,
    TOKENIZER_FOLDER,
    Engine,
    open_engine,
    write_engine,
)
from enginewright.runtime.cuda_contract import CONTRACT_VERSION
from enginewright.runtime.manifest import (
    Limits,
    Needs,
    TargetFacts,
    TensorRTFacts,
)
from enginewright.runtime.open_tensorrt import MODEL_FILE
from enginewright.runtime.session_tensorrt import TensorRTSession

from .byte_tokenizer import write_tokenizer
from .engines import make_manifest
from .fake_kernels import compile_kernels
from .fake_tensorrt import FakePlan
from .tiny import ArrayTensor, as_tensors, make_tiny_config, make_tiny_weights


@dataclass(frozen=True)
class GpuSpec:
    """What a tiny GPU engine is exported from."""

    family: str = "llama"
    weights: str = "f32"
    attention: str = "gather"
    kv_dtype: str | None = None
    head_weights: str | None = None
    compute_dtype: str | None = "f32"
    max_batch_size: int = 16
    max_num_tokens: int = 64
    max_seq_len: int = 256
    multiple_profiles: bool = False
    changes: tuple[tuple[str, object], ...] = ()

    @property
    def model(self) -> ModelConfig:
        return make_tiny_config(self.family, **dict(self.changes))  # type: ignore[arg-type]

    @property
    def build(self) -> BuildConfig:
        config = BuildConfig(
            target="tensorrt",
            weights=self.weights,
            head_weights=self.head_weights,
            kv_dtype=self.kv_dtype,
            group=32,
            max_batch_size=self.max_batch_size,
            max_num_tokens=self.max_num_tokens,
            max_seq_len=self.max_seq_len,
            tensorrt=TensorRTConfig(
                attention=self.attention,
                compute_dtype=self.compute_dtype,
                compute_capabilities=("8.9",),
                multiple_profiles=self.multiple_profiles,
            ),
        )
        return config.resolve(self.model)

    def tensors(self) -> dict[str, ArrayTensor]:
        return as_tensors(make_tiny_weights(self.model, seed=1))

    def network(self, lowered: bool = True) -> Network:
        network = build_network(self.model, self.tensors(), self.build.seq_len)
        return run_pipeline(network, self.build) if lowered else network

    def reference(self) -> Reference:
        """The interpreter with the engine's own roundings of weights and cache."""
        return Reference(
            self.network(), self.build.kv_format, fake_quantize=True, rotate_keys=False
        )


def facts_of(spec: GpuSpec) -> TensorRTFacts:
    """Return what an engine of this spec says of itself."""
    library = Library("tensorrt", ModuleType("tensorrt"), "11.4.0.106", cuda="13")
    return engine_facts(spec.network(), spec.build, library)


def export_engine(spec: GpuSpec, folder: Path, tokenizer: Path | None = None) -> Engine:
    """Write an engine with the exported graph hidden in it.

    Its plan and its kernels are for a machine of tests.support.gpu_machine. Without a folder of a
    `tokenizer` a token is a byte.
    """
    (folder / EXPORT_FOLDER).mkdir(parents=True)
    network, build = spec.network(), spec.build
    export(network, build, model_of(folder), Progress())
    if tokenizer is None:
        (folder / TOKENIZER_FOLDER).mkdir()
        write_tokenizer(folder / TOKENIZER_FOLDER)
    else:
        shutil.copytree(tokenizer, folder / TOKENIZER_FOLDER)
    facts = facts_of(spec)
    slowly = spec.attention == "plugin" or spec.compute_dtype == "bf16"
    plan = FakePlan(str(model_of(folder).resolve()), facts.profiles, slowly)
    (folder / ENGINE_FILE).write_bytes(msgspec.json.encode(plan))
    gathers = facts.attention == "gather"
    variants = session_variants(build.kv_format, facts.num_kv_heads, facts.head_dim, gathers)
    kernels = tuple(one.facts for one in compile_kernels(variants, ("8.9",), folder))
    facts = msgspec.structs.replace(facts, kernels=kernels)
    needs = Needs(features=(), os="linux", machine="x86_64")
    manifest = msgspec.structs.replace(
        make_manifest(),
        name=folder.name,
        model=dataclasses.asdict(spec.model),
        build=build.to_json(),
        target=TargetFacts(
            name="tensorrt", isa="sm_89", needs=needs, abi=CONTRACT_VERSION, tensorrt=facts
        ),
        limits=Limits(
            max_batch_size=build.max_batch_size,
            max_num_tokens=build.max_num_tokens,
            max_seq_len=build.seq_len,
        ),
        kv=kv_facts(network, build),
        tensors=(),
    )
    write_engine(folder, manifest)
    return open_engine(folder)


def model_of(folder: Path) -> Path:
    """Return where an engine of `export_engine` has its graph."""
    return folder / EXPORT_FOLDER / MODEL_FILE


def open_stand_in(engine: Engine, blocks: int = 40, **options: int) -> TensorRTSession:
    """Open a session whose device is the host and whose plan is the exported graph."""
    memory = engine.manifest.kv.block_bytes * blocks
    return stand_in_session(engine, model_of(engine.folder), memory, **options)


@contextlib.contextmanager
def stand_in(engine: Engine, blocks: int = 40, **options: int) -> Iterator[TensorRTSession]:
    """Open a stand-in session and close it."""
    with contextlib.closing(open_stand_in(engine, blocks, **options)) as session:
        yield session
