"""Rope scaling as checkpoints write it: Hugging Face's two spellings, GGUF's keys and tensor."""

from __future__ import annotations

import math

import numpy as np

from ..builder.model_config import RopeScaling
from ..runtime.errors import CheckpointError, UnsupportedModelError
from .fields import Fields

KNOWN = "default, linear, llama3, yarn"
# Every Llama 3.1 and later release; GGUF files keep only the frequencies that follow from them.
LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_ORIGINAL = 1.0, 4.0, 8192


def from_huggingface(config: Fields, default_theta: float) -> tuple[float, RopeScaling | None]:
    """(rope theta, scaling) of a config.json.

    transformers 5 writes both into `rope_parameters`; earlier ones write `rope_theta` and
    `rope_scaling`. Raises UnsupportedModelError on a rope type that is not known.
    """
    theta = config.number("rope_theta", default_theta)
    fields = config.nested("rope_parameters") or config.nested("rope_scaling")
    if fields is None:
        return theta, None
    theta = fields.number("rope_theta", theta)
    if fields.number("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModelError(
            f"{fields.source} rotates only a part of each head; only whole heads are supported."
        )
    kind = fields.text("rope_type", fields.text("type", "default"))
    match kind:
        case "default":
            return theta, None
        case "linear":
            return theta, RopeScaling("linear", fields.number("factor"))
        case "llama3":
            return theta, RopeScaling(
                "llama3",
                fields.number("factor"),
                fields.integer("original_max_position_embeddings"),
                low_freq_factor=fields.number("low_freq_factor"),
                high_freq_factor=fields.number("high_freq_factor"),
            )
        case "yarn":
            return theta, _yarn(fields)
        case _:
            raise UnsupportedModelError(
                f"{fields.source} asks for rope type {kind!r}, which is not supported; "
                f"supported are {KNOWN}."
            )


def _yarn(fields: Fields) -> RopeScaling:
    if not fields.flag("truncate", True):
        raise UnsupportedModelError(
            f"{fields.source} asks for yarn without truncation, which is not supported."
        )
    factor = fields.number("factor")
    attention = fields.optional_number("attention_factor")
    all_dims = fields.number("mscale_all_dim", 0.0)
    one_dim = fields.number("mscale", 0.0)
    if attention is None and one_dim and all_dims:
        attention = _magnitude(factor, one_dim) / _magnitude(factor, all_dims)
    return RopeScaling(
        "yarn",
        factor,
        fields.integer("original_max_position_embeddings"),
        beta_fast=fields.number("beta_fast", 32.0),
        beta_slow=fields.number("beta_slow", 1.0),
        attention_factor=attention,
    )


def _magnitude(factor: float, weight: float = 1.0) -> float:
    """YaRN's attention temperature, arXiv:2309.00071 section 3.4."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def from_gguf(
    metadata: Fields, prefix: str, theta: float, divisors: np.ndarray | None
) -> RopeScaling | None:
    """Read the scaling in `{prefix}.rope.scaling.*`, or behind `divisors` (rope_freqs.weight)."""
    kind = metadata.text(f"{prefix}.rope.scaling.type", "none")
    factor = metadata.number(f"{prefix}.rope.scaling.factor", 1.0)
    if divisors is not None:
        if kind != "none":
            raise UnsupportedModelError(
                f"{metadata.source} scales its rotary frequencies both by {kind!r} and by the "
                "tensor rope_freqs.weight, which is not supported."
            )
        return _llama3(metadata, theta, divisors)
    match kind:
        case "none":
            return None
        case "linear":
            return None if factor == 1.0 else RopeScaling("linear", factor)
        case "yarn":
            scale = metadata.optional_number(f"{prefix}.rope.scaling.attn_factor")
            if factor <= 0:
                raise CheckpointError(
                    f"{metadata.source}: {prefix}.rope.scaling.factor is {factor}; expected > 0."
                )
            return RopeScaling(
                "yarn",
                factor,
                metadata.integer(f"{prefix}.rope.scaling.original_context_length"),
                beta_fast=metadata.number(f"{prefix}.rope.scaling.yarn_beta_fast", 32.0),
                beta_slow=metadata.number(f"{prefix}.rope.scaling.yarn_beta_slow", 1.0),
                attention_factor=None if scale is None else scale * _magnitude(factor),
            )
        case _:
            raise UnsupportedModelError(
                f"{metadata.source} asks for rope scaling {kind!r}, which is not supported; "
                "supported are none, linear, yarn."
            )


def _llama3(metadata: Fields, theta: float, divisors: np.ndarray) -> RopeScaling | None:
    """Llama 3's rule, recognized by the frequency divisors [head_dim / 2] that it leads to."""
    factor = float(divisors.max(initial=1.0))
    if factor == 1.0 and divisors.min(initial=1.0) == 1.0:
        return None
    scaling = RopeScaling(
        "llama3",
        factor,
        LLAMA3_ORIGINAL,
        low_freq_factor=LLAMA3_LOW,
        high_freq_factor=LLAMA3_HIGH,
    )
    sound = theta > 0 and np.isfinite(factor)
    if not sound or not np.allclose(
        llama3_divisors(scaling, theta, len(divisors)), divisors, rtol=1e-4
    ):
        raise UnsupportedModelError(
            f"{metadata.source}: tensor rope_freqs.weight does not follow Llama 3's rule with "
            f"factor {factor:g}; other frequency tables are not supported."
        )
    return scaling


def llama3_divisors(scaling: RopeScaling, theta: float, half: int) -> np.ndarray:
    """Compute what Llama 3.1 divides its `half` rotary frequencies by, as float64 [half]."""
    assert scaling.original_max_position is not None
    assert scaling.low_freq_factor is not None
    assert scaling.high_freq_factor is not None
    frequencies = theta ** -(np.arange(half, dtype=np.float64) / half)
    turns = scaling.original_max_position * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - smooth) / scaling.factor + smooth)
