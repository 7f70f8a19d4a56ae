"""Estimates of GPU builds against what is exported: weights to a few percent, cache to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginewright.builder.estimate import estimate
from enginewright.builder.gpu_workspace import workspace_bytes
from enginewright.runtime.open_tensorrt import MODEL_FILE
from tests.support.gpu_engine import GpuSpec, export_engine, model_of

SIZES = (("hidden_size", 256), ("intermediate_size", 512), ("vocab_size", 4000), ("num_layers", 2))


@pytest.mark.parametrize("family", ["llama", "mistral"], ids=["tied", "untied"])
@pytest.mark.parametrize("weights", ["f16", "int8", "int4"])
def test_weights_and_cache(family: str, weights: str, tmp_path: Path) -> None:
    spec = GpuSpec(family, weights, compute_dtype="f16", kv_dtype="int8", changes=SIZES)
    engine = export_engine(spec, tmp_path / "engine")
    figures = estimate(spec.model, spec.tensors(), spec.build)
    stored = model_of(engine.folder).with_name(MODEL_FILE).with_suffix(".data").stat().st_size
    assert figures.weights == pytest.approx(stored, rel=0.04)
    assert figures.kv_per_token * 32 == engine.manifest.kv.block_bytes
    assert figures.workspace == workspace_bytes(spec.model, spec.build) > 0


def test_a_workspace_grows_with_the_step_and_the_past() -> None:
    small = GpuSpec(compute_dtype="f16")
    base = workspace_bytes(small.model, small.build)
    longer = GpuSpec(compute_dtype="f16", max_num_tokens=2048)
    assert workspace_bytes(longer.model, longer.build) > base
    changes = (("max_position_embeddings", 8192),)
    deeper = GpuSpec(compute_dtype="f16", max_seq_len=8192, changes=changes)
    assert workspace_bytes(deeper.model, deeper.build) > base
    wider = GpuSpec(compute_dtype="f32")
    assert workspace_bytes(wider.model, wider.build) > base
