"""Which model file writes which family; families are named after Hugging Face's model_type."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...runtime.errors import UnsupportedModelError
from ..layers import NetworkWriter, TensorSource
from ..model_config import ModelConfig
from ..network import Network, Value
from . import llama, qwen2, qwen3

FAMILIES: Mapping[str, Callable[[NetworkWriter], Value]] = {
    "llama": llama.write,
    "mistral": llama.write,
    "qwen2": qwen2.write,
    "qwen3": qwen3.write,
}


def build_network(
    config: ModelConfig,
    weights: Mapping[str, TensorSource],
    max_seq_len: int,
    *,
    embeds: bool = False,
) -> Network:
    """Return the plain network of a model: inputs ids and batch, output logits [rows, vocab].

    With `embeds` the output is the last hidden states, normed, [rows, hidden].
    Reads no numbers: weights stay lazy. Raises UnsupportedModelError for an unknown family and
    CheckpointError for a tensor that is missing or has another shape than the config says.
    """
    write = FAMILIES.get(config.family)
    if write is None:
        raise UnsupportedModelError(
            f"the model family {config.family!r} is not supported; "
            f"supported are {', '.join(sorted(FAMILIES))}"
        )
    writer = NetworkWriter(config, weights, max_seq_len, embeds)
    writer.network.outputs = [write(writer)]
    return writer.network
