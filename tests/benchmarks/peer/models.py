"""The weights that every peer is given: one GGUF file, and a Hugging Face folder made from it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from enginewright.converters import Checkpoint, open_checkpoint
from enginewright.converters.checkpoint import Tensor
from enginewright.serve.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".cache"
_NAMES = {  # canonical name -> Hugging Face's, inside a layer
    "input_norm": "input_layernorm",
    "attention": "self_attn",
    "post_attention_norm": "post_attention_layernorm",
}
_OUTSIDE = {
    "embedding.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}


@dataclass(frozen=True)
class Model:
    """One model: its GGUF file and a folder for all that is made from it."""

    name: str
    gguf: Path
    folder: Path

    @cached_property
    def hugging_face(self) -> Path:
        """The f32 Hugging Face folder; made when missing."""
        folder = self.folder / "hf-f32"
        if not (folder / "model.safetensors").is_file():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            with open_checkpoint(str(self.gguf)) as checkpoint:
                checkpoint.write_tokenizer(partial)
                (partial / "config.json").write_text(json.dumps(_config(checkpoint), indent=1))
                _write_safetensors(partial / "model.safetensors", checkpoint.tensors)
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
        return folder

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        return Tokenizer(self.hugging_face)

    def reference(self, ids: list[int]) -> np.ndarray:
        """Return the f32 logits after each token of `ids`, [tokens, vocab]; kept on disk."""
        from enginewright.builder.models.registry import build_network
        from enginewright.builder.reference import BLOCK_TOKENS, Reference
        from enginewright.runtime.session import Batch

        path = self.folder / f"reference-{len(ids)}-{hash(tuple(ids)) & 0xFFFFFFFF:08x}.npy"
        if path.is_file():
            return np.load(path)
        with open_checkpoint(str(self.gguf)) as checkpoint:
            reference = Reference(build_network(checkpoint.config, checkpoint.tensors, 2048))
            blocks = np.arange(-(-len(ids) // BLOCK_TOKENS), dtype=np.int32)
            logits = reference.step(
                Batch(
                    token_ids=np.array(ids, np.int32),
                    seq_starts=np.array([0, len(ids)], np.int32),
                    past_tokens=np.zeros(1, np.int32),
                    block_tables=blocks[None],
                    logit_rows=np.arange(len(ids), dtype=np.int32),
                )
            )
        np.save(path, logits)
        return logits


def smollm2() -> Model:
    """Fetch SmolLM2-135M-Instruct, or reuse it."""
    done = subprocess.run(
        [ROOT / "scripts" / "model"], stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT
    )
    folder = CACHE / "peers" / "models" / "smollm2"
    folder.mkdir(parents=True, exist_ok=True)
    return Model("SmolLM2-135M-Instruct", ROOT / done.stdout.strip(), folder)


def _write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as f32 under Hugging Face's names, holding one of them at a time."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + 4 * prod(tensor.shape)
        header[_hf_name(name)] = {
            "dtype": "F32",
            "shape": tensor.shape,
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.load().data)


def _hf_name(name: str) -> str:
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    layers, number, part, *rest = name.split(".")
    path = ".".join([f"{p}_proj" if p not in ("weight", "bias") else p for p in rest])
    if part.endswith("norm"):
        path = rest[0]
    path = path.replace("q_norm_proj", "q_norm").replace("k_norm_proj", "k_norm")
    return f"model.{layers}.{number}.{_NAMES.get(part, part)}.{path}"


def _config(checkpoint: Checkpoint) -> dict[str, Any]:
    config = checkpoint.config
    if config.family != "llama":
        raise ValueError(f"the family is {config.family}; only llama is written for peers")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"},
        "tie_word_embeddings": "head.weight" not in checkpoint.tensors,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "float32",
        "torch_dtype": "float32",
    }
