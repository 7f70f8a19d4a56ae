"""Refuses a model config whose numbers contradict each other or cannot be computed with."""

from __future__ import annotations

from ..builder.model_config import ModelConfig, RopeScaling
from ..runtime.errors import CheckpointError

MAX_SIZE = 1 << 31  # sizes are carried as 32-bit integers in an engine
MAX_LAYERS = 4096  # far beyond any model, and few enough to list their tensors
POSITIVE_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "max_position_embeddings",
)


def check_config(config: ModelConfig, source: str) -> ModelConfig:
    """`config` itself, when it is sound; CheckpointError with the numbers when it is not."""
    for name in POSITIVE_SIZES:
        value = getattr(config, name)
        if not 0 < value < MAX_SIZE:
            raise CheckpointError(f"{source}: {name} is {value}; expected a positive size.")
    check_layers(config.num_layers, source)
    if config.num_heads % config.num_kv_heads:
        raise CheckpointError(
            f"{source}: {config.num_heads} attention heads cannot share {config.num_kv_heads} "
            "key-value heads evenly; expected a divisor."
        )
    if config.head_dim % 2:
        raise CheckpointError(
            f"{source}: head_dim is {config.head_dim}; rotary positions need an even number."
        )
    if config.norm_eps < 0:
        raise CheckpointError(f"{source}: the norm's epsilon is {config.norm_eps}; expected >= 0.")
    if config.rope_theta <= 0:
        raise CheckpointError(f"{source}: rope_theta is {config.rope_theta}; expected > 0.")
    if config.sliding_window is not None and config.sliding_window < 1:
        raise CheckpointError(
            f"{source}: sliding_window is {config.sliding_window}; expected at least 1, or null."
        )
    for token in (*config.bos_token_ids, *config.eos_token_ids):
        if token >= config.vocab_size:
            raise CheckpointError(
                f"{source}: special token {token} lies outside the vocabulary "
                f"of {config.vocab_size}."
            )
    if config.rope_scaling is not None:
        _check_scaling(config.rope_scaling, source)
    return config


def check_layers(num_layers: int, source: str) -> None:
    """Refuse a number of layers that no model has; CheckpointError."""
    if not 0 < num_layers <= MAX_LAYERS:
        raise CheckpointError(
            f"{source}: the number of layers is {num_layers}; expected 1 ... {MAX_LAYERS}."
        )


def derived_head_dim(hidden_size: int, num_heads: int, source: str) -> int:
    """Compute the head size of a config that does not say it."""
    if num_heads <= 0 or hidden_size <= 0 or hidden_size % num_heads:
        raise CheckpointError(
            f"{source}: hidden_size {hidden_size} is not divisible by {num_heads} attention heads, "
            "and no head_dim is given."
        )
    return hidden_size // num_heads


def _check_scaling(scaling: RopeScaling, source: str) -> None:
    for name in ("factor", "original_max_position", "attention_factor", "beta_fast", "beta_slow"):
        value = getattr(scaling, name)
        if value is not None and value <= 0:
            raise CheckpointError(f"{source}: rope scaling's {name} is {value}; expected > 0.")
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    if low is not None and high is not None and not 0 < low < high:
        raise CheckpointError(
            f"{source}: rope scaling has low_freq_factor {low} and high_freq_factor {high}; "
            "expected 0 < low < high."
        )
