"""What a decoder-only model is: the sizes and choices that every family shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context.

    `linear` divides positions by `factor`; `llama3` is Meta's piecewise rule of Llama 3.1;
    `yarn` is arXiv:2309.00071. Fields that a kind does not use are None.
    """

    kind: Literal["linear", "llama3", "yarn"]
    factor: float
    original_max_position: int | None = None
    low_freq_factor: float | None = None  # llama3
    high_freq_factor: float | None = None  # llama3
    beta_fast: float | None = None  # yarn
    beta_slow: float | None = None  # yarn
    attention_factor: float | None = None  # yarn; None: 0.1 ln(factor) + 1


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder-only transformer with rotary attention and a gated MLP."""

    family: str  # Hugging Face's model_type: llama, mistral, qwen2, qwen3
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False  # bias of the attention's output projection
    mlp_bias: bool = False
    qk_norm: bool = False  # RMS norm of each query and key head before the rotation
    sliding_window: int | None = None  # tokens a query sees, itself included; None: all
    window_layers: tuple[int, ...] | None = None  # layers the window holds for; None: all of them
    bos_token_ids: tuple[int, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
