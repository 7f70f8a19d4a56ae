"""The device memory of a step beside weights and cache, estimated from shapes alone."""

from __future__ import annotations

from ..runtime.cuda_contract import BLOCK_TOKENS
from ..runtime.session_tensorrt import ELEMENT_BYTES
from .config import BuildConfig
from .model_config import ModelConfig


def workspace_bytes(model: ModelConfig, config: BuildConfig) -> int:
    """Estimate the memory of a step's activations, the largest profile's, from shapes alone.

    It counts what must exist at once if nothing is fused: the widest layer's input and output, and
    in the gather form one layer's pages as keys and values, gathered and joined with the new ones.
    """
    size = ELEMENT_BYTES[config.compute_dtype]
    heads, width = model.num_kv_heads, model.head_dim
    context = _activations(model, config.max_num_tokens, size)
    generation = _activations(model, config.max_batch_size, size)
    logits = 2 * 4 * config.max_batch_size * model.vocab_size
    if config.gpu.attention == "gather":
        row = 2 * 2 * heads * width * size  # keys and values, gathered and joined
        length = -(-config.seq_len // BLOCK_TOKENS) * BLOCK_TOKENS
        mask = config.max_num_tokens * (length + config.max_num_tokens)
        context += row * (length + config.max_num_tokens) + mask
        generation += config.max_batch_size * (row + 1) * (length + 1)
    return max(context, generation) + logits


def _activations(model: ModelConfig, tokens: int, size: int) -> int:
    qkv = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    widest = max(3 * model.intermediate_size, 2 * qkv) + 3 * model.hidden_size
    return tokens * widest * size
