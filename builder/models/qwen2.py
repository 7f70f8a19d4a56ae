"""qwen2: a llama whose query, key and value projections have biases."""

from __future__ import annotations

from ..layers import NetworkWriter, attention, gated_mlp, pre_norm_decoder
from ..network import Value


def write(writer: NetworkWriter) -> Value:
    """Write Qwen2 or Qwen2.5 (arXiv:2407.10671); return the logits."""
    return pre_norm_decoder(writer, _attend, gated_mlp)


def _attend(w: NetworkWriter, x: Value, layer: int) -> Value:
    return attention(w, x, layer, qkv_bias=True)
