"""Tiny random models: a config of any family, and weights under canonical names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from enginewright.builder.model_config import ModelConfig

Float32Array = npt.NDArray[np.float32]

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")

_OF_FAMILY: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": 7},
    "qwen2": {"qkv_bias": True, "tie_word_embeddings": True},
    "qwen3": {"qk_norm": True, "head_dim": 32},
}


def make_tiny_config(family: str = "llama", **overrides: Any) -> ModelConfig:
    """Return a config of two or three layers that shows what is particular to `family`."""
    config = ModelConfig(
        family=family,
        vocab_size=160,
        hidden_size=64,
        intermediate_size=128,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        norm_eps=1e-5,
        rope_theta=10000.0,
        bos_token_ids=(1,),
        eos_token_ids=(2,),
    )
    return dataclasses.replace(config, **{**_OF_FAMILY[family], **overrides})


def tiny_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the canonical name and shape of every tensor that `config` asks for."""
    hidden, inter = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "embedding.weight": (config.vocab_size, hidden),
        "final_norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        shapes["head.weight"] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        at = f"layers.{layer}"
        shapes[f"{at}.input_norm.weight"] = (hidden,)
        shapes[f"{at}.post_attention_norm.weight"] = (hidden,)
        for name, size in (("q", q_size), ("k", kv_size), ("v", kv_size)):
            shapes[f"{at}.attention.{name}.weight"] = (size, hidden)
            if config.qkv_bias:
                shapes[f"{at}.attention.{name}.bias"] = (size,)
        shapes[f"{at}.attention.o.weight"] = (hidden, q_size)
        if config.output_bias:
            shapes[f"{at}.attention.o.bias"] = (hidden,)
        if config.qk_norm:
            shapes[f"{at}.attention.q_norm.weight"] = (config.head_dim,)
            shapes[f"{at}.attention.k_norm.weight"] = (config.head_dim,)
        shapes[f"{at}.mlp.gate.weight"] = (inter, hidden)
        shapes[f"{at}.mlp.up.weight"] = (inter, hidden)
        shapes[f"{at}.mlp.down.weight"] = (hidden, inter)
        if config.mlp_bias:
            shapes[f"{at}.mlp.gate.bias"] = (inter,)
            shapes[f"{at}.mlp.up.bias"] = (inter,)
            shapes[f"{at}.mlp.down.bias"] = (hidden,)
    return shapes


def make_tiny_weights(config: ModelConfig, seed: int = 0) -> dict[str, Float32Array]:
    """Return random weights, scaled so that activations stay near one in every layer."""
    generator = np.random.default_rng(seed)
    weights: dict[str, Float32Array] = {}
    for name, shape in tiny_shapes(config).items():
        noise = generator.standard_normal(shape)
        if "norm" in name:
            array = 1.0 + 0.1 * noise
        elif name.endswith(".bias"):
            array = 0.2 * noise
        elif name == "embedding.weight":
            array = noise
        else:
            array = noise / np.sqrt(shape[-1])
        weights[name] = array.astype(np.float32)
    return weights


@dataclass(frozen=True, slots=True)
class ArrayTensor:
    """An in-memory stand-in for a checkpoint's lazy tensor."""

    name: str
    array: Float32Array
    dtype: str = "F32"

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return self.array.shape

    def load(self) -> Float32Array:
        """Return a fresh copy, as a reader of files would."""
        return self.array.copy()


def as_tensors(weights: Mapping[str, Float32Array]) -> dict[str, ArrayTensor]:
    """Wrap arrays as lazy tensors: what a Checkpoint hands to the builder."""
    return {name: ArrayTensor(name, array) for name, array in weights.items()}
