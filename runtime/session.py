"""The session: one rank's compiled engine, loaded and ready to run steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .artifact import Engine

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step computes: packed tokens of several sequences, context rows first.

    A token id of `-1 - r` means "the token that row r of the previous step sampled", so that a
    step can be launched before the host has seen that token.
    """

    token_ids: Int32Array  # [tokens]
    seq_starts: Int32Array  # [seqs + 1], first token of each sequence; the last entry is `tokens`
    past_tokens: Int32Array  # [seqs], tokens of the sequence that are already in the KV cache
    block_tables: Int32Array  # [seqs, max_blocks], KV block ids in order of position; -1 pads
    logit_rows: Int32Array  # [rows], token index of each row whose next token is wanted


@dataclass(frozen=True, slots=True)
class Sampling:
    """How each logit row of a step is sampled. Arrays have one entry a row.

    Filters apply in this order: penalties, bias, mask, temperature, top-k, top-p, min-p.
    A row with `temperature == 0` is greedy: the highest logit, the lowest id among equals.
    """

    temperature: Float32Array
    top_k: Int32Array  # 0: off
    top_p: Float32Array  # 1: off
    min_p: Float32Array  # 0: off
    repetition_penalty: Float32Array  # 1: off; over prompt and output
    presence_penalty: Float32Array  # 0: off; over the output
    frequency_penalty: Float32Array  # 0: off; over the output
    seeds: npt.NDArray[np.uint64]
    positions: Int32Array  # index of the token that is sampled; with the seed it keys the generator
    num_logprobs: Int32Array  # -1: no logprob; 0: the sampled token's; n: and the n likeliest
    history_starts: Int32Array  # [rows + 1] into `history`; empty for rows without penalties
    history: Int32Array  # prompt and output tokens of the rows that have penalties
    prompt_lengths: Int32Array  # how many of a row's history tokens are prompt
    bias_starts: Int32Array  # [rows + 1] into `bias_ids` and `bias_values`
    bias_ids: Int32Array
    bias_values: Float32Array
    masks: npt.NDArray[np.uint32] | None = (
        None  # [rows, ceil(vocab / 32)], a set bit allows a token
    )

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """All but the masks, in the order in which engines take them."""
        return (
            self.temperature,
            self.top_p,
            self.min_p,
            self.repetition_penalty,
            self.presence_penalty,
            self.frequency_penalty,
            self.top_k,
            self.positions,
            self.num_logprobs,
            self.history_starts,
            self.history,
            self.prompt_lengths,
            self.bias_starts,
            self.bias_ids,
            self.bias_values,
            self.seeds,
        )


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave: one sampled token a logit row, with log-probabilities where asked.

    Log-probabilities are of the model's own distribution, before penalties and temperature.
    """

    tokens: Int32Array  # [rows]
    logprobs: Float32Array  # [rows]; NaN where not asked
    top_ids: Int32Array  # [rows, max(num_logprobs)], descending, -1 pads; [0, 0] if nobody asked
    top_logprobs: Float32Array  # [rows, max(num_logprobs)]
    step_seconds: float  # from launch to completion, as the device saw it
    hidden: Float32Array | None = None  # of an engine that embeds: [rows, embedding_size]
    logits: Float32Array | None = None  # [rows, vocab], of a step that was not sampled


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What a session can hold; decided when it is opened, at most what the engine was built for."""

    max_batch_size: int  # sequences in a step
    max_num_tokens: int  # tokens in a step
    max_seq_len: int  # prompt and answer of one sequence
    num_blocks: int  # KV blocks in the pool
    block_tokens: int  # tokens in a KV block
    vocab_size: int
    embedding_size: int = 0  # of an engine that embeds: numbers in its rows; 0: rows are logits


class Session(Protocol):
    """One rank's engine. Calls come from one thread, in the order launch, sample, wait."""

    limits: SessionLimits

    def launch(self, batch: Batch) -> None:
        """Start a step's forward pass; returns at once."""
        ...

    def sample(self, sampling: Sampling | None) -> None:
        """Queue the sampling of the step that was launched last; returns at once.

        With None the step gives its logits instead of tokens, and no later step may refer to them.
        """
        ...

    def sample_logits(self, logits: Float32Array, sampling: Sampling) -> StepResult:
        """Sample rows of logits, [rows, vocab], as a step's own; no step may be in flight."""
        ...

    def wait(self) -> StepResult:
        """Block until the oldest step that was launched has finished, and return its result."""
        ...

    def logits(self, batch: Batch) -> Float32Array:
        """Run one forward pass and return its logits, [rows, vocab].

        An engine that embeds returns the last hidden states, [rows, embedding_size].
        """
        ...

    def copy_block(self, source: int, target: int) -> None:
        """Copy one KV block, all layers of it, onto another."""
        ...

    def read_block(self, block: int) -> bytes:
        """Return what one KV block holds, all layers of it; no step in flight may write to it."""
        ...

    def write_block(self, block: int, data: bytes) -> None:
        """Put what `read_block` returned into a KV block that no step in flight uses."""
        ...

    def close(self) -> None:
        """Release threads and memory; the session cannot be used afterwards."""
        ...


def open_session(engine: Engine, **options: Any) -> Session:
    """Open the session that the engine's target asks for.

    Options: `threads`, `kv_cache_memory` (bytes), `max_batch_size`, `max_num_tokens`; None is the
    default of each; a CPU engine also takes `own_threads`, `huge_pages` and `numa`, and one for
    GPUs has no use for threads.
    Raises IncompatibleMachineError, OutOfMemoryError or EngineError.
    """
    if engine.manifest.target.tensorrt is not None:
        from .open_tensorrt import open_tensorrt_session

        for name in ("threads", "own_threads", "huge_pages", "numa"):
            options.pop(name, None)
        return open_tensorrt_session(engine, **options)
    from .session_cpu import CpuSession

    return CpuSession(engine, **options)
