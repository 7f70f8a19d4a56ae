"""Engine folders for tests that need the folder and not the code in it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from enginewright.runtime.abi_cpu import ABI_VERSION
from enginewright.runtime.artifact import write_engine
from enginewright.runtime.manifest import (
    FileFacts,
    KvFacts,
    Limits,
    Manifest,
    Needs,
    Producer,
    Quantization,
    SelfCheckFigures,
    Source,
    TargetFacts,
    TensorFacts,
    TensorRTFacts,
)

GPU_FACTS = TensorRTFacts(
    library="tensorrt-rtx",
    version="1.7.1.116",
    cuda="13",
    compute_capabilities=("8.6", "8.9"),
    newer_devices=False,
    version_compatible=False,
    stripped=False,
    attention="gather",
    compute_dtype="f16",
    num_kv_heads=2,
    head_dim=64,
    max_blocks=8,
    workspace_bytes=1 << 20,
    profiles=(),
    kernels=(),
)
"""What an engine for two devices says of itself."""

FILES = ("rank0.engine", "rank0.weights", "tokenizer/tokenizer.json")


def make_manifest() -> Manifest:
    """Return a manifest with every field filled in; `write_engine` replaces the files."""
    return Manifest(
        producer=Producer(name="enginewright", version="0.1.0"),
        name="tiny",
        created="2026-01-01T00:00:00+00:00",
        model={"family": "llama", "vocab_size": 64, "num_layers": 2, "hidden_size": 32},
        build={"target": "cpu", "weights": "int8"},
        target=TargetFacts(
            name="cpu",
            isa="portable",
            needs=Needs(features=(), os="linux", machine="x86_64"),
            abi=ABI_VERSION,
        ),
        limits=Limits(max_batch_size=4, max_num_tokens=64, max_seq_len=128),
        kv=KvFacts(dtype="int8", block_tokens=32, block_bytes=4096, num_layers=2),
        tensors=(
            TensorFacts(
                name="embedding.weight",
                shape=(64, 32),
                format="int8",
                file="rank0.weights",
                offset=0,
                bytes=2048,
            ),
        ),
        tactics={
            "chosen_by": "cost model",
            "tile_rows": 96,
            "column_rows": 24,
            "redundant_rows": 2,
            "products": [
                {
                    "name": "head 64x32 int8_64",
                    "block_rows": [1, 2, 4, 6, 6, 6, 6, 6],
                    "prefetch": [False, False, *[True] * 6],
                    "microseconds": [],
                }
            ],
        },
        files={name: FileFacts(sha256="0" * 64, bytes=4096) for name in FILES},
        recipes={"rank0.weights": "1" * 64},
        source=Source(name="tiny", files={"model.gguf": "0" * 64}, parameters=2048, bytes=8192),
        quantization=Quantization(weights="int8", head="int8", activations="int8", kv="int8"),
        self_check=SelfCheckFigures(
            sequences=3,
            positions=64,
            greedy_agreement=0.98,
            max_abs_error=0.5,
            mean_abs_error=0.01,
            mean_kl=0.002,
            kl_limit=0.05,
            passed=True,
        ),
        times={"passes": 0.5, "compile": 2.0},
        peak_memory_bytes=1_000_000,
    )


def write_files(folder: Path, weights_bytes: int = 4096) -> None:
    """Write what stands for code, weights and a tokenizer into an existing folder."""
    (folder / "rank0.engine").write_bytes(b"code" * 16)
    (folder / "rank0.weights").write_bytes(bytes(range(256)) * (weights_bytes // 256))
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "tokenizer.json").write_text("{}")


def make_engine(folder: Path, weights_bytes: int = 4096, **changes: object) -> Manifest:
    """Write a whole engine folder; `changes` replace fields of its manifest."""
    folder.mkdir(parents=True)
    write_files(folder, weights_bytes)
    return write_engine(folder, msgspec.structs.replace(make_manifest(), **changes))
