"""Tensor names of Qwen3: Llama's, and a norm on every query and key head."""

from __future__ import annotations

from . import llama
from .base import Family, Rule

FAMILY = Family(
    model_types=("qwen3",),
    gguf_architectures=("qwen3",),
    rules=(
        *llama.RULES,
        Rule(
            "layers.{i}.attention.q_norm.weight",
            "model.layers.{i}.self_attn.q_norm.weight",
            "blk.{i}.attn_q_norm.weight",
            ("head",),
        ),
        Rule(
            "layers.{i}.attention.k_norm.weight",
            "model.layers.{i}.self_attn.k_norm.weight",
            "blk.{i}.attn_k_norm.weight",
            ("head",),
        ),
    ),
    huggingface_extras=llama.HUGGINGFACE_EXTRAS,
    gguf_extras=llama.GGUF_EXTRAS,
)
