"""What a family's name table is made of: one rule a tensor, with its names and its shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ...builder.model_config import ModelConfig

Dim = Literal["vocab", "hidden", "intermediate", "q", "kv", "head"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Where one canonical tensor stands; `{i}` in all three names means once a layer."""

    canonical: str
    huggingface: str
    gguf: str
    shape: tuple[Dim, ...]
    wanted: Callable[[ModelConfig], bool] = lambda _: True


@dataclass(frozen=True, slots=True)
class Family:
    """One family of models: the names it goes by, its tensors, and what to skip in its files."""

    model_types: tuple[str, ...]  # Hugging Face's model_type
    gguf_architectures: tuple[str, ...]
    rules: tuple[Rule, ...]
    huggingface_extras: tuple[str, ...]  # harmless tensors some files carry
    gguf_extras: tuple[str, ...]
    gguf_rotary_interleaved: bool = False  # q and k rows are stored for adjacent-pair rotation


def dimension(config: ModelConfig, dim: Dim) -> int:
    """Size of a named dimension of a weight."""
    match dim:
        case "vocab":
            return config.vocab_size
        case "hidden":
            return config.hidden_size
        case "intermediate":
            return config.intermediate_size
        case "q":
            return config.num_heads * config.head_dim
        case "kv":
            return config.num_kv_heads * config.head_dim
        case "head":
            return config.head_dim
