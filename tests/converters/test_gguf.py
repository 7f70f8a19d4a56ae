"""GGUF files: every stored type, the order of q and k rows, the config read off metadata."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, dequantize

from enginewright.builder.model_config import RopeScaling
from enginewright.converters import open_checkpoint
from enginewright.converters.rope_scaling import llama3_divisors
from enginewright.runtime.errors import CheckpointError, UnsupportedModelError
from tests.support.gguf import KIND, random_blocks, write_gguf
from tests.support.golden import GOLDEN_FOLDER, GOLDEN_MODELS
from tests.support.tiny import FAMILIES, make_tiny_config, make_tiny_weights

PLAIN = ("llama", "qwen2", "qwen3")


@pytest.mark.parametrize("family", PLAIN)
def test_weights_and_config_come_back(tmp_path: Path, family: str) -> None:
    config = make_tiny_config(family)
    weights = make_tiny_weights(config)
    path = write_gguf(tmp_path / "model.gguf", config, weights)
    with open_checkpoint(str(path)) as checkpoint:
        found = checkpoint.config
        assert found.eos_token_ids == (1,)
        assert found.bos_token_ids == (0,)
        assert found.norm_eps == config.norm_eps
        for name in ("head_dim", "num_kv_heads", "qkv_bias", "qk_norm", "tie_word_embeddings"):
            assert getattr(found, name) == getattr(config, name), name
        assert set(checkpoint.tensors) == set(weights)
        for name, expected in weights.items():
            np.testing.assert_array_equal(checkpoint.tensors[name].load(), expected, err_msg=name)


@pytest.mark.parametrize("folder", [f for f in GOLDEN_MODELS if f.name.startswith("llama-")])
def test_permuting_a_model_and_reading_it_gives_the_same_weights(
    tmp_path: Path, folder: Path
) -> None:
    with open_checkpoint(str(folder)) as original:
        weights = {name: tensor.load() for name, tensor in original.tensors.items()}
        path = write_gguf(tmp_path / "model.gguf", original.config, weights)
    with open_checkpoint(str(path)) as checkpoint:
        for name, expected in weights.items():
            np.testing.assert_array_equal(checkpoint.tensors[name].load(), expected, err_msg=name)


@pytest.mark.parametrize("name", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_small_block_types(tmp_path: Path, name: str) -> None:
    kind = KIND[name]
    config = make_tiny_config("qwen2")
    weights = make_tiny_weights(config)
    path = write_gguf(tmp_path / "model.gguf", config, weights, kind=kind)
    with open_checkpoint(str(path)) as checkpoint:
        tensor = checkpoint.tensors["layers.1.mlp.down.weight"]
        assert tensor.dtype == name
        loaded = tensor.load()
        assert loaded.dtype == np.float32
        expected = weights["layers.1.mlp.down.weight"]
        assert loaded.shape == expected.shape
        bits = {"F16": 10, "BF16": 8, "Q8_0": 7, "Q5_0": 4, "Q5_1": 5, "Q4_0": 3, "Q4_1": 4}[name]
        assert np.abs(loaded - expected).max() <= 2.0**-bits * np.abs(expected).max() * 1.01


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_k_quants(tmp_path: Path, name: str) -> None:
    kind = KIND[name]
    config = make_tiny_config("llama", hidden_size=256, intermediate_size=256, head_dim=64)
    weights: dict[str, Any] = make_tiny_weights(config)
    rng = np.random.default_rng(3)
    for key, array in weights.items():
        if array.ndim == 2:
            weights[key] = random_blocks(rng, array.shape, kind)
    path = write_gguf(tmp_path / "model.gguf", config, weights, kind=kind)
    with open_checkpoint(str(path)) as checkpoint:
        for key in ("embedding.weight", "layers.0.attention.q.weight", "layers.2.mlp.up.weight"):
            expected = dequantize(weights[key], kind)
            np.testing.assert_array_equal(checkpoint.tensors[key].load(), expected, err_msg=key)


def test_large_tensors_are_dequantized_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_tiny_config("qwen2")
    weights = make_tiny_weights(config)
    path = write_gguf(tmp_path / "model.gguf", config, weights, kind=KIND.Q8_0)
    with open_checkpoint(str(path)) as checkpoint:
        whole = checkpoint.tensors["embedding.weight"].load()
        monkeypatch.setattr("enginewright.converters.gguf_file.CHUNK_ELEMENTS", 7 * 64)
        pieces = checkpoint.tensors["embedding.weight"].load()
    np.testing.assert_array_equal(pieces, whole)


def test_mistral_files_have_the_llama_architecture_and_keep_their_window(tmp_path: Path) -> None:
    config = make_tiny_config("mistral")
    metadata = {"llama.attention.sliding_window": 7}
    path = write_gguf(tmp_path / "m.gguf", config, make_tiny_weights(config), metadata=metadata)
    with open_checkpoint(str(path)) as checkpoint:
        assert checkpoint.config.sliding_window == 7
        assert not checkpoint.config.tie_word_embeddings


def test_llama3_frequencies_become_a_rope_scaling(tmp_path: Path) -> None:
    config = make_tiny_config("llama", rope_theta=500000.0, head_dim=64)
    scaling = RopeScaling("llama3", 32.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0)
    divisors = llama3_divisors(scaling, 500000.0, 32).astype(np.float32)
    assert divisors[0] == 1.0
    assert divisors[-1] == 32.0
    path = write_gguf(
        tmp_path / "m.gguf",
        config,
        make_tiny_weights(config),
        extra={"rope_freqs.weight": divisors},
    )
    with open_checkpoint(str(path)) as checkpoint:
        assert checkpoint.config.rope_scaling == scaling


def test_other_frequency_tables_are_refused(tmp_path: Path) -> None:
    config = make_tiny_config("llama")
    extra = {"rope_freqs.weight": np.linspace(1, 3, config.head_dim // 2, dtype=np.float32)}
    path = write_gguf(tmp_path / "m.gguf", config, make_tiny_weights(config), extra=extra)
    with pytest.raises(UnsupportedModelError, match=r"rope_freqs\.weight"):
        open_checkpoint(str(path))


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"qwen2.rope.scaling.type": "none"}, None),
        (
            {"qwen2.rope.scaling.type": "linear", "qwen2.rope.scaling.factor": 4.0},
            RopeScaling("linear", 4.0),
        ),
        (
            {
                "qwen2.rope.scaling.type": "yarn",
                "qwen2.rope.scaling.factor": 4.0,
                "qwen2.rope.scaling.original_context_length": 64,
            },
            RopeScaling("yarn", 4.0, 64, beta_fast=32.0, beta_slow=1.0),
        ),
    ],
)
def test_rope_scaling(
    tmp_path: Path, metadata: dict[str, Any], expected: RopeScaling | None
) -> None:
    config = make_tiny_config("qwen2")
    path = write_gguf(tmp_path / "m.gguf", config, make_tiny_weights(config), metadata=metadata)
    with open_checkpoint(str(path)) as checkpoint:
        assert checkpoint.config.rope_scaling == expected


@pytest.mark.parametrize(
    ("metadata", "kind", "message"),
    [
        ({"general.architecture": "mamba"}, UnsupportedModelError, "'mamba'.*supported are llama"),
        ({"qwen2.expert_count": 8}, UnsupportedModelError, "mixture of experts"),
        ({"split.count": 3}, UnsupportedModelError, "one of 3 split files"),
        ({"qwen2.rope.dimension_count": 8}, UnsupportedModelError, "rope.dimension_count is 8"),
        ({"qwen2.rope.scaling.type": "longrope"}, UnsupportedModelError, "'longrope'"),
        ({"qwen2.attention.head_count_kv": 3}, CheckpointError, "cannot share 3 key-value heads"),
        ({"qwen2.block_count": 0}, CheckpointError, "number of layers is 0"),
        ({"qwen2.block_count": 4}, CheckpointError, r"tensors blk\.3\..* missing"),
        ({"qwen2.block_count": 2}, CheckpointError, r"tensors blk\.2\..* not part of"),
        ({"qwen2.embedding_length": 32}, CheckpointError, r"has shape .*but the config says"),
        ({"qwen2.context_length": "long"}, CheckpointError, "expected an integer"),
        ({"tokenizer.ggml.eos_token_id": 4000}, CheckpointError, "token 4000 lies outside"),
    ],
)
def test_what_cannot_be_converted_is_named(
    tmp_path: Path, metadata: dict[str, Any], kind: type[Exception], message: str
) -> None:
    config = make_tiny_config("qwen2")
    architecture = metadata.get("general.architecture")
    if architecture:
        path = tmp_path / "m.gguf"
        write_gguf(path, config, make_tiny_weights(config))
        data = path.read_bytes().replace(b"qwen2", b"mamba", 1)
        path.write_bytes(data)
    else:
        path = write_gguf(tmp_path / "m.gguf", config, make_tiny_weights(config), metadata=metadata)
    with pytest.raises(kind, match=message):
        open_checkpoint(str(path))


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    config = make_tiny_config("llama")
    path = write_gguf(tmp_path / "m.gguf", config, make_tiny_weights(config))
    data = path.read_bytes()
    for size in (0, 3, 12, 200, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(CheckpointError, match=r"m\.gguf (is|has)"):
            open_checkpoint(str(path))


def test_other_types_are_refused_by_name(tmp_path: Path) -> None:
    config = make_tiny_config("qwen2")
    weights: dict[str, Any] = make_tiny_weights(config)
    weights["final_norm.weight"] = np.zeros(64, np.float32)
    path = write_gguf(tmp_path / "m.gguf", config, weights)
    data = path.read_bytes()
    at = data.index(b"output_norm.weight") + len("output_norm.weight") + 4 + 8
    path.write_bytes(
        data[:at] + int(GGMLQuantizationType.IQ1_S).to_bytes(4, "little") + data[at + 4 :]
    )
    with pytest.raises(UnsupportedModelError, match=r"output_norm\.weight has GGML type IQ1_S"):
        open_checkpoint(str(path))


def test_files_are_hashed_and_closed(tmp_path: Path) -> None:
    config = make_tiny_config("llama")
    path = write_gguf(tmp_path / "m.gguf", config, make_tiny_weights(config))
    checkpoint = open_checkpoint(str(tmp_path))
    assert checkpoint.source == "m.gguf"
    assert checkpoint.size_bytes == path.stat().st_size
    (digest,) = checkpoint.files.values()
    assert len(digest) == 64
    checkpoint.close()
    with pytest.raises(ValueError, match="closed"):
        checkpoint.tensors["final_norm.weight"].load()


def test_every_family_of_the_tables_has_a_golden_folder() -> None:
    assert set(FAMILIES) <= {folder.name.split("-")[0] for folder in GOLDEN_FOLDER.iterdir()}
