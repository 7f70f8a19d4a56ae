"""Logits of every token of a sequence, from an engine or from the reference interpreter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ...runtime.artifact import Engine, open_engine
from ...runtime.errors import InputError
from ...runtime.session import Batch, Float32Array, open_session

_BLOCK_TOKENS = 32
_REFERENCE_TOKENS = 2048  # that the reference is made for


class LogitsSource(Protocol):
    """Gives logits of token sequences."""

    max_tokens: int  # of a sequence
    vocab_size: int

    def logits(self, ids: Sequence[int]) -> Iterator[Float32Array]:
        """Yield the logits of every token in order, a few rows at a time, [rows, vocab]."""
        ...

    def close(self) -> None:
        """Give memory and threads back."""
        ...


class EngineLogits:
    """An engine in this process."""

    def __init__(self, engine: Engine, **options: Any) -> None:
        """Open a session; `options` are those of `open_session`. Raises EngineError."""
        engine.manifest.check_generates()
        self._session = open_session(engine, **options)
        limits = self._session.limits
        self._rows = min(limits.max_batch_size, limits.max_num_tokens)
        self._block_tokens = limits.block_tokens
        self.max_tokens = min(limits.max_seq_len, limits.num_blocks * limits.block_tokens)
        self.vocab_size = limits.vocab_size

    def logits(self, ids: Sequence[int]) -> Iterator[Float32Array]:
        """Yield the logits of every token in order."""
        for start in range(0, len(ids), self._rows):
            part = ids[start : start + self._rows]
            yield self._session.logits(one_sequence(part, start, self._block_tokens))

    def close(self) -> None:
        """End the session."""
        self._session.close()


class ReferenceLogits:
    """A checkpoint in f32, run by the reference interpreter: slow, and the judge."""

    def __init__(self, path: str) -> None:
        """Open a checkpoint. Raises CheckpointError."""
        from ...builder.models.registry import build_network
        from ...builder.reference import Reference
        from ...converters.readers import open_checkpoint

        self._checkpoint = open_checkpoint(path)
        config = self._checkpoint.config
        self.max_tokens = min(config.max_position_embeddings, _REFERENCE_TOKENS)
        self.vocab_size = config.vocab_size
        network = build_network(config, self._checkpoint.tensors, self.max_tokens)
        self._make = lambda: Reference(network)

    def logits(self, ids: Sequence[int]) -> Iterator[Float32Array]:
        """Yield the logits of all tokens at once."""
        yield self._make().step(one_sequence(ids, 0, _BLOCK_TOKENS))

    def close(self) -> None:
        """Close the checkpoint's files."""
        self._checkpoint.close()


def open_source(path: str, **options: Any) -> LogitsSource:
    """Open an engine folder or a checkpoint. Raises InputError if it is neither."""
    if (Path(path) / "engine.json").is_file():
        return EngineLogits(open_engine(path), **options)
    return ReferenceLogits(path)


def check_same_vocabulary(first: LogitsSource, second: LogitsSource) -> None:
    """Raise InputError unless both have logits of the same tokens."""
    if first.vocab_size != second.vocab_size:
        raise InputError(
            f"the vocabularies have {first.vocab_size} and {second.vocab_size} tokens; logits can "
            "be compared only between engines of one model"
        )


def one_sequence(ids: Sequence[int], past: int, block_tokens: int) -> Batch:
    """Return a step of one sequence that wants the logits of all its tokens."""
    blocks = -(-(past + len(ids)) // block_tokens)
    return Batch(
        token_ids=np.asarray(ids, np.int32),
        seq_starts=np.array([0, len(ids)], np.int32),
        past_tokens=np.array([past], np.int32),
        block_tables=np.arange(blocks, dtype=np.int32)[None],
        logit_rows=np.arange(len(ids), dtype=np.int32),
    )


def log_softmax(logits: Float32Array) -> Float32Array:
    """Return log-probabilities in float64's precision, [rows, vocab]."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return (wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))).astype(np.float32)
