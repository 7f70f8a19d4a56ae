"""Tactics: the cost model's choice, or what runs fastest on this machine.

Products are measured inside the finished engine, in steps of as many rows as each bucket has at
most, by the engine's own profile: so caches hold what they hold when it serves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ....runtime import machine
from ....runtime.artifact import Engine
from ....runtime.session import Batch
from ....runtime.session_cpu import CpuSession
from ....runtime.tactics_cpu import AHEAD, BUCKETS, TILE_UNIT, CpuTactics, ProductTactics
from ...progress import Progress
from .calls import Product
from .isa import IsaLevel
from .timing_cache import TimingCache
from .toolchain import kernel_headers

TILE_ROWS, COLUMN_ROWS, REDUNDANT_ROWS = 96, 24, 2  # of the cost model
_ALL_BUCKETS = (*BUCKETS, None)
_WORTH = 0.98  # of the cost model's time: what is not clearly faster is noise
_KV_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    rounds: int  # over all candidates in turn, so that a busy moment does not hit one alone
    steps: int  # of each candidate in a round
    blocks: int  # sizes of a block that are tried
    whole_steps: bool  # tiles, columns and redundant rows too


EFFORTS = {"fast": Effort(3, 2, 1, False), "full": Effort(6, 3, 3, True)}


@dataclass(frozen=True, slots=True)
class Tunable:
    """What measuring needs to know of a program: its products and their slots of the profile."""

    products: Sequence[Product]
    slots: Sequence[int]
    level: IsaLevel


def cost_model(products: Iterable[Product], level: IsaLevel) -> CpuTactics:
    """Choose without measuring: the largest blocks, and prefetches where there is time for them."""
    rows = [min(level.max_rows, most or level.max_rows) for most in _ALL_BUCKETS]
    prefetch = [most is None or most >= level.prefetch_rows for most in _ALL_BUCKETS]
    return CpuTactics(
        chosen_by="cost model",
        tile_rows=TILE_ROWS,
        column_rows=COLUMN_ROWS,
        redundant_rows=REDUNDANT_ROWS,
        products=[
            ProductTactics(name=product.name, block_rows=rows, prefetch=prefetch)
            for product in products
        ],
    )


def measure(
    engine: Engine, tunable: Tunable, effort: str, cache: Path | None, progress: Progress
) -> dict[str, Any]:
    """Return the tactics of an engine that lies finished, as its manifest holds them.

    What the timing cache at `cache` has for this processor, these kernels and this number of
    threads is not measured again.
    """
    threads, here = machine.usable_cores(), machine.detect()
    origin = f"{here.model_name}, {threads} threads"
    prefix = f"{origin}, {tunable.level.name}, {kernel_version()}, {effort}"
    timings = TimingCache(cache)
    chosen = cost_model(tunable.products, tunable.level)
    products = _Products(tunable, EFFORTS[effort], timings, prefix)
    with closing(CpuSession(engine, threads, _KV_BYTES)) as session:
        session.settle()
        chosen = products.choose(session, chosen, progress)
    if EFFORTS[effort].whole_steps:
        whole = _WholeSteps(engine, threads, EFFORTS[effort])
        name = hashlib.sha256("\n".join(p.name for p in tunable.products).encode()).hexdigest()
        chosen = whole.choose(chosen, timings, f"{prefix}: steps of {name[:16]}", progress)
    timings.save()
    chosen = msgspec.structs.replace(chosen, chosen_by=f"measured ({effort}) on {origin}")
    return msgspec.to_builtins(chosen)


def kernel_version() -> str:
    """Return a hash of the kernels' source: timings of others say nothing."""
    digest = hashlib.sha256()
    for path in kernel_headers():
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


class _Products:
    """Chooses block sizes and prefetches, bucket by bucket."""

    def __init__(self, tunable: Tunable, effort: Effort, timings: TimingCache, prefix: str) -> None:
        self._tunable, self._effort = tunable, effort
        self._timings, self._prefix = timings, prefix

    def choose(self, session: CpuSession, model: CpuTactics, progress: Progress) -> CpuTactics:
        table = session.tactics_table
        times = np.zeros(table.shape)
        for bucket, most in enumerate(_ALL_BUCKETS):
            keys = [f"{self._prefix}: {p.name}, {most} rows" for p in self._tunable.products]
            known = [self._timings.get(key) for key in keys]
            if not all(isinstance(entry, list) and len(entry) == 2 for entry in known):
                rows = _rows_of(most, session)
                known = self._measured(session, bucket, rows, model, progress)
                for key, entry in zip(keys, known, strict=True):
                    self._timings.put(key, entry)
            for number, (choice, microseconds) in enumerate(known):
                table[number, bucket] = choice
                times[number, bucket] = microseconds
        products = [
            msgspec.structs.replace(
                product,
                block_rows=(row % AHEAD).tolist(),
                prefetch=(row >= AHEAD).tolist(),
                microseconds=[round(time, 2) for time in took.tolist()],
            )
            for product, row, took in zip(model.products, table, times, strict=True)
        ]
        return msgspec.structs.replace(model, products=products)

    def _measured(
        self, session: CpuSession, bucket: int, rows: int, model: CpuTactics, progress: Progress
    ) -> list[list[float]]:
        """Return choice and microseconds of each product for steps of `rows` rows."""
        table = session.tactics_table
        usual = int(model.table()[0, bucket])
        largest = usual % AHEAD
        blocks = range(largest, 0, -1)[: self._effort.blocks]
        candidates = [usual] + [
            choice for size in blocks for choice in (size, size + AHEAD) if choice != usual
        ]
        best = np.full((len(candidates), len(self._tunable.products)), np.inf)
        step = _step_of(rows, session)
        session.profile(True)
        step()
        for _ in range(self._effort.rounds):
            for index, choice in enumerate(candidates):
                progress.advance(0, f"{rows} rows")
                table[:, bucket] = choice
                session.read_profile()
                for _ in range(self._effort.steps):
                    step()
                slots = session.read_profile()
                took = [slots[slot][1] / max(slots[slot][2], 1) for slot in self._tunable.slots]
                best[index] = np.minimum(best[index], np.array(took) * session.threads * 1e6)
        session.profile(False)
        chosen = [_clearly_shortest(column) for column in best.T.tolist()]
        return [
            [candidates[index], round(float(best[index, number]), 3)]
            for number, index in enumerate(chosen)
        ]


class _WholeSteps:
    """Chooses how steps are cut, by the time of whole steps."""

    def __init__(self, engine: Engine, threads: int, effort: Effort) -> None:
        self._engine, self._threads, self._effort = engine, threads, effort

    def choose(
        self, tactics: CpuTactics, timings: TimingCache, key: str, progress: Progress
    ) -> CpuTactics:
        known = timings.get(key)
        if not isinstance(known, dict):
            known = self._measured(tactics, progress)
            timings.put(key, known)
        return msgspec.structs.replace(tactics, **known)

    def _measured(self, tactics: CpuTactics, progress: Progress) -> dict[str, int]:
        def faster(tokens: int, one_each: bool, *fields: dict[str, int]) -> int:
            """Return which of some tactics takes the shortest step."""
            progress.advance(0, f"steps of {tokens} tokens")
            return _clearly_shortest(
                [self._seconds(tactics, changed, tokens, one_each) for changed in fields]
            )

        most = self._engine.manifest.limits.max_num_tokens
        sizes = [TILE_ROWS, TILE_UNIT * 3, TILE_UNIT * 9, TILE_UNIT * 12]
        tile_rows = sizes[
            faster(min(most, 576), False, *({"tile_rows": s, "column_rows": 1} for s in sizes))
        ]
        column_rows = next(
            (
                rows
                for rows in (8, 16, 24, 32, 48)
                if faster(
                    min(most, rows * self._threads),
                    False,
                    {"column_rows": rows + 1, "tile_rows": tile_rows},
                    {"column_rows": 1, "tile_rows": tile_rows},
                )
            ),
            64,
        )
        batch = self._engine.manifest.limits.max_batch_size
        redundant = 0
        for rows in range(1, min(batch, 4) + 1):
            if faster(rows, True, {"redundant_rows": 0}, {"redundant_rows": rows}):
                redundant = rows
        return {"tile_rows": tile_rows, "column_rows": column_rows, "redundant_rows": redundant}

    def _seconds(
        self, tactics: CpuTactics, changed: dict[str, int], tokens: int, one_each: bool
    ) -> float:
        plain = msgspec.to_builtins(msgspec.structs.replace(tactics, **changed))
        manifest = msgspec.structs.replace(self._engine.manifest, tactics=plain)
        engine = replace(self._engine, manifest=manifest)
        with closing(CpuSession(engine, self._threads, _KV_BYTES)) as opened:
            opened.settle()
            step = _step_of(tokens, opened) if one_each else _chunk_of(tokens, opened)
            return min(step() for _ in range(self._effort.rounds * self._effort.steps))


def _clearly_shortest(times: Sequence[float]) -> int:
    """Return the place of the shortest time; not the first only if it is clearly shorter."""
    return int(np.argmin([times[0], *(time / _WORTH for time in times[1:])]))


def _rows_of(most: int | None, session: CpuSession) -> int:
    """Return the rows of a step that stands for a bucket."""
    limits = session.limits
    if most is None:
        return min(limits.max_num_tokens, TILE_ROWS * session.threads)
    return min(most, limits.max_batch_size)


def _step_of(rows: int, session: CpuSession) -> Callable[[], float]:
    """Return a step of so many tokens, one each of as many sequences if there can be so many."""
    if rows > min(session.limits.max_batch_size, session.limits.num_blocks):
        return _chunk_of(rows, session)
    tables = np.arange(rows, dtype=np.int32)[:, None]
    starts = np.arange(rows + 1, dtype=np.int32)
    return _stepper(session, starts, tables, np.arange(rows, dtype=np.int32))


def _chunk_of(tokens: int, session: CpuSession) -> Callable[[], float]:
    """Return a step of so many tokens of one sequence, or of several where one is too short."""
    block = session.limits.block_tokens
    longest = min(session.limits.max_seq_len, session.limits.num_blocks * block)
    count = min(-(-tokens // longest), session.limits.max_batch_size)
    lengths = [tokens // count + (i < tokens % count) for i in range(count)]
    width = -(-lengths[0] // block)
    tables = np.arange(count * width, dtype=np.int32).reshape(count, width)
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    return _stepper(session, starts, tables, starts[1:2] - 1)


def _stepper(session: CpuSession, starts: Any, tables: Any, logit_rows: Any) -> Callable[[], float]:
    batch = Batch(
        token_ids=np.arange(starts[-1], dtype=np.int32) % session.limits.vocab_size,
        seq_starts=starts,
        past_tokens=np.zeros(len(starts) - 1, np.int32),
        block_tables=tables,
        logit_rows=logit_rows,
    )

    def step() -> float:
        session.launch(batch)
        session.sample(None)
        return session.wait().step_seconds

    return step
