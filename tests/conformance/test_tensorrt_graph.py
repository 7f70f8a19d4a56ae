"""Exported graphs against the reference, step by step over a paged conversation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.conversation import conversation
from tests.support.gpu_engine import GpuSpec, export_engine, stand_in
from tests.support.tiny import FAMILIES

EXACT = [
    *(GpuSpec(family, attention=form) for family in FAMILIES for form in ("gather", "plugin")),
    GpuSpec("mistral", changes=(("sliding_window", 41),)),
    GpuSpec("llama", changes=(("output_bias", True), ("mlp_bias", True), ("qkv_bias", True))),
    # Quantized weights multiplied in f32 differ from the reference's own rounding in nothing.
    *(GpuSpec("qwen3", weights=weights) for weights in ("int8", "fp8", "int4")),
    GpuSpec("llama", weights="int8", head_weights="int8"),
    GpuSpec("llama", weights="int4", head_weights="f32", attention="plugin"),
]


def f16(family: str, attention: str = "gather", kv_dtype: str | None = None) -> GpuSpec:
    return GpuSpec(family, "f16", attention, kv_dtype, compute_dtype="f16")


# With the largest error of a logit that rounding explains; a head tied to noise gives tens.
ROUNDED = [
    *((f16(family), 0.06) for family in FAMILIES),
    *((GpuSpec("qwen2", weights=w, compute_dtype="f16"), 0.03) for w in ("int8", "int4", "fp8")),
    (f16("llama", "plugin"), 0.06),
    *((GpuSpec("qwen2", "bf16", form, compute_dtype="bf16"), 0.7) for form in ("gather", "plugin")),
    # A cache that rounds: a difference of one bit before it may be one of its own steps behind it.
    *((GpuSpec("qwen2", kv_dtype="f16", attention=form), 0.005) for form in ("gather", "plugin")),
    *((GpuSpec("qwen2", kv_dtype="int8", attention=form), 0.05) for form in ("gather", "plugin")),
    (GpuSpec("qwen2", kv_dtype="fp8", attention="plugin"), 0.1),
    (f16("llama", kv_dtype="int8"), 0.3),
]


def largest_error(spec: GpuSpec, folder: Path) -> float:
    engine, reference = export_engine(spec, folder), spec.reference()
    worst = 0.0
    with stand_in(engine) as session:
        for batch in conversation(spec.model.vocab_size):
            found, wanted = session.logits(batch), reference.step(batch)
            assert found.shape == wanted.shape
            worst = max(worst, float(np.abs(found - wanted).max()))
    return worst


def name_of(spec: GpuSpec) -> str:
    parts = (spec.family, spec.weights, spec.compute_dtype, spec.kv_dtype, spec.attention)
    return "-".join(part for part in parts if part)


@pytest.mark.parametrize("spec", EXACT, ids=name_of)
def test_f32_graphs_give_the_references_logits(spec: GpuSpec, tmp_path: Path) -> None:
    assert largest_error(spec, tmp_path) < 1e-4


@pytest.mark.parametrize(("spec", "limit"), ROUNDED, ids=lambda value: _id(value))
def test_rounded_graphs_are_close_to_the_reference(
    spec: GpuSpec, limit: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = largest_error(spec, tmp_path)
    with capsys.disabled():
        print(f"\n{name_of(spec)}: largest logit error {error:.5f}")
    assert error < limit


def _id(value: object) -> str:
    return name_of(value) if isinstance(value, GpuSpec) else str(value)
