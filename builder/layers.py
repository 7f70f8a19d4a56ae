"""What model files are written with: embedding, norm, linear, attention, gated MLP, head."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..runtime.dtypes import DType
from ..runtime.errors import CheckpointError
from .model_config import ModelConfig
from .network import TOKENS, Network, Value, Weight
from .ops import make_node
from .rope import rope_table


class TensorSource(Protocol):
    """A tensor of a checkpoint: its shape is known, its numbers are read when asked for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that `load()` will have."""
        ...

    def load(self) -> npt.NDArray[np.float32]:
        """Read the tensor as f32."""
        ...


class NetworkWriter:
    """Writes a network node by node, taking weights from a checkpoint by their canonical names."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, TensorSource],
        max_seq_len: int,
        embeds: bool = False,
    ) -> None:
        self.config = config
        self.embeds = embeds
        self.max_seq_len = max_seq_len
        self.ids = Value("ids", DType.I32, (TOKENS,))
        self.batch = Value("batch", DType.BATCH, ())
        self.network = Network(config, [self.ids, self.batch])

        @functools.cache  # every layer rotates by it
        def table() -> npt.NDArray[np.float32]:
            return rope_table(config.head_dim, config.rope_theta, config.rope_scaling, max_seq_len)

        self.rope_table = Weight("rope.table", (max_seq_len, config.head_dim), table)
        self._tensors = tensors
        self._weights: dict[str, Weight] = {}

    def weight(self, name: str, *shape: int) -> Weight:
        """Return the weight of that name, the same object each time.

        Raises CheckpointError if the checkpoint lacks it or has it in another shape.
        """
        if name not in self._weights:
            tensor = self._tensors.get(name)
            if tensor is None:
                raise CheckpointError(
                    f"the checkpoint has no tensor {name}, which a {self.config.family} model "
                    "needs; get a complete copy of the checkpoint"
                )
            if tuple(tensor.shape) != shape:
                raise CheckpointError(
                    f"tensor {name} has shape {list(tensor.shape)}, but the model's config asks "
                    f"for {list(shape)}; check that config and weights belong together"
                )
            self._weights[name] = Weight(name, shape, tensor.load)
        return self._weights[name]

    def op(self, op: str, *inputs: Value | None, name: str, **attrs: Any) -> Value:
        """Append one node and return its output."""
        node = make_node(op, inputs, self.network.fresh_name(name), **attrs)
        return self.network.append(node).output


def embedding(w: NetworkWriter) -> Value:
    """Return the token embeddings, [tokens, hidden]."""
    table = w.weight("embedding.weight", w.config.vocab_size, w.config.hidden_size)
    return w.op("embedding", w.ids, table, name="embedding")


def norm(w: NetworkWriter, x: Value, name: str, width: int) -> Value:
    """Return the RMS norm of each run of `width` elements, scaled by the weight of that name."""
    weight = w.weight(f"{name}.weight", width)
    return w.op("rms_norm", x, weight, name=name, eps=w.config.norm_eps)


def linear(w: NetworkWriter, x: Value, name: str, size: int, *, bias: bool = False) -> Value:
    """Return x times the transposed weight of that name, [tokens, size], plus its bias if any."""
    weight = w.weight(f"{name}.weight", size, int(x.shape[-1]))
    offset = w.weight(f"{name}.bias", size) if bias else None
    return w.op("linear", x, weight, offset, name=name)


def window_of(config: ModelConfig, layer: int, max_seq_len: int) -> int:
    """Return how many tokens a query of that layer sees, itself included; 0: all of them.

    A window that no sequence can outgrow is none.
    """
    window = config.sliding_window
    if window is None or window >= max_seq_len:
        return 0
    return window if config.window_layers is None or layer in config.window_layers else 0


def attention(
    w: NetworkWriter,
    x: Value,
    layer: int,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    qk_norm: bool = False,
) -> Value:
    """Return one layer's rotary grouped-query attention over the paged KV cache."""
    config, at = w.config, f"layers.{layer}.attention"
    width = config.head_dim
    heads = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
    parts: dict[str, Value] = {}
    for part, count in heads.items():
        value = linear(w, x, f"{at}.{part}", count * width, bias=qkv_bias)
        if part != "v":
            if qk_norm:
                value = norm(w, value, f"{at}.{part}_norm", width)
            value = w.op(
                "rope", value, w.rope_table, w.batch, name=f"{at}.{part}_rope", head_dim=width
            )
        parts[part] = value
    mixed = w.op(
        "paged_attention",
        parts["q"],
        parts["k"],
        parts["v"],
        w.batch,
        name=at,
        layer=layer,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=width,
        scale=width**-0.5,
        window=window_of(config, layer, w.max_seq_len),
    )
    return linear(w, mixed, f"{at}.o", config.hidden_size, bias=output_bias)


def gated_mlp(w: NetworkWriter, x: Value, layer: int, *, bias: bool = False) -> Value:
    """Return down(silu(gate(x)) * up(x)) (SwiGLU, arXiv:2002.05202)."""
    at, size = f"layers.{layer}.mlp", w.config.intermediate_size
    gate = linear(w, x, f"{at}.gate", size, bias=bias)
    up = linear(w, x, f"{at}.up", size, bias=bias)
    gated = w.op("mul", w.op("silu", gate, name=f"{at}.silu"), up, name=f"{at}.gated")
    return linear(w, gated, f"{at}.down", w.config.hidden_size, bias=bias)


def head(w: NetworkWriter, x: Value) -> Value:
    """Return the logits of the rows that are wanted, [rows, vocab].

    A network that embeds has no head: it returns the last hidden states, [rows, hidden].
    """
    config = w.config
    rows = w.op("gather_rows", x, w.batch, name="wanted_rows")
    rows = norm(w, rows, "final_norm", config.hidden_size)
    if w.embeds:
        return rows
    name = "embedding.weight" if config.tie_word_embeddings else "head.weight"
    weight = w.weight(name, config.vocab_size, config.hidden_size)
    return w.op("linear", rows, weight, name="logits")


Mixer = Callable[[NetworkWriter, Value, int], Value]
"""Writes one half of a layer: takes the normed input and the layer's number."""


def pre_norm_decoder(w: NetworkWriter, attend: Mixer, mlp: Mixer) -> Value:
    """Return the output of a decoder whose layers are x += attend(norm(x)); x += mlp(norm(x))."""
    x = embedding(w)
    for layer in range(w.config.num_layers):
        at, hidden = f"layers.{layer}", w.config.hidden_size
        normed = norm(w, x, f"{at}.input_norm", hidden)
        x = w.op("add", x, attend(w, normed, layer), name=f"{at}.attended")
        normed = norm(w, x, f"{at}.post_attention_norm", hidden)
        x = w.op("add", x, mlp(w, normed, layer), name=f"{at}.output")
    return head(w, x)
