"""Hugging Face folders: shards, dtypes, tied heads, and one sentence for whatever is wrong."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from enginewright.converters import open_checkpoint
from enginewright.runtime.errors import CheckpointError, UnsupportedModelError
from tests.support.golden import GOLDEN_FOLDER, GOLDEN_MODELS

UNTIED = GOLDEN_FOLDER / "llama-untied"
TIED = GOLDEN_FOLDER / "llama-yarn"
SHARDED = GOLDEN_FOLDER / "llama-tied"


def copy_of(folder: Path, target: Path) -> Path:
    return shutil.copytree(folder, target / folder.name)


def edit_json(path: Path, **changes: object) -> None:
    values = json.loads(path.read_text())
    values.update(changes)
    path.write_text(json.dumps(values))


@pytest.mark.parametrize("folder", GOLDEN_MODELS, ids=lambda folder: folder.name)
def test_every_tensor_is_read_as_stored(folder: Path) -> None:
    stored: dict[str, np.ndarray] = {}
    for path in folder.glob("*.safetensors"):
        stored.update(load_file(path))
    with open_checkpoint(str(folder)) as checkpoint:
        assert len(checkpoint.tensors) == len(stored)
        assert checkpoint.source == folder.name
        embedding = checkpoint.tensors["embedding.weight"]
        expected = stored["model.embed_tokens.weight"].astype(np.float32)
        np.testing.assert_array_equal(embedding.load(), expected)
        q = checkpoint.tensors["layers.1.attention.q.weight"]
        expected = stored["model.layers.1.self_attn.q_proj.weight"].astype(np.float32)
        np.testing.assert_array_equal(q.load(), expected)
        assert ("head.weight" in checkpoint.tensors) == (not checkpoint.config.tie_word_embeddings)


def test_a_tied_head_may_be_stored_and_inverse_frequencies_too(tmp_path: Path) -> None:
    folder = copy_of(TIED, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    save_file(tensors, folder / "model.safetensors")
    with open_checkpoint(str(folder)) as checkpoint:
        assert "head.weight" not in checkpoint.tensors


def test_an_untied_head_must_be_stored(tmp_path: Path) -> None:
    folder = copy_of(TIED, tmp_path)
    edit_json(folder / "config.json", tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"tensor lm_head\.weight is missing"):
        open_checkpoint(str(folder))


def _drop(tensors: dict[str, np.ndarray]) -> None:
    del tensors["model.layers.1.mlp.up_proj.weight"]


def _add(tensors: dict[str, np.ndarray]) -> None:
    tensors["model.layers.0.mlp.extra.weight"] = np.zeros(3, np.float32)


def _reshape(tensors: dict[str, np.ndarray]) -> None:
    tensors["model.norm.weight"] = np.zeros(65, np.float32)


def _integers(tensors: dict[str, np.ndarray]) -> None:
    tensors["model.norm.weight"] = np.zeros(96, np.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_drop, r"tensor model\.layers\.1\.mlp\.up_proj\.weight is missing"),
        (_add, r"tensor model\.layers\.0\.mlp\.extra\.weight is not part of a llama model"),
        (_reshape, r"model\.norm\.weight has shape \[65\], but the config says \[96\]"),
        (_integers, r"model\.norm\.weight is stored as I32, which is not supported"),
    ],
)
def test_wrong_tensors_are_named(
    tmp_path: Path, change: Callable[[dict[str, np.ndarray]], None], message: str
) -> None:
    folder = copy_of(UNTIED, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(str(folder))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = copy_of(SHARDED, tmp_path)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(
        CheckpointError, match=r"shard model-00002-of-00003\.safetensors is missing"
    ):
        open_checkpoint(str(folder))


@pytest.mark.parametrize("name", ["../model.safetensors", "", "a/b.safetensors", "x\0y", "n" * 300])
def test_an_index_cannot_point_out_of_its_folder(tmp_path: Path, name: str) -> None:
    folder = copy_of(SHARDED, tmp_path)
    edit_json(folder / "model.safetensors.index.json", weight_map={"model.norm.weight": name})
    with pytest.raises(CheckpointError, match=r"shard .* is missing"):
        open_checkpoint(str(folder))


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_broken_json_is_named(tmp_path: Path, name: str) -> None:
    folder = copy_of(TIED, tmp_path)
    for text, message in (("{", "is not valid JSON"), ("[]", "holds a list"), ("\xff", "JSON")):
        (folder / name).write_bytes(text.encode("latin-1"))
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(str(folder))


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    folder = copy_of(TIED, tmp_path)
    data = (folder / "model.safetensors").read_bytes()
    for size in (0, 5, 100, len(data) - 1):
        (folder / "model.safetensors").write_bytes(data[:size])
        with pytest.raises(CheckpointError, match=r"model\.safetensors (is|has)"):
            open_checkpoint(str(folder))


def test_an_unknown_type_lists_the_known_ones(tmp_path: Path) -> None:
    folder = copy_of(TIED, tmp_path)
    edit_json(folder / "config.json", model_type="mamba")
    with pytest.raises(UnsupportedModelError, match=r"'mamba'.*llama, mistral, qwen2, qwen3"):
        open_checkpoint(str(folder))


def test_the_tokenizer_is_copied_and_generation_settings_made(tmp_path: Path) -> None:
    folder = copy_of(TIED, tmp_path)
    (folder / "generation_config.json").unlink()
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    with open_checkpoint(str(folder)) as checkpoint:
        checkpoint.write_tokenizer(tmp_path / "tokenizer")
    written = tmp_path / "tokenizer"
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (written / name).read_bytes() == (folder / name).read_bytes()
    generation = json.loads((written / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 0, "eos_token_id": [1]}


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    folder = copy_of(TIED, tmp_path)
    (folder / "tokenizer.json").unlink()
    with (
        open_checkpoint(str(folder)) as checkpoint,
        pytest.raises(CheckpointError, match=r"has no tokenizer\.json"),
    ):
        checkpoint.write_tokenizer(tmp_path / "tokenizer")
    assert not (tmp_path / "tokenizer").exists()


def test_files_cover_config_index_and_shards() -> None:
    with open_checkpoint(str(SHARDED)) as checkpoint:
        assert len(checkpoint.files) == 5
        shards = sum(path.stat().st_size for path in SHARDED.glob("*.safetensors"))
        assert checkpoint.size_bytes == shards


def test_bfloat16_is_exact(tmp_path: Path) -> None:
    folder = copy_of(UNTIED, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    values = np.arange(96, dtype=np.float32) / 3
    tensors["model.norm.weight"] = values.astype(ml_dtypes.bfloat16)
    save_file(tensors, folder / "model.safetensors")
    with open_checkpoint(str(folder)) as checkpoint:
        loaded = checkpoint.tensors["final_norm.weight"].load()
    np.testing.assert_array_equal(loaded, values.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_a_folder_without_a_model_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json and no GGUF file"):
        open_checkpoint(str(tmp_path))
    with pytest.raises(CheckpointError, match="does not exist; expected a model folder"):
        open_checkpoint(str(tmp_path / "nowhere"))
