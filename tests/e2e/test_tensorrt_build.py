"""The real model compiled by TensorRT-RTX, for three devices, on a machine with none of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginewright.runtime.artifact import open_engine

from .conftest import build_engine

pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is for x86-64 Linux only")

CAPABILITIES = ("8.6", "8.9", "12.0")
LAYERS = 30  # of SmolLM2-135M


@pytest.mark.parametrize(
    ("format", "capabilities", "checked"),
    [
        ("int8", ("8.9",), False),  # half a minute; the others take a minute or two each
        pytest.param("f16", CAPABILITIES, True, marks=pytest.mark.slow),
        pytest.param("int8", CAPABILITIES, True, marks=pytest.mark.slow),
    ],
)
def test_smollm2(
    format: str,
    capabilities: tuple[str, ...],
    checked: bool,
    checkpoint: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--target", "tensorrt-rtx", "--compute-capability", ",".join(capabilities)]
    options += [] if checked else ["--no-self-check"]
    manifest = open_engine(build_engine(format, *options), "full").manifest
    facts, layers = manifest.target.tensorrt, manifest.tactics["layers"]
    assert facts is not None
    assert facts.compute_capabilities == capabilities
    assert layers["ATTENTION_INPUT"] == LAYERS
    assert layers["ROTARY_EMBEDDING"] == 2 * LAYERS
    assert layers.get("DEQUANTIZE", 0) == (4 * LAYERS + 1 if format == "int8" else 0)
    size = manifest.files["rank0.engine"].bytes
    smallest = manifest.source.parameters * (1 if format == "int8" else 2)
    assert smallest < size < 3 * smallest
    check = manifest.self_check
    assert (check is not None) == checked
    assert check is None or check.passed
    kl = "not asked for" if check is None else f"{check.mean_kl:.2g}"
    with capsys.disabled():
        print(
            f"\nSmolLM2 {format} for {', '.join(capabilities)}: compiled in "
            f"{manifest.times['compile']:.1f} s, {size} bytes, peak memory "
            f"{manifest.peak_memory_bytes}, mean KL of the graph {kl}"
        )
