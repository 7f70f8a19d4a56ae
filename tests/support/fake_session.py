"""A session without a model: each token is a hash of the sequence, read through its block table.

KV slots hold the tokens and positions that were written there, so that a wrong block table, a
wrong position or a block in two hands changes the tokens or raises.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from enginewright.executor.sampling import TokenParams
from enginewright.runtime.session import Batch, Float32Array, Sampling, SessionLimits, StepResult


class FakeSession:
    """Implements runtime.session.Session in numpy; computes at `wait`, as a device may.

    `fail_next` makes the next call of that verb raise. `batches` keeps every batch.
    """

    def __init__(self, limits: SessionLimits) -> None:
        self.limits = limits
        slots = limits.num_blocks * limits.block_tokens
        self._tokens = np.full(slots, -1, np.int64)
        self._positions = np.full(slots, -1, np.int64)
        self._flights: deque[tuple[Batch, Sampling | None, bool]] = deque()
        self._unsampled: tuple[Batch, list[list[int]]]  # the step whose logits were given
        self.fail_next: str | None = None
        self.batches: list[Batch] = []
        self.samplings: list[Sampling] = []
        self.closed = False
        self.copies = 0
        self._last_tokens = np.zeros(0, np.int32)  # what the step before has sampled

    def launch(self, batch: Batch) -> None:
        self._maybe_fail("launch")
        assert len(self._flights) < 2, "two steps are in flight"
        self.batches.append(batch)
        self._flights.append((batch, None, False))

    def sample(self, sampling: Sampling | None) -> None:
        self._maybe_fail("sample")
        if sampling is not None:
            self.samplings.append(sampling)
        self._flights[-1] = (self._flights[-1][0], sampling, True)

    def wait(self) -> StepResult:
        batch, sampling, is_sampled = self._flights[0]
        assert is_sampled, "the step was never sampled"
        self._flights.popleft()
        sequences = self._write(batch)
        self._last_tokens = np.zeros(len(batch.logit_rows), np.int32)
        self._maybe_fail("wait")
        if sampling is None:
            self._unsampled = (batch, sequences)
            return self._unsampled_result(batch)
        result = self._sample(batch, sampling, sequences)
        self._last_tokens = result.tokens
        return result

    def sample_logits(self, logits: Float32Array, sampling: Sampling) -> StepResult:
        """Rows that nobody has changed are as ever; in others the highest logit wins."""
        assert not self._flights, "a step is in flight"
        self._maybe_fail("sample_logits")
        result = self._sample(self._unsampled[0], sampling, self._unsampled[1])
        for row in np.flatnonzero(logits.any(axis=1)):
            result.tokens[row] = -1 if np.isneginf(logits[row]).all() else logits[row].argmax()
        return result

    def _unsampled_result(self, batch: Batch) -> StepResult:
        rows = len(batch.logit_rows)
        ints, floats = np.zeros((rows, 0), np.int32), np.zeros((rows, 0), np.float32)
        logits = np.zeros((rows, self.limits.vocab_size), np.float32)
        return StepResult(ints[:, :1], floats[:, :1], ints, floats, 0.0, logits=logits)

    def logits(self, batch: Batch) -> Float32Array:
        raise NotImplementedError

    def copy_block(self, source: int, target: int) -> None:
        size = self.limits.block_tokens
        assert source != target
        for array in (self._tokens, self._positions):
            array[target * size : (target + 1) * size] = array[source * size : (source + 1) * size]
        self.copies += 1

    def read_block(self, block: int) -> bytes:
        size = self.limits.block_tokens
        where = slice(block * size, (block + 1) * size)
        return self._tokens[where].tobytes() + self._positions[where].tobytes()

    def write_block(self, block: int, data: bytes) -> None:
        size = self.limits.block_tokens
        where = slice(block * size, (block + 1) * size)
        self._tokens[where], self._positions[where] = np.frombuffer(data, np.int64).reshape(2, size)

    def close(self) -> None:
        self.closed = True

    def _maybe_fail(self, verb: str) -> None:
        if self.fail_next == verb:
            self.fail_next = None
            raise RuntimeError(f"{verb} was told to fail")

    def _write(self, batch: Batch) -> list[list[int]]:
        """Write the step's tokens; return each sequence as the KV cache then holds it."""
        limits, size = self.limits, self.limits.block_tokens
        assert len(batch.token_ids) <= limits.max_num_tokens
        assert 0 < len(batch.past_tokens) <= limits.max_batch_size
        assert batch.seq_starts[-1] == len(batch.token_ids)
        for array in (batch.token_ids, batch.seq_starts, batch.past_tokens, batch.logit_rows):
            assert array.dtype == np.int32
            assert array.flags.c_contiguous
        assert batch.block_tables.dtype == np.int32
        assert batch.block_tables.flags.c_contiguous
        written: list[int] = []
        slots_of: list[np.ndarray] = []
        for row, past in enumerate(batch.past_tokens.tolist()):
            begin, end = batch.seq_starts[row : row + 2].tolist()
            assert end > begin
            positions = np.arange(past + end - begin)
            blocks = batch.block_tables[row][positions // size]
            assert (blocks >= 0).all()
            assert (blocks < limits.num_blocks).all()
            slots = blocks.astype(np.int64) * size + positions % size
            new = slots[past:]
            self._tokens[new] = [
                token if token >= 0 else max(int(self._last_tokens[-1 - token]), 0)
                for token in batch.token_ids[begin:end].tolist()
            ]
            self._positions[new] = positions[past:]
            written += new.tolist()
            slots_of.append(slots)
        assert len(set(written)) == len(written), "two rows write to one place"
        sequences: list[list[int]] = []
        for slots in slots_of:
            assert (self._positions[slots] == np.arange(len(slots))).all(), "a wrong position"
            sequences.append(self._tokens[slots].tolist())
        return sequences

    def _sample(self, batch: Batch, s: Sampling, sequences: list[list[int]]) -> StepResult:
        rows = len(batch.logit_rows)
        width = max(0, int(s.num_logprobs.max(initial=0)))
        tokens = np.zeros(rows, np.int32)
        logprobs = np.full(rows, np.nan, np.float32)
        top_ids = np.full((rows, width), -1, np.int32)
        top_logprobs = np.full((rows, width), np.nan, np.float32)
        for i, index in enumerate(batch.logit_rows.tolist()):
            row = int(np.searchsorted(batch.seq_starts, index, side="right")) - 1
            seen = int(batch.past_tokens[row]) + index - int(batch.seq_starts[row]) + 1
            sequence = sequences[row][:seen]
            if s.temperature[i] > 0:
                assert s.positions[i] == len(sequence)
            history = s.history[s.history_starts[i] : s.history_starts[i + 1]].tolist()
            assert history in ([], sequence), "the history is not the sequence"
            bias = slice(s.bias_starts[i], s.bias_starts[i + 1])
            forbidden = {
                token
                for token, value in zip(s.bias_ids[bias], s.bias_values[bias], strict=True)
                if value == -np.inf
            }
            if s.masks is not None:
                bits = np.unpackbits(s.masks[i].view(np.uint8), bitorder="little")
                forbidden |= set(np.flatnonzero(bits[: self.limits.vocab_size] == 0).tolist())
            seed = int(s.seeds[i]) if s.temperature[i] > 0 else 0
            penalised = int(s.prompt_lengths[i]) if history else 0
            forced = s.bias_ids[bias][s.bias_values[bias] > 1e29].tolist()
            if len(forbidden) == self.limits.vocab_size:
                tokens[i] = -1
            elif forced:
                tokens[i] = forced[0]
            else:
                tokens[i] = next_token(sequence, self.limits.vocab_size, seed, penalised, forbidden)
            wanted = int(s.num_logprobs[i])
            if wanted >= 0:
                logprobs[i] = -0.5
                top_ids[i, :wanted] = (tokens[i] + np.arange(wanted)) % self.limits.vocab_size
                top_logprobs[i, :wanted] = -0.5 - np.arange(wanted)
        return StepResult(tokens, logprobs, top_ids, top_logprobs, 0.0)


def next_token(
    sequence: Sequence[int],
    vocab_size: int,
    seed: int = 0,
    prompt_length: int = 0,
    forbidden: set[int] | frozenset[int] = frozenset(),
) -> int:
    """Return the token that follows a sequence; `prompt_length` counts only with penalties."""
    value = seed * 7919 + prompt_length * 104729 + 17
    for token in sequence:
        value = (value * 31 + token + 1) % 1_000_000_007
    token = value % vocab_size
    while token in forbidden:
        token = (token + 1) % vocab_size
    return token


def expected_tokens(
    prompt: Sequence[int], params: TokenParams, limits: SessionLimits
) -> tuple[list[int], str]:
    """Return the answer that a prompt must get and why it ends."""
    penalties = params.repetition_penalty != 1 or params.presence_penalty != 0
    stops = {*params.eos_token_ids, *params.stop_token_ids}
    room = limits.max_seq_len - len(prompt)
    most = min(params.max_tokens or room, room)
    answer: list[int] = []
    while True:
        sequence = [*prompt, *answer]
        token = next_token(
            sequence,
            limits.vocab_size,
            params.seed if params.temperature > 0 else 0,
            len(prompt) if penalties or params.frequency_penalty != 0 else 0,
            banned(sequence, params) | (stops if len(answer) < params.min_tokens else set()),
        )
        answer.append(token)
        if token in stops:
            return answer, "stop"
        if len(answer) == most:
            return answer, "length"


def banned(sequence: Sequence[int], params: TokenParams) -> set[int]:
    """Return what bad words and n-grams forbid after a sequence, looked up the slow way."""
    found: set[int] = set()
    for word in params.bad_words:
        if list(word[:-1]) == list(sequence[len(sequence) - len(word) + 1 :]):
            found.add(word[-1])
    size = params.no_repeat_ngram_size
    if 0 < size <= len(sequence):
        last = list(sequence[len(sequence) - size + 1 :])
        for start in range(len(sequence) - size + 1):
            if list(sequence[start : start + size - 1]) == last:
                found.add(sequence[start + size - 1])
    return found
