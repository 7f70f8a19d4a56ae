"""qwen3: a llama whose query and key heads are normed before the rotation."""

from __future__ import annotations

from ..layers import NetworkWriter, attention, gated_mlp, pre_norm_decoder
from ..network import Value


def write(writer: NetworkWriter) -> Value:
    """Write a dense Qwen3 (arXiv:2505.09388); return the logits."""
    return pre_norm_decoder(writer, _attend, gated_mlp)


def _attend(w: NetworkWriter, x: Value, layer: int) -> Value:
    config = w.config
    return attention(
        w, x, layer, qkv_bias=config.qkv_bias, output_bias=config.output_bias, qk_norm=True
    )
