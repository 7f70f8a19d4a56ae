"""llama and mistral: the plain pre-norm decoder; mistral differs by its attention window."""

from __future__ import annotations

from ..layers import NetworkWriter, attention, gated_mlp, pre_norm_decoder
from ..network import Value


def write(writer: NetworkWriter) -> Value:
    """Write Llama (arXiv:2307.09288) or Mistral (arXiv:2310.06825); return the logits."""
    config = writer.config

    def attend(w: NetworkWriter, x: Value, layer: int) -> Value:
        return attention(w, x, layer, qkv_bias=config.qkv_bias, output_bias=config.output_bias)

    def mlp(w: NetworkWriter, x: Value, layer: int) -> Value:
        return gated_mlp(w, x, layer, bias=config.mlp_bias)

    return pre_norm_decoder(writer, attend, mlp)
