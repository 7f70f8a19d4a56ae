"""TensorRT-LLM checkpoints: the same tensors as their origin's, from any number of ranks."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from enginewright.converters import open_checkpoint
from enginewright.runtime.errors import CheckpointError, UnsupportedModelError
from tests.support.golden import GOLDEN_FOLDER, GOLDEN_MODELS
from tests.support.trtllm import convert

PLAIN = GOLDEN_FOLDER / "llama-untied"


def same_as(source: Path, folder: Path) -> None:
    """Compare config and tensors with those of the Hugging Face folder."""
    with open_checkpoint(str(source)) as wanted, open_checkpoint(str(folder)) as found:
        ids = {"bos_token_ids": (), "eos_token_ids": (), "pad_token_id": None}
        window = {"window_layers": None, "sliding_window": wanted.config.sliding_window}
        if wanted.config.family != "mistral":
            window["sliding_window"] = None
        assert found.config == dataclasses.replace(wanted.config, **ids, **window)
        assert found.tensors.keys() == wanted.tensors.keys()
        for name, tensor in wanted.tensors.items():
            np.testing.assert_array_equal(found.tensors[name].load(), tensor.load(), name)
        assert set(found.files) >= {"config.json", "rank0.safetensors"}


@pytest.mark.parametrize("model", GOLDEN_MODELS, ids=lambda path: path.name)
def test_one_rank(model: Path, tmp_path: Path) -> None:
    same_as(model, convert(model, tmp_path / "c"))


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("name", ["llama-untied", "llama-biases", "qwen2", "qwen3", "mistral"])
def test_tensor_parallel_ranks_are_joined(name: str, tp: int, tmp_path: Path) -> None:
    source = GOLDEN_FOLDER / name
    config = json.loads((source / "config.json").read_text())
    if config["num_attention_heads"] % tp or config["intermediate_size"] % tp:
        pytest.skip("the model cannot be shared by so many ranks")
    same_as(source, convert(source, tmp_path / "c", tp=tp))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_split_embedding_is_joined(axis: int, tmp_path: Path) -> None:
    same_as(PLAIN, convert(PLAIN, tmp_path / "c", tp=2, embedding_sharding_dim=axis))


def test_pipeline_stages_follow_each_other(tmp_path: Path) -> None:
    layers = json.loads((PLAIN / "config.json").read_text())["num_hidden_layers"]
    same_as(PLAIN, convert(PLAIN, tmp_path / "c", tp=2, pp=layers))


def test_the_tokenizer_comes_along_or_is_asked_for(tmp_path: Path) -> None:
    folder = convert(PLAIN, tmp_path / "c")
    with open_checkpoint(str(folder)) as checkpoint:
        checkpoint.write_tokenizer(tmp_path / "t")
        assert (tmp_path / "t" / "tokenizer.json").exists()
        assert (tmp_path / "t" / "generation_config.json").exists()
        (folder / "tokenizer.json").unlink()
        with pytest.raises(CheckpointError, match="leaves it with the model that was converted"):
            checkpoint.write_tokenizer(tmp_path / "t")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"architecture": "FalconForCausalLM"}, UnsupportedModelError, "of FalconForCausalLM"),
        ({"quantization": {"quant_algo": "W4A16_AWQ"}}, UnsupportedModelError, "W4A16_AWQ"),
        ({"quantization": {"kv_cache_quant_algo": "INT8"}}, UnsupportedModelError, "give --quant"),
        ({"position_embedding_type": "alibi"}, UnsupportedModelError, "'alibi'"),
        ({"hidden_act": "gelu"}, UnsupportedModelError, "'gelu'"),
        ({"moe": {"num_experts": 8}}, UnsupportedModelError, "8 experts"),
        ({"embedding_multiplier": 12.0}, UnsupportedModelError, "embedding_multiplier is 12"),
        ({"mapping": {"world_size": 2, "cp_size": 2}}, UnsupportedModelError, "cp_size is 2"),
        ({"mapping": {"world_size": 3, "tp_size": 2}}, CheckpointError, "3 ranks, 2 tensor"),
        ({"mapping": {"tp_size": 3}}, CheckpointError, "cannot be shared by 3 ranks evenly"),
        ({"mapping": {"pp_size": 64}}, CheckpointError, "cannot be shared by 64 ranks evenly"),
        ({"vocab_size": None}, CheckpointError, "vocab_size is missing"),
        ({"intermediate_size": 32}, CheckpointError, "do not belong together"),
    ],
)
def test_what_cannot_be_converted(
    changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    folder = convert(PLAIN, tmp_path / "c", **changes)
    with pytest.raises(error, match=message):
        open_checkpoint(str(folder))


def test_a_missing_rank_and_a_missing_tensor(tmp_path: Path) -> None:
    folder = convert(PLAIN, tmp_path / "c", tp=2)
    arrays = load_file(folder / "rank1.safetensors")
    dense = arrays.pop("transformer.layers.0.attention.dense.weight")
    save_file(arrays, folder / "rank1.safetensors")
    with pytest.raises(CheckpointError, match="stands in 1 of 2 ranks"):
        open_checkpoint(str(folder))
    arrays["transformer.layers.0.attention.dense.weight"] = dense
    save_file({**arrays, "transformer.extra": dense}, folder / "rank1.safetensors")
    with pytest.raises(CheckpointError, match=r"transformer\.extra of rank 1 is not part of"):
        open_checkpoint(str(folder))
    (folder / "rank1.safetensors").unlink()
    with pytest.raises(CheckpointError, match="the config says 2 ranks"):
        open_checkpoint(str(folder))


def test_what_tensorrt_llm_computes_may_be_stored(tmp_path: Path) -> None:
    folder = convert(PLAIN, tmp_path / "c")
    arrays = load_file(folder / "rank0.safetensors")
    arrays["transformer.rotary_inv_freq"] = np.ones(8, np.float32)
    save_file(arrays, folder / "rank0.safetensors")
    same_as(PLAIN, folder)
