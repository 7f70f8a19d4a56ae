"""The CPU session: a compiled engine, its mapped weights and its KV pool, called through ctypes."""

from __future__ import annotations

import ctypes
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import machine
from .abi_cpu import ABI_VERSION, BatchStruct, Options, ResultStruct, SamplingStruct, load_library
from .artifact import Engine
from .errors import (
    EngineDamagedError,
    EngineVersionError,
    IncompatibleMachineError,
    InputError,
    OutOfMemoryError,
    StepFailedError,
)
from .kv_pool import KvPool, count_blocks
from .manifest import Limits
from .numa import NumaMode, place
from .session import Batch, Float32Array, Int32Array, Sampling, SessionLimits, StepResult
from .tactics_cpu import read_tactics
from .weights_map import WeightsMap

CODE_FILE = "rank0.engine"
WEIGHTS_FILE = "rank0.weights"
_NO_IDS = np.empty((0, 0), np.int32)
_NO_LOGPROBS = np.empty((0, 0), np.float32)


@dataclass(slots=True)
class _Flight:
    """What a step in flight points at; it must not be freed before the step is done."""

    batch: BatchStruct
    arrays: tuple[Any, ...]
    rows: int
    result: ResultStruct
    tokens: Int32Array
    logprobs: Float32Array
    top_ids: Int32Array
    top_logprobs: Float32Array
    sampling: tuple[Sampling, SamplingStruct] | None = None
    logits: Float32Array | None = None  # of a step that is not sampled


class CpuSession:
    """One rank's CPU engine. Two steps may be in flight; the thread that waits works too."""

    def __init__(
        self,
        engine: Engine,
        threads: int | None = None,
        kv_cache_memory: int | None = None,
        max_batch_size: int | None = None,
        max_num_tokens: int | None = None,
        huge_pages: bool | None = None,
        own_threads: bool = False,
        numa: NumaMode | None = None,
    ) -> None:
        """With `own_threads` the thread that waits leaves the work to `threads` others.

        `numa` says where weights are kept on a machine with several memory nodes, as runtime.numa
        does; threads that are kept on a node are the engine's own.
        """
        self._engine: int | None = None
        manifest = engine.manifest
        lacks = machine.missing(manifest.target.needs)
        if lacks:
            raise IncompatibleMachineError(
                f"the engine {engine.folder} was built for {manifest.target.isa} and this machine "
                f"lacks {', '.join(lacks)}; build it again here, or with --isa for this machine"
            )
        threads = _within("threads", threads, machine.usable_cores(), 1024)
        built = manifest.limits
        batch = _within(
            "max_batch_size", max_batch_size, built.max_batch_size, built.max_batch_size
        )
        tokens = _within(
            "max_num_tokens", max_num_tokens, built.max_num_tokens, built.max_num_tokens
        )
        limits = Limits(
            max_batch_size=batch, max_num_tokens=max(tokens, batch), max_seq_len=built.max_seq_len
        )
        try:
            self._library = load_library(engine.folder / CODE_FILE)
        except (OSError, AttributeError) as error:
            raise EngineDamagedError(
                f"{engine.folder / CODE_FILE} cannot be loaded ({error}); build the engine again"
            ) from error
        version = self._library.ew_abi_version()
        if version != ABI_VERSION:
            raise EngineVersionError(
                f"the engine {engine.folder} has ABI {version} and this enginewright speaks "
                f"{ABI_VERSION}; build the engine again"
            )
        if self._library.ew_block_bytes() != manifest.kv.block_bytes:
            raise EngineDamagedError(
                f"the code of {engine.folder} has KV blocks of {self._library.ew_block_bytes()} "
                f"bytes and its manifest says {manifest.kv.block_bytes}; build the engine again"
            )
        weight_bytes = manifest.files[WEIGHTS_FILE].bytes
        placement = place(numa, threads, weight_bytes)
        self._weights = WeightsMap(
            engine.folder / WEIGHTS_FILE, weight_bytes, huge_pages, placement.copies
        )
        self._addresses = list(self._weights.addresses)
        caller_works = not own_threads and not placement.threads
        products, rows = self._library.ew_products(), self._library.ew_max_rows()
        tactics = read_tactics(manifest.tactics, products, rows)
        self.tactics_table = tactics.table()  # what changes here holds from the next step on
        options = Options(
            threads,
            limits.max_num_tokens,
            batch,
            int(caller_works),
            tactics.tile_rows,
            tactics.column_rows,
            tactics.redundant_rows,
            self.tactics_table.ctypes.data,
        )
        working = self._library.ew_working_bytes(ctypes.byref(options))
        blocks = count_blocks(manifest.kv, limits, kv_cache_memory)
        self._pool = KvPool(manifest.kv, blocks, placement.nodes)
        self._engine = self._library.ew_open(
            ctypes.byref(options), self._addresses[0], self._pool.address, None
        )
        if not self._engine:
            raise OutOfMemoryError(
                f"the system refused {working} bytes of working memory or {threads} threads; lower "
                "--max-num-tokens, --max-batch-size or --threads"
            )
        self._copy_of = [0] * threads  # which copy of the weights a thread reads
        for thread, (node, copy) in enumerate(placement.threads):
            cpus = (ctypes.c_int32 * len(node.cpus))(*sorted(node.cpus))
            self._library.ew_keep_thread(self._engine, thread, cpus, len(cpus))
            self._copy_of[thread] = copy
        self.threads = threads
        self.working_bytes: int = working
        self.limits = SessionLimits(
            max_batch_size=batch,
            max_num_tokens=limits.max_num_tokens,
            max_seq_len=limits.max_seq_len,
            num_blocks=self._pool.num_blocks,
            block_tokens=manifest.kv.block_tokens,
            vocab_size=manifest.vocab_size,
            embedding_size=manifest.output_size if manifest.embeds else 0,
        )
        self._flights: deque[_Flight] = deque()
        self._last_sampling: tuple[Sampling, SamplingStruct] | None = None

    def launch(self, batch: Batch) -> None:
        """Start a step's forward pass. Raises StepFailedError if the engine refuses the batch."""
        if self._weights.addresses != self._addresses and not self._flights:
            self._addresses = list(self._weights.addresses)
            for thread, copy in enumerate(self._copy_of):
                self._library.ew_use_weights(self._engine, thread, self._addresses[copy])
        arrays = (
            batch.token_ids,
            batch.seq_starts,
            batch.past_tokens,
            batch.block_tables,
            batch.logit_rows,
        )
        rows = len(batch.logit_rows)
        struct = BatchStruct(
            len(batch.token_ids),
            len(batch.past_tokens),
            rows,
            batch.block_tables.shape[1],
            *[array.ctypes.data for array in arrays],
        )
        if self._library.ew_launch(self._engine, ctypes.byref(struct)):
            raise StepFailedError(
                f"the engine refused a step of {len(batch.token_ids)} tokens and {rows} rows; it "
                f"takes {self.limits.max_num_tokens} and {self.limits.max_batch_size}, and two "
                "steps in flight"
            )
        self._flights.append(_new_flight(struct, arrays, rows))

    def sample(self, sampling: Sampling | None) -> None:
        """Queue the sampling of the step that was launched last, or with None its logits."""
        flight = self._flights[-1]
        if sampling is None:
            width = self.limits.embedding_size or self.limits.vocab_size
            flight.logits = np.empty((flight.rows, width), np.float32)
            flight.result.logits = flight.logits.ctypes.data
            self._library.ew_sample(self._engine, None, ctypes.byref(flight.result))
            return
        self._take_sampling(flight, sampling)
        assert flight.sampling is not None
        struct = ctypes.byref(flight.sampling[1])
        self._library.ew_sample(self._engine, struct, ctypes.byref(flight.result))

    def sample_logits(self, logits: Float32Array, sampling: Sampling) -> StepResult:
        """Sample rows of logits. Raises StepFailedError while a step is in flight."""
        assert logits.shape[1] == self.limits.vocab_size
        assert logits.dtype == np.float32
        assert logits.flags.c_contiguous
        flight = _new_flight(BatchStruct(), (logits,), len(logits))
        self._take_sampling(flight, sampling)
        assert flight.sampling is not None
        if self._library.ew_sample_logits(
            self._engine,
            ctypes.byref(flight.sampling[1]),
            flight.rows,
            logits.ctypes.data,
            ctypes.byref(flight.result),
        ):
            raise StepFailedError("logits cannot be sampled while a step is in flight")
        return _result_of(flight)

    def wait(self) -> StepResult:
        """Finish the oldest step and return its result. Raises StepFailedError if there is none."""
        if not self._flights or self._library.ew_wait(self._engine):
            raise StepFailedError("there is no step to wait for, or it was never sampled")
        return _result_of(self._flights.popleft())

    def logits(self, batch: Batch) -> Float32Array:
        """Run one forward pass and return its logits, or an embedding engine's hidden states."""
        self.launch(batch)
        self.sample(None)
        logits = self.wait().logits
        assert logits is not None
        return logits

    def _take_sampling(self, flight: _Flight, sampling: Sampling) -> None:
        """Give a flight its sampling, and the tables for the log-probabilities it asks for."""
        if self._last_sampling is not None and self._last_sampling[0] is sampling:
            struct = self._last_sampling[1]
        else:
            struct = _sampling_struct(sampling)
            self._last_sampling = (sampling, struct)
        flight.sampling = self._last_sampling
        width = struct.top_logprobs
        if width:
            flight.top_ids = np.full((flight.rows, width), -1, np.int32)
            flight.top_logprobs = np.full((flight.rows, width), np.nan, np.float32)
            flight.result.top_ids = flight.top_ids.ctypes.data
            flight.result.top_logprobs = flight.top_logprobs.ctypes.data

    def settle(self) -> None:
        """Wait until the weights lie where they will stay, so that steps can be timed."""
        self._weights.settle()

    def profile(self, on: bool) -> None:
        """Switch the engine's own profile on or off."""
        self._library.ew_profile(self._engine, int(on))

    def read_profile(self) -> list[tuple[str, float, int]]:
        """Return name, seconds and calls of every slot, all threads added up, and start anew."""
        slots = self._library.ew_profile_slots()
        seconds, calls = np.zeros(slots), np.zeros(slots, np.int64)
        self._library.ew_profile_read(self._engine, seconds.ctypes.data, calls.ctypes.data)
        names = [self._library.ew_profile_name(i).decode() for i in range(slots)]
        return list(zip(names, seconds.tolist(), calls.tolist(), strict=True))

    def copy_block(self, source: int, target: int) -> None:
        """Copy one KV block, all layers of it, onto another."""
        self._pool.copy(source, target)

    def read_block(self, block: int) -> bytes:
        """Return what one KV block holds, all layers of it."""
        return self._pool.read(block)

    def write_block(self, block: int, data: bytes) -> None:
        """Put what `read_block` returned into a KV block."""
        self._pool.write(block, data)

    def close(self) -> None:
        """End the engine's threads and give its memory back."""
        if self._engine is None:
            return
        while self._flights:
            self._library.ew_sample(self._engine, None, ctypes.byref(self._flights[-1].result))
            self.wait()
        self._library.ew_close(self._engine)
        self._engine = None
        self._pool.close()
        self._weights.close()


def _new_flight(batch: BatchStruct, arrays: tuple[Any, ...], rows: int) -> _Flight:
    tokens = np.empty(rows, np.int32)
    logprobs = np.empty(rows, np.float32)
    result = ResultStruct(tokens.ctypes.data, logprobs.ctypes.data, None, None, None, 0.0)
    return _Flight(batch, arrays, rows, result, tokens, logprobs, _NO_IDS, _NO_LOGPROBS)


def _result_of(flight: _Flight) -> StepResult:
    return StepResult(
        flight.tokens,
        flight.logprobs,
        flight.top_ids,
        flight.top_logprobs,
        flight.result.seconds,
        logits=flight.logits,
    )


def _sampling_struct(s: Sampling) -> SamplingStruct:
    masks = None if s.masks is None else s.masks.ctypes.data
    words = 0 if s.masks is None else s.masks.shape[1]
    top = max(0, int(s.num_logprobs.max(initial=0)))
    return SamplingStruct(*[array.ctypes.data for array in s.arrays], masks, words, top)


def _within(name: str, value: int | None, default: int, most: int) -> int:
    if value is None:
        return default
    if not 1 <= value <= most:
        raise InputError(f"{name} is {value}, expected 1 to {most} for this engine and machine")
    return value
