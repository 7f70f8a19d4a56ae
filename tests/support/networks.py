"""Networks of tiny models, and the batch that several tests run them on."""

from __future__ import annotations

from typing import Any

import numpy as np

from enginewright.builder.models.registry import build_network
from enginewright.builder.network import Network
from enginewright.builder.reference import Reference
from enginewright.builder.self_check import make_batch
from enginewright.runtime.session import Batch, Float32Array
from tests.support.tiny import as_tensors, make_tiny_config, make_tiny_weights

MAX_SEQ_LEN = 128
FEATURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-biases": {
        "family": "llama",
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
    },
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
}
"""Tiny models that together have everything a family may have; overrides of their config."""


def make_network(name: str = "llama", **overrides: Any) -> Network:
    """Return the plain network of one of FEATURES, with random weights."""
    changes = {"family": name, **FEATURES[name], **overrides}
    config = make_tiny_config(changes.pop("family"), **changes)
    return build_network(config, as_tensors(make_tiny_weights(config)), MAX_SEQ_LEN)


def two_prompts(vocab_size: int = 160) -> Batch:
    """Return a step of two whole prompts of 40 and 9 tokens, all logits wanted."""
    random = np.random.default_rng(5)
    prompts = [random.integers(vocab_size, size=size).tolist() for size in (40, 9)]
    return make_batch(prompts, [(0, 0, 40), (1, 0, 9)], 32)


def logits_of(network: Network, *, fake_quantize: bool = False) -> Float32Array:
    """Return the reference's logits of the two prompts."""
    return Reference(network, fake_quantize=fake_quantize).step(two_prompts())
