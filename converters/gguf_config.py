"""GGUF metadata and tensor names -> ModelConfig."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..builder.model_config import ModelConfig
from ..runtime.errors import CheckpointError, UnsupportedModelError
from . import rope_scaling
from .checkpoint import Tensor
from .config_checks import check_config, derived_head_dim
from .fields import Fields

DEFAULT_THETA = 10000.0
CONTROL = 3  # of tokenizer.ggml.token_type
# Control tokens that end a turn or a text, whatever the metadata's single eos id says.
END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "</s>")


def model_config(metadata: Fields, tensors: Mapping[str, Tensor], architecture: str) -> ModelConfig:
    """Build the config of a GGUF file of one of the known architectures.

    What the metadata does not say is read off the tensors: vocabulary, biases, tied embeddings,
    Llama 3's frequencies. Raises CheckpointError on missing or contradictory numbers.
    """
    prefix = architecture
    _refuse_unsupported(metadata, prefix)
    hidden_size = metadata.integer(f"{prefix}.embedding_length")
    num_heads = metadata.integer(f"{prefix}.attention.head_count")
    head_dim = metadata.optional_integer(f"{prefix}.attention.key_length")
    if head_dim is None:
        head_dim = derived_head_dim(hidden_size, num_heads, metadata.source)
    for key in (f"{prefix}.attention.value_length", f"{prefix}.rope.dimension_count"):
        if metadata.integer(key, head_dim) != head_dim:
            raise UnsupportedModelError(
                f"{metadata.source}: {key} is {metadata.values[key]}, but a key has {head_dim} "
                "dimensions; only equal sizes are supported."
            )
    theta = metadata.number(f"{prefix}.rope.freq_base", DEFAULT_THETA)
    embedding = tensors.get("token_embd.weight")
    return check_config(
        ModelConfig(
            family=architecture,
            vocab_size=embedding.shape[0]
            if embedding and embedding.shape
            else len(metadata.items("tokenizer.ggml.tokens", str)),
            hidden_size=hidden_size,
            intermediate_size=metadata.integer(f"{prefix}.feed_forward_length"),
            num_layers=metadata.integer(f"{prefix}.block_count"),
            num_heads=num_heads,
            num_kv_heads=metadata.integer(f"{prefix}.attention.head_count_kv", num_heads),
            head_dim=head_dim,
            max_position_embeddings=metadata.integer(f"{prefix}.context_length"),
            norm_eps=metadata.number(f"{prefix}.attention.layer_norm_rms_epsilon"),
            rope_theta=theta,
            rope_scaling=rope_scaling.from_gguf(
                metadata, prefix, theta, _divisors(metadata, tensors, head_dim)
            ),
            tie_word_embeddings="output.weight" not in tensors,
            qkv_bias="blk.0.attn_q.bias" in tensors,
            output_bias="blk.0.attn_output.bias" in tensors,
            mlp_bias="blk.0.ffn_gate.bias" in tensors,
            qk_norm=architecture == "qwen3",
            sliding_window=_window(metadata, prefix),
            bos_token_ids=metadata.token_ids("tokenizer.ggml.bos_token_id"),
            eos_token_ids=end_token_ids(metadata),
            pad_token_id=metadata.optional_integer("tokenizer.ggml.padding_token_id"),
        ),
        metadata.source,
    )


def end_token_ids(metadata: Fields) -> tuple[int, ...]:
    """List the ids that end a text: eos first, then ends of turn or message, by key or by text."""
    ids: list[int] = []
    for key in ("eos_token_id", "eot_token_id", "eom_token_id"):
        ids += metadata.token_ids(f"tokenizer.ggml.{key}")
    kinds = metadata.items("tokenizer.ggml.token_type", int)
    tokens = metadata.items("tokenizer.ggml.tokens", str)
    controls = {
        token: i
        for i, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind == CONTROL
    }
    ids += [controls[token] for token in END_OF_TURN if token in controls]
    return tuple(dict.fromkeys(ids))


def _divisors(metadata: Fields, tensors: Mapping[str, Tensor], head_dim: int) -> np.ndarray | None:
    """What the rotary frequencies are divided by, [head_dim / 2], if the file says so."""
    tensor = tensors.get("rope_freqs.weight")
    if tensor is None:
        return None
    if tensor.shape != (head_dim // 2,):
        raise CheckpointError(
            f"{metadata.source}: tensor rope_freqs.weight has shape {list(tensor.shape)}; "
            f"expected [{head_dim // 2}], half a head."
        )
    return tensor.load()


def _refuse_unsupported(metadata: Fields, prefix: str) -> None:
    if metadata.integer(f"{prefix}.expert_count", 0):
        raise UnsupportedModelError(
            f"{metadata.source} is a mixture of experts, which is not supported."
        )
    pieces = metadata.integer("split.count", 1)
    if pieces > 1:
        raise UnsupportedModelError(
            f"{metadata.source} is one of {pieces} split files, which are not supported; "
            "merge them with llama-gguf-split --merge."
        )


def _window(metadata: Fields, prefix: str) -> int | None:
    window = metadata.integer(f"{prefix}.attention.sliding_window", 0)
    if window and prefix != "llama":
        raise UnsupportedModelError(
            f"{metadata.source} has a sliding window, but not the layers it holds for; "
            "use the Hugging Face checkpoint."
        )
    return window or None
