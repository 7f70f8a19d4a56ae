"""A llama of 1.1 billion random weights, in the shape of TinyLlama, with a real tokenizer."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

from enginewright.converters.gguf_file import read_gguf
from enginewright.converters.mapped_file import MappedFile
from tests.benchmarks.peer.models import CACHE, Model, smollm2
from tests.support.gguf import add

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, VOCAB = 2048, 5632, 22, 32, 4, 32000
_SPREAD = 0.02  # of the weights, as models are initialized
_ROWS = 1024  # random numbers are drawn for so many rows at a time
_METADATA: dict[str, Any] = {
    "llama.block_count": LAYERS,
    "llama.context_length": 2048,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": INTERMEDIATE,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.dimension_count": HIDDEN // HEADS,
    "llama.vocab_size": VOCAB,
    "general.name": "synthetic-1.1B",
}


def synthetic_1b() -> Model:
    """Write the model below .cache, 2.2 GB of f16 in a GGUF file, or return the one that is there.

    The same numbers every time. Memory stays at the size of a few rows.
    """
    folder = CACHE / "peers" / "models" / "synthetic-1b"
    path = folder / "synthetic-1.1B.F16.gguf"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        _write(partial)
        partial.rename(path)
    return Model("synthetic-1.1B", path, folder)


def _write(path: Path) -> None:
    writer = GGUFWriter(path, "llama")
    for key, value in {**_METADATA, **_tokenizer(smollm2().gguf)}.items():
        add(writer, key, value)
    shapes = list(_tensors())
    for name, shape in shapes:
        dtype = np.dtype(np.float32 if len(shape) == 1 else np.float16)
        writer.add_tensor_info(name, shape, dtype, int(np.prod(shape)) * dtype.itemsize)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for number, (_, shape) in enumerate(shapes):
        writer.write_tensor_data(_values(number, shape))
    writer.close()


def _tensors() -> Iterator[tuple[str, tuple[int, ...]]]:
    kv = HIDDEN // HEADS * KV_HEADS
    yield "token_embd.weight", (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        yield f"blk.{layer}.attn_norm.weight", (HIDDEN,)
        yield f"blk.{layer}.attn_q.weight", (HIDDEN, HIDDEN)
        yield f"blk.{layer}.attn_k.weight", (kv, HIDDEN)
        yield f"blk.{layer}.attn_v.weight", (kv, HIDDEN)
        yield f"blk.{layer}.attn_output.weight", (HIDDEN, HIDDEN)
        yield f"blk.{layer}.ffn_norm.weight", (HIDDEN,)
        yield f"blk.{layer}.ffn_gate.weight", (INTERMEDIATE, HIDDEN)
        yield f"blk.{layer}.ffn_up.weight", (INTERMEDIATE, HIDDEN)
        yield f"blk.{layer}.ffn_down.weight", (HIDDEN, INTERMEDIATE)
    yield "output_norm.weight", (HIDDEN,)
    yield "output.weight", (VOCAB, HIDDEN)


def _values(number: int, shape: tuple[int, ...]) -> np.ndarray:
    """Norms are ones; of a matrix, the rows are drawn in turn from a generator of its own."""
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    generator = np.random.default_rng(number)
    values = np.empty(shape, np.float16)
    for start in range(0, shape[0], _ROWS):
        rows = min(_ROWS, shape[0] - start)
        values[start : start + rows] = _SPREAD * generator.standard_normal(
            (rows, shape[1]), np.float32
        )
    return values


def _tokenizer(path: Path) -> dict[str, Any]:
    """The first tokens of another model's byte-pair tokenizer, and the merges that give them."""
    file = MappedFile(path)
    found = read_gguf(file).metadata
    file.close()
    kept = {key: value for key, value in found.items() if key.startswith("tokenizer.ggml.")}
    kept["tokenizer.ggml.tokens"] = kept["tokenizer.ggml.tokens"][:VOCAB]
    kept["tokenizer.ggml.token_type"] = kept["tokenizer.ggml.token_type"][:VOCAB]
    tokens = set(kept["tokenizer.ggml.tokens"])
    kept["tokenizer.ggml.merges"] = [
        merge for merge in kept["tokenizer.ggml.merges"] if merge.replace(" ", "") in tokens
    ]
    if "tokenizer.chat_template" in found:
        kept["tokenizer.chat_template"] = found["tokenizer.chat_template"]
    return kept


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(synthetic_1b().gguf)
