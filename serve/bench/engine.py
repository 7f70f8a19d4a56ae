"""The engine alone: prompt and generation speed at depth and batch, no server around it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np

from ...executor.sampling_table import greedy_sampling
from ...runtime.session import Batch, Int32Array, Session, SessionLimits

PREFILL, DECODE = "prefill", "decode"


@dataclass(frozen=True, slots=True)
class EngineCase:
    """One measurement: `tokens` of each of `batch` sequences that have `depth` tokens already."""

    kind: str  # prefill or decode
    tokens: int
    depth: int
    batch: int

    @property
    def name(self) -> str:
        """A name like llama-bench's: pp512 @ d1024."""
        prefix = "pp" if self.kind == PREFILL else "tg"
        return f"{prefix}{self.tokens}" + (f" @ d{self.depth}" if self.depth else "")

    def blocks(self, block_tokens: int) -> int:
        """Return how many KV blocks all sequences need."""
        return self.batch * -(-(self.depth + self.tokens) // block_tokens)


@dataclass(frozen=True, slots=True)
class EngineResult:
    """Tokens a second of every repetition, all sequences together."""

    case: EngineCase
    rates: list[float]
    seconds: float  # of all repetitions
    steps: int  # of all repetitions

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON's types."""
        return {
            "test": self.case.name,
            "kind": self.case.kind,
            "tokens": self.case.tokens,
            "depth": self.case.depth,
            "batch": self.case.batch,
            "avg_ts": fmean(self.rates),
            "stddev_ts": stdev(self.rates) if len(self.rates) > 1 else 0.0,
            "samples_ts": self.rates,
            "step_ms": 1e3 * self.seconds / self.steps,
        }


class EngineBench:
    """Runs cases on one session."""

    def __init__(self, session: Session, seed: int = 0) -> None:
        self._session = session
        self._limits: SessionLimits = session.limits
        self._generator = np.random.default_rng(seed)

    def run(
        self, case: EngineCase, repetitions: int, on_measure: Callable[[bool], None] | None = None
    ) -> EngineResult:
        """Measure a case after one repetition that does not count.

        `on_measure` is called with True before the repetitions that count, with False after them.
        """
        tables = self._tables(case)
        self._fill(tables, 0, case.depth)
        work = self._prefill if case.kind == PREFILL else self._decode
        work(case, tables)
        if on_measure is not None:
            on_measure(True)
        begun, steps, rates = time.perf_counter(), 0, []
        for _ in range(repetitions):
            start = time.perf_counter()
            steps += work(case, tables)
            rates.append(case.batch * case.tokens / (time.perf_counter() - start))
        seconds = time.perf_counter() - begun
        if on_measure is not None:
            on_measure(False)
        return EngineResult(case, rates, seconds, steps)

    def _tables(self, case: EngineCase) -> Int32Array:
        each = case.blocks(self._limits.block_tokens) // case.batch
        return np.arange(case.batch * each, dtype=np.int32).reshape(case.batch, each)

    def _prefill(self, case: EngineCase, tables: Int32Array) -> int:
        return self._fill(tables, case.depth, case.tokens)

    def _fill(self, tables: Int32Array, past: int, tokens: int) -> int:
        """Compute `tokens` of every sequence in steps as large as they may be; return the steps."""
        left = [(sequence, past, tokens) for sequence in range(len(tables)) if tokens]
        steps = 0
        while left:
            room, rows = self._limits.max_num_tokens, []
            while left and room and len(rows) < self._limits.max_batch_size:
                sequence, start, count = left.pop(0)
                taken = min(count, room)
                rows.append((sequence, start, taken))
                room -= taken
                if taken < count:
                    left.insert(0, (sequence, start + taken, count - taken))
            self._step(tables, rows)
            steps += 1
        return steps

    def _decode(self, case: EngineCase, tables: Int32Array) -> int:
        for position in range(case.depth, case.depth + case.tokens):
            self._step(tables, [(sequence, position, 1) for sequence in range(case.batch)])
        return case.tokens

    def _step(self, tables: Int32Array, rows: list[tuple[int, int, int]]) -> None:
        counts = np.array([count for _, _, count in rows], np.int32)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        ids = self._generator.integers(0, self._limits.vocab_size, int(starts[-1]))
        batch = Batch(
            token_ids=ids.astype(np.int32),
            seq_starts=starts,
            past_tokens=np.array([past for _, past, _ in rows], np.int32),
            block_tables=np.ascontiguousarray(tables[[sequence for sequence, _, _ in rows]]),
            logit_rows=starts[1:] - 1,
        )
        self._session.launch(batch)
        self._session.sample(greedy_sampling(len(rows)))
        self._session.wait()
