"""Engines of the golden models against transformers: f32 tightly, the rest with its error."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

from enginewright.builder.build import BuildOptions, build
from enginewright.builder.config import BuildConfig
from enginewright.converters import open_checkpoint
from enginewright.runtime.artifact import open_engine
from enginewright.runtime.session_cpu import CpuSession
from tests.support.golden import GOLDEN_MODELS, expected, prompt_batches

ROUNDED = [
    path for path in GOLDEN_MODELS if path.name in ("llama-tied", "mistral", "qwen2", "qwen3")
]
KL_LIMITS = {"bf16": 1e-3, "int8": 1e-2, "fp8": 3e-2}


def engine_logits(model: Path, folder: Path, format: str, chunk: int) -> np.ndarray:
    """Build an engine of a golden model and return its logits of the fixed prompt."""
    config = BuildConfig(weights=format, max_batch_size=16, max_num_tokens=64, self_check=False)
    with open_checkpoint(str(model)) as checkpoint:
        build(checkpoint, config, folder, None, BuildOptions())
    ids, _ = expected(model)
    session = CpuSession(open_engine(folder), threads=2, kv_cache_memory=64 << 20)
    with contextlib.closing(session):
        return np.concatenate([session.logits(batch) for batch in prompt_batches(ids, chunk)])


@pytest.mark.parametrize("model", GOLDEN_MODELS, ids=lambda path: path.name)
def test_f32_engine(model: Path, tmp_path: Path) -> None:
    found = engine_logits(model, tmp_path / "engine", "f32", chunk=13)
    np.testing.assert_allclose(found, expected(model)[1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("format", ["bf16", "int8", "fp8"])
@pytest.mark.parametrize("model", ROUNDED, ids=lambda path: path.name)
def test_rounded_engine(
    model: Path, format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = engine_logits(model, tmp_path / "engine", format, chunk=16).astype(np.float64)
    wanted = expected(model)[1].astype(np.float64)
    p = wanted - np.log(np.exp(wanted).sum(axis=1, keepdims=True))
    q = found - np.log(np.exp(found).sum(axis=1, keepdims=True))
    kl = float((np.exp(p) * (p - q)).sum(axis=1).mean())
    error = float(np.abs(found - wanted).max())
    with capsys.disabled():
        print(
            f"\n{format} engine of {model.name}: largest logit error {error:.4f}, mean KL {kl:.2e}"
        )
    assert kl < KL_LIMITS[format]
