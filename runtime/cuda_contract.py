"""What GPU engines, their kernels and their custom ops agree on: names, layouts and arguments.

The builder exports graphs by it, the session binds memory by it, and the kernels under
`plugins/cuda/` are written to it.

The KV cache of a layer is two arrays, keys and values, each `[pool_blocks, kv_heads, 32, head_dim]`
in the cache's type. All layers stand in one allocation, `[layers, 2, pool_blocks, kv_heads, 32,
head_dim]`. Types f32, f16 and bf16 hold numbers as they are; fp8 is e4m3, saturated at +-448, with
no scale; int8 has one f32 scale a token and head, max|x| / 127, in a second allocation
`[layers, 2, pool_blocks, kv_heads, 32]`. The last block of a pool belongs to no sequence: padding
writes there. Every byte is zero before the first step, since masked keys are still multiplied.

A token's slot is `block * 32 + position % 32`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CONTRACT_VERSION = 1
"""Of all that follows; an engine of another version is refused."""

BLOCK_TOKENS = 32
DOMAIN = "enginewright"
"""Of the custom ops: the ONNX domain, and the namespace of the TensorRT plugins."""

ARCHITECTURES = ("8.0", "8.6", "8.9", "9.0", "10.0", "12.0")
"""Compute capabilities that kernels are compiled for ahead of time."""

Kind = Literal["pointer", "i32", "i64", "f32"]


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a kernel: a device address with what lies there, or a number by value."""

    name: str
    kind: Kind
    what: str  # type and shape of what is pointed at; the meaning of a number


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A kernel that the session launches: arguments in order, its grid, and what is compiled in."""

    name: str
    arguments: tuple[Argument, ...]
    grid: str
    constants: tuple[str, ...] = ()


def _pointers(**what: str) -> tuple[Argument, ...]:
    return tuple(Argument(name, "pointer", text) for name, text in what.items())


def _numbers(**what: str) -> tuple[Argument, ...]:
    return tuple(Argument(name, "i32", text) for name, text in what.items())


KV_STORE = KernelSpec(
    "kv_store",
    (
        *_pointers(
            source="[layers * 2, source_tokens, kv_heads, WIDTH], a step's new keys and values",
            slots="i32[tokens], where each token's go",
            cache="[layers * 2, pool_blocks, kv_heads, 32, WIDTH]",
        ),
        *_numbers(source_tokens="stride of a layer's half in source", pool_blocks="of the cache"),
    ),
    grid="(tokens, layers * 2)",
    constants=("ELEMENT_BYTES", "KV_HEADS", "WIDTH"),
)
"""Copies new keys and values into their pages: bytes, whatever their type (gather form).

WIDTH is head_dim; for the scales of an int8 cache the same kernel runs with WIDTH 1 and 4 bytes.
"""

SAMPLE = KernelSpec(
    "sample",
    (
        *_pointers(
            logits="f32[rows, vocab]",
            tokens="i32[rows], written; -1 where the logits hold no number",
            logprobs="f32[rows], written; NaN where not asked",
            top_ids="i32[rows, top], written; null if nobody asks",
            top_logprobs="f32[rows, top], written; null if nobody asks",
            scratch="f32[rows, 2 * vocab], of no content",
            temperature="f32[rows]; 0: greedy",
            top_p="f32[rows]; 1: off",
            min_p="f32[rows]; 0: off",
            repetition_penalty="f32[rows]; 1: off",
            presence_penalty="f32[rows]",
            frequency_penalty="f32[rows]",
            top_k="i32[rows]; 0: off",
            positions="i32[rows], index of the token that is drawn",
            num_logprobs="i32[rows]; -1: none",
            history_starts="i32[rows + 1]",
            history="i32[history_starts[rows]]",
            prompt_lengths="i32[rows]",
            bias_starts="i32[rows + 1]",
            bias_ids="i32[bias_starts[rows]]",
            bias_values="f32[bias_starts[rows]]",
            seeds="u64[rows]",
            masks="u32[rows, mask_words], a set bit allows a token; null if there are none",
        ),
        *_numbers(vocab="tokens", mask_words="words of a mask", top="width of the top arrays"),
    ),
    grid="(rows,)",
)
"""Samples every logit row as runtime.session.Sampling says, by Philox4x32-10 of seed and position.

Filters, their order and ties are those of plugins/cpu/sample.h.
"""

SESSION_KERNELS = {spec.name: spec for spec in (KV_STORE, SAMPLE)}
"""The kernels that the session launches itself, outside TensorRT."""


@dataclass(frozen=True, slots=True)
class OpSpec:
    """A custom op of the plugin form: inputs and outputs in order, and attributes."""

    name: str
    inputs: tuple[tuple[str, str], ...]  # name, type and shape; T is the compute type
    outputs: tuple[tuple[str, str], ...]
    attributes: tuple[tuple[str, str], ...]


_CACHES = (
    ("k_cache", "C[pool_blocks, kv_heads, 32, head_dim]"),
    ("v_cache", "C[pool_blocks, kv_heads, 32, head_dim]"),
)
_SCALES = (
    ("k_scale", "f32[pool_blocks, kv_heads, 32], int8 caches only"),
    ("v_scale", "f32[pool_blocks, kv_heads, 32], int8 caches only"),
)

KV_WRITE_OP = OpSpec(
    "KvWrite",
    inputs=(
        ("k", "T[tokens, kv_heads * head_dim]"),
        ("v", "T[tokens, kv_heads * head_dim]"),
        ("slots", "i32[tokens]"),
        *_CACHES,
        *_SCALES,
    ),
    outputs=(*_CACHES, *_SCALES),  # each is its input, written in place
    attributes=(("num_kv_heads", "int"), ("head_dim", "int")),
)
"""Puts a step's keys and values into the cache, converted to its type.

Keys come rotated: graphs have ONNX's RotaryEmbedding, which TensorRT has a layer for. The kernel
can rotate too (`variants.kv_write_variant`), for a graph that leaves it out.
"""

PAGED_ATTENTION_OP = OpSpec(
    "PagedAttention",
    inputs=(
        ("q", "T[tokens, heads * head_dim]"),
        ("seq_starts", "i32[seqs + 1], first token of each sequence, then `tokens`"),
        ("past_tokens", "i32[seqs], tokens in the cache before this step"),
        ("block_tables", "i32[seqs, blocks], block ids in order of position"),
        *_CACHES,
        *_SCALES,
    ),
    outputs=(("out", "T[tokens, heads * head_dim]"),),
    attributes=(
        ("num_heads", "int"),
        ("num_kv_heads", "int"),
        ("head_dim", "int"),
        ("scale", "float, of the scores"),
        ("window", "int, tokens that a query sees, itself included; 0: all"),
    ),
)
"""Causal attention of packed tokens over their sequences' pages, the step's own included.

It reads the caches that KvWrite gives, so that the write comes first. The kernel also has softcap
and sinks; they become attributes and an input with the first family that asks for them.
"""

CUSTOM_OPS = {spec.name: spec for spec in (KV_WRITE_OP, PAGED_ATTENTION_OP)}
"""The custom ops of the plugin form."""


def op_name(op: str, has_scales: bool) -> str:
    """Return an op's name in graphs and among plugins, where optional inputs make another op."""
    return f"{op}WithScales" if has_scales else op
