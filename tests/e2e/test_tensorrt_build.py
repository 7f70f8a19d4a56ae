"""The real model compiled by TensorRT-RTX, for three devices, on a machine with none of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginewright.runtime.artifact import open_engine

from .conftest import build_engine

pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is for x86-64 Linux only")

CAPABILITIES = ("8.6", "8.9", "12.0")
LAYERS = 30  # of SmolLM2-135M


@pytest.mark.slow
@pytest.mark.parametrize("format", ["f16", "int8"])
def test_smollm2(format: str, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--target", "tensorrt-rtx", "--compute-capability", ",".join(CAPABILITIES))
    manifest = open_engine(build_engine(format, *options), "full").manifest
    facts, layers = manifest.target.tensorrt, manifest.tactics["layers"]
    assert facts is not None
    assert facts.compute_capabilities == CAPABILITIES
    assert layers["ATTENTION_INPUT"] == LAYERS
    assert layers["ROTARY_EMBEDDING"] == 2 * LAYERS
    assert layers.get("DEQUANTIZE", 0) == (4 * LAYERS + 1 if format == "int8" else 0)
    check = manifest.self_check
    assert check is not None
    assert check.passed
    size = manifest.files["rank0.engine"].bytes
    with capsys.disabled():
        print(
            f"\nSmolLM2 {format}: compiled in {manifest.times['compile']:.1f} s, {size} bytes, "
            f"peak memory {manifest.peak_memory_bytes}, mean KL of the graph {check.mean_kl:.2g}"
        )
