"""enginewright in process: the session by itself, or a client of the executor process."""

from __future__ import annotations

import queue
import time
from typing import Any

import numpy as np

from enginewright.executor.client import ExecutorClient
from enginewright.executor.config import ExecutorConfig
from enginewright.executor.messages import TokenOutput
from enginewright.executor.sampling import SamplingParams
from enginewright.executor.sampling_table import greedy_sampling
from enginewright.runtime.artifact import open_engine
from enginewright.runtime.session import Batch, open_session

REPEATS = 5
MARGIN = 24  # tokens that the first sequences may be ahead of the last ones
KV_BYTES = 2 << 30


def open_library(path: str, format: str, mode: str) -> Any:
    """Open an engine; `mode` is "executor", or the session for all else."""
    return _Executor(path) if mode == "executor" else _Session(path)


class _Session:
    """Steps made by hand, without scheduler, queue or second process."""

    def __init__(self, path: str) -> None:
        self._session = open_session(open_engine(path), threads=2, kv_cache_memory=KV_BYTES)
        self._limits = self._session.limits
        self._rng = np.random.default_rng()
        self.prefill(128)

    def _batch(self, ids: np.ndarray, past: int, first: int = 0) -> Batch:
        """All of `ids`, [sequences, tokens], at position `past`; blocks start at row `first`."""
        sequences, tokens = ids.shape
        width = -(-self._room // self._limits.block_tokens)
        table = np.arange(first * width, (first + sequences) * width, dtype=np.int32)
        starts = np.arange(sequences + 1, dtype=np.int32) * tokens
        return Batch(
            token_ids=np.ascontiguousarray(ids.reshape(-1), np.int32),
            seq_starts=starts,
            past_tokens=np.full(sequences, past, np.int32),
            block_tables=table.reshape(sequences, width),
            logit_rows=starts[1:] - 1,
        )

    def _step(self, batch: Batch) -> np.ndarray:
        self._session.launch(batch)
        self._session.sample(greedy_sampling(len(batch.logit_rows)))
        return self._session.wait().tokens

    def _random(self, sequences: int, tokens: int) -> np.ndarray:
        return self._rng.integers(100, self._limits.vocab_size - 100, (sequences, tokens))

    def prefill(self, tokens: int) -> list[float]:
        speeds, self._room = [], tokens
        for _ in range(REPEATS):
            batch = self._batch(self._random(1, tokens), 0)
            begin = time.perf_counter()
            self._step(batch)
            speeds.append(tokens / (time.perf_counter() - begin))
        return speeds

    def decode(self, sequences: int, context: int, new: int) -> float:
        self._room = context + new + 1
        prompts = self._random(sequences, context)
        at_once = max(1, self._limits.max_num_tokens // context)
        firsts = [
            self._step(self._batch(prompts[i : i + at_once], 0, i))
            for i in range(0, sequences, at_once)
        ]
        last, sampling = np.concatenate(firsts), greedy_sampling(sequences)
        begin = time.perf_counter()
        for past in range(context, context + new):
            self._session.launch(self._batch(last[:, None], past))
            self._session.sample(sampling)
            last = self._session.wait().tokens
        return sequences * new / (time.perf_counter() - begin)

    def logits(self, ids: list[int], output: str) -> str:
        self._room, rows = len(ids), []
        for start in range(0, len(ids), 32):
            part = np.array([ids[start : start + 32]])
            batch = self._batch(part, start)
            wanted = np.arange(part.shape[1], dtype=np.int32)
            rows.append(
                self._session.logits(
                    Batch(
                        batch.token_ids,
                        batch.seq_starts,
                        batch.past_tokens,
                        batch.block_tables,
                        wanted,
                    )
                )
            )
        np.save(output, np.concatenate(rows))
        return output


class _Executor:
    """Requests to the executor process: scheduler, in-flight batching, messages and all."""

    def __init__(self, path: str) -> None:
        config = ExecutorConfig(threads=2, kv_cache_memory=KV_BYTES)
        self._client = ExecutorClient.start(path, config)
        self._rng = np.random.default_rng()
        self._number = 0
        self.prefill(128)

    def _submit(self, tokens: int, new: int, sink: Any) -> None:
        self._number += 1
        prompt = self._rng.integers(100, self._client.info.vocab_size - 100, tokens).tolist()
        params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True).resolve()
        self._client.submit(f"r{self._number}", prompt, params, sink)

    def prefill(self, tokens: int) -> list[float]:
        """Tokens of the prompt over the time to the first token, as the client sees it."""
        speeds = []
        for _ in range(REPEATS):
            outputs: queue.SimpleQueue[TokenOutput] = queue.SimpleQueue()
            begin = time.perf_counter()
            self._submit(tokens, 1, outputs.put)
            while outputs.get(timeout=60).finish_reason is None:
                pass
            speeds.append(tokens / (time.perf_counter() - begin))
        return speeds

    def decode(self, sequences: int, context: int, new: int) -> float:
        """Speed of the `new` steps behind the last sequence's first token: all sequences run.

        Every step gives each sequence a token, so the last sequence's own times are the steps'.
        """
        outputs: queue.SimpleQueue[tuple[float, TokenOutput]] = queue.SimpleQueue()
        most = new + (MARGIN if sequences > 1 else 1)
        for _ in range(sequences):
            self._submit(context, most, lambda out: outputs.put((time.perf_counter(), out)))
        times: dict[str, list[float]] = {}
        first_end, ended = 0.0, 0
        while ended < sequences:
            now, out = outputs.get(timeout=120)
            times.setdefault(out.request_id, []).extend([now] * len(out.token_ids))
            if out.finish_reason is not None:
                first_end, ended = first_end or now, ended + 1
        last = max(times.values(), key=lambda own: own[0])
        assert sequences == 1 or last[new] < first_end, "the first sequences were too far ahead"
        return sequences * new / (last[new] - last[0])

    def close(self) -> None:
        self._client.shutdown()
