"""TensorRT-LLM checkpoints made of Hugging Face's, as convert_checkpoint.py lays them out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

Arrays = dict[str, np.ndarray]
_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def convert(source: Path, folder: Path, tp: int = 1, pp: int = 1, **changes: Any) -> Path:
    """Write the checkpoint of a Hugging Face folder; `changes` go into its config.json.

    `embedding_sharding_dim` in `changes` splits the embedding along that axis.
    """
    folder.mkdir(parents=True)
    hf: dict[str, Any] = json.loads((source / "config.json").read_text())
    stored: Arrays = {}
    for path in source.glob("*.safetensors"):
        stored.update({n: a.astype(np.float32) for n, a in load_file(path).items()})
    heads, kv_heads = hf["num_attention_heads"], hf["num_key_value_heads"]
    head_dim = hf.get("head_dim") or hf["hidden_size"] // heads
    rope = hf.get("rope_parameters") or {}
    config = {
        "architecture": _CLASSES[hf["model_type"]],
        "dtype": "float32",
        "vocab_size": hf["vocab_size"],
        "hidden_size": hf["hidden_size"],
        "intermediate_size": hf["intermediate_size"],
        "num_hidden_layers": hf["num_hidden_layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_size": head_dim,
        "hidden_act": hf["hidden_act"],
        "max_position_embeddings": hf["max_position_embeddings"],
        "norm_epsilon": hf["rms_norm_eps"],
        "position_embedding_type": "rope_gpt_neox",
        "rotary_base": rope.get("rope_theta", 10000.0),
        "rotary_scaling": rope if rope.get("rope_type", "default") != "default" else None,
        "attn_bias": hf.get("attention_bias", False) or hf["model_type"] == "qwen2",
        "mlp_bias": hf.get("mlp_bias", False),
        "tie_word_embeddings": hf.get("tie_word_embeddings", False),
        "sliding_window": hf.get("sliding_window"),
        "mapping": {"world_size": tp * pp, "tp_size": tp, "pp_size": pp},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(config))
    layers = hf["num_hidden_layers"] // pp
    for stage in range(pp):
        for rank in range(tp):
            arrays: Arrays = {}
            for index in range(layers):
                at = f"model.layers.{stage * layers + index}"
                named = _layer(stored, at, (heads, kv_heads, head_dim), rank, tp)
                arrays.update({f"transformer.layers.{index}.{n}": a for n, a in named.items()})
            embedding = stored["model.embed_tokens.weight"]
            if stage == 0:
                axis = changes.get("embedding_sharding_dim")
                if axis is not None:
                    short = -len(embedding) % tp if axis == 0 else 0
                    embedding = np.split(np.pad(embedding, ((0, short), (0, 0))), tp, axis)[rank]
                arrays["transformer.vocab_embedding.weight"] = embedding
            if stage == pp - 1:
                arrays["transformer.ln_f.weight"] = stored["model.norm.weight"]
                head = stored.get("lm_head.weight", stored["model.embed_tokens.weight"])
                short = -len(head) % tp
                padded = np.pad(head, ((0, short), (0, 0)))
                arrays["lm_head.weight"] = np.split(padded, tp)[rank]
            save = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
            save_file(save, folder / f"rank{stage * tp + rank}.safetensors")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (source / name).exists():
            shutil.copyfile(source / name, folder / name)
    return folder


def _layer(stored: Arrays, at: str, shape: tuple[int, int, int], rank: int, tp: int) -> Arrays:
    _, kv_heads, head_dim = shape
    made: Arrays = {
        "input_layernorm.weight": stored[f"{at}.input_layernorm.weight"],
        "post_layernorm.weight": stored[f"{at}.post_attention_layernorm.weight"],
    }
    for kind in ("weight", "bias"):
        if f"{at}.self_attn.q_proj.{kind}" in stored:
            q = np.split(stored[f"{at}.self_attn.q_proj.{kind}"], tp)[rank]
            kv = [
                _kv(stored[f"{at}.self_attn.{side}_proj.{kind}"], kv_heads, head_dim, rank, tp)
                for side in "kv"
            ]
            made[f"attention.qkv.{kind}"] = np.concatenate([q, *kv])
        for name, source in (("mlp.fc", "gate_proj"), ("mlp.gate", "up_proj")):
            if f"{at}.mlp.{source}.{kind}" in stored:
                made[f"{name}.{kind}"] = np.split(stored[f"{at}.mlp.{source}.{kind}"], tp)[rank]
        for name, source in (
            ("attention.dense", "self_attn.o_proj"),
            ("mlp.proj", "mlp.down_proj"),
        ):
            array = stored.get(f"{at}.{source}.{kind}")
            if array is not None:
                whole = kind == "bias"
                made[f"{name}.{kind}"] = array if whole else np.split(array, tp, axis=1)[rank]
    for side in "qk":
        if f"{at}.self_attn.{side}_norm.weight" in stored:
            made[f"attention.{side}_layernorm.weight"] = stored[
                f"{at}.self_attn.{side}_norm.weight"
            ]
    return made


def _kv(array: np.ndarray, kv_heads: int, head_dim: int, rank: int, tp: int) -> np.ndarray:
    """A rank's KV heads; with more ranks than heads, neighbours hold the same one."""
    by_head = array.reshape(kv_heads, head_dim, -1)
    if tp <= kv_heads:
        part = np.split(by_head, tp)[rank]
    else:
        part = by_head[rank // (tp // kv_heads)][None]
    return part.reshape(-1, *array.shape[1:])
