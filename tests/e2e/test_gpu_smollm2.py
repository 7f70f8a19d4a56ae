"""The real model as a GPU engine, on a machine whose GPU is the host: its tokens are the CPU's."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from enginewright import LLM, SamplingParams
from enginewright.builder.model_config import ModelConfig
from enginewright.converters import open_checkpoint
from enginewright.converters.checkpoint import Checkpoint
from tests.support.gpu_engine import GpuSpec, export_engine
from tests.support.gpu_machine import gpu_machine

from .texts.prompts import PROMPTS

GREEDY = SamplingParams(max_tokens=12, temperature=0)


@dataclass(frozen=True)
class CheckpointSpec(GpuSpec):
    """A GPU engine of a checkpoint that is open."""

    checkpoint: Checkpoint = field(kw_only=True)

    @property
    def model(self) -> ModelConfig:
        return self.checkpoint.config

    def tensors(self) -> dict[str, object]:  # type: ignore[override]
        return dict(self.checkpoint.tensors)


@pytest.fixture(scope="module")
def smollm2_gpu_engine(
    checkpoint: Path, smollm2_f32_engine: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """SmolLM2 in f32, exported for GPUs."""
    folder = tmp_path_factory.mktemp("gpu") / "smollm2-f32"
    with open_checkpoint(str(checkpoint)) as source:
        spec = CheckpointSpec(checkpoint=source, max_seq_len=512)
        export_engine(spec, folder, smollm2_f32_engine / "tokenizer")
    return folder


def texts(engine: Path) -> list[str]:
    """Greedy answers to some prompts, all at once."""
    with LLM(engine, max_num_tokens=64, max_batch_size=8, kv_cache_memory=1 << 28) as llm:
        outputs = llm.generate(["The capital of France is", *PROMPTS[:7]], GREEDY)
    assert isinstance(outputs, list)
    return [output.outputs[0].text for output in outputs]


def test_tokens_are_those_of_the_cpu(smollm2_gpu_engine: Path, smollm2_f32_engine: Path) -> None:
    with gpu_machine():
        found = texts(smollm2_gpu_engine)
    assert "Paris" in found[0]
    assert found == texts(smollm2_f32_engine)
