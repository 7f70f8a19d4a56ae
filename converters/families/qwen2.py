"""Tensor names of Qwen2 and Qwen2.5: Llama's, with biases on q, k and v (`qkv_bias`)."""

from __future__ import annotations

from . import llama
from .base import Family

FAMILY = Family(
    model_types=("qwen2",),
    gguf_architectures=("qwen2",),
    rules=llama.RULES,
    huggingface_extras=llama.HUGGINGFACE_EXTRAS,
    gguf_extras=llama.GGUF_EXTRAS,
)
