"""Writes tiny GGUF files as llama.cpp's converter does: names, row order, metadata."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, quantize

from enginewright.builder.model_config import ModelConfig
from enginewright.converters.families import by_model_type

KIND = GGMLQuantizationType
TOKENIZER: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["<s>", "</s>", "a", "b", "ab"],
    "tokenizer.ggml.token_type": [3, 3, 1, 1, 1],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
}


def interleave(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Order the rows of every head 0, d/2, 1, d/2 + 1, ... as GGUF stores Llama's q and k."""
    size = values.shape[0] // num_heads
    order = [half * size // 2 + i for i in range(size // 2) for half in (0, 1)]
    rows = [head * size + row for head in range(num_heads) for row in order]
    return values[rows]


def metadata_of(config: ModelConfig, architecture: str) -> dict[str, Any]:
    """Return the metadata of a config, tokenizer apart."""
    at = architecture
    return {
        f"{at}.block_count": config.num_layers,
        f"{at}.context_length": config.max_position_embeddings,
        f"{at}.embedding_length": config.hidden_size,
        f"{at}.feed_forward_length": config.intermediate_size,
        f"{at}.attention.head_count": config.num_heads,
        f"{at}.attention.head_count_kv": config.num_kv_heads,
        f"{at}.attention.key_length": config.head_dim,
        f"{at}.attention.value_length": config.head_dim,
        f"{at}.attention.layer_norm_rms_epsilon": config.norm_eps,
        f"{at}.rope.freq_base": config.rope_theta,
        f"{at}.rope.dimension_count": config.head_dim,
    }


def write_gguf(
    path: Path,
    config: ModelConfig,
    weights: Mapping[str, np.ndarray],
    *,
    kind: GGMLQuantizationType = KIND.F32,
    metadata: Mapping[str, Any] | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Write canonical `weights` (matrices as `kind`, the rest as F32); `metadata` overrides."""
    architecture = "llama" if config.family == "mistral" else config.family
    writer = GGUFWriter(path, architecture)
    values = {**metadata_of(config, architecture), **TOKENIZER, **(metadata or {})}
    for key, value in values.items():
        add(writer, key, value)
    names = {rule.canonical: rule.gguf for rule in by_model_type(config.family, "").rules}
    for canonical, array in weights.items():
        parts = canonical.split(".")
        layer = parts[1] if parts[0] == "layers" else ""
        rule = canonical.replace(f"layers.{layer}.", "layers.{i}.") if layer else canonical
        if architecture == "llama" and ".attention.q." in canonical:
            array = interleave(array, config.num_heads)
        if architecture == "llama" and ".attention.k." in canonical:
            array = interleave(array, config.num_kv_heads)
        add_tensor(writer, names[rule].format(i=layer), array, kind if array.ndim > 1 else KIND.F32)
    for name, array in (extra or {}).items():
        add_tensor(writer, name, array, KIND.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tensor(
    writer: GGUFWriter, name: str, array: np.ndarray, kind: GGMLQuantizationType
) -> None:
    """Add a float32 array as `kind`; uint8 arrays are taken as blocks of it."""
    raw = array if array.dtype == np.uint8 else quantize(np.ascontiguousarray(array), kind)
    writer.add_tensor(name, raw, raw_dtype=kind)


def add(writer: GGUFWriter, key: str, value: Any) -> None:
    """Add one metadata value under the type that llama.cpp gives it."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def random_blocks(
    rng: np.random.Generator, shape: tuple[int, int], kind: GGMLQuantizationType
) -> np.ndarray:
    """Return random blocks of `kind` whose float16 scales are finite, uint8 [rows, bytes a row]."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    # A byte below 0x7C in every place keeps each possible float16 exponent short of infinity.
    return rng.integers(0, 0x7C, (shape[0], shape[1] // block * block_bytes), dtype=np.uint8)
