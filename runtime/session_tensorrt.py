"""The TensorRT session: a plan bound by address, its KV pool on the device, and sampling behind it.

It works on `runtime.device`: CUDA and TensorRT in service, and in tests and self-checks a stand-in
that runs the exported graph on the host.
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from .artifact import ENGINE_FILE, Engine
from .cuda_contract import BLOCK_TOKENS
from .device import Device, PlanContext
from .device_memory import HostArena, aligned
from .device_sampling import DeviceSampler
from .errors import InputError, OutOfMemoryError, StepFailedError
from .manifest import KvFacts, Limits, TensorRTFacts
from .session import Batch, Float32Array, Sampling, SessionLimits, StepResult
from .step_layout import Run, lay_out, padded_size

ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "fp8": 1, "int8": 1}
_IN_FLIGHT = 2
_SHARE = 0.9  # of the free device memory, for the KV cache


@dataclass(slots=True)
class _Flight:
    """A step on the device."""

    slot: int  # which of the host's buffers it uses
    rows: int
    started: Any  # event
    done: Any = None  # event, once it is sampled
    top: int = 0  # width of the top arrays
    gives_logits: bool = False  # instead of tokens


class TensorRTSession:
    """One rank's plan. Two steps may be in flight."""

    def __init__(
        self,
        engine: Engine,
        device: Device,
        context: PlanContext,
        kv_cache_memory: int | None = None,
        max_batch_size: int | None = None,
        max_num_tokens: int | None = None,
    ) -> None:
        """Takes over device and context, also when it raises OutOfMemoryError or InputError."""
        manifest = engine.manifest
        facts = manifest.target.tensorrt
        assert facts is not None, "not an engine for GPUs"
        built = manifest.limits
        batch = _within("max_batch_size", max_batch_size, built.max_batch_size)
        tokens = max(batch, _within("max_num_tokens", max_num_tokens, built.max_num_tokens))
        limits = Limits(max_batch_size=batch, max_num_tokens=tokens, max_seq_len=built.max_seq_len)
        self._facts: TensorRTFacts = facts
        self._device = device
        self._context = context
        self._vocab = manifest.vocab_size
        self._num_layers = manifest.kv.num_layers
        self._closed = False
        self._flights: deque[_Flight] = deque()
        # Of generation steps, by padded sequences and blocks; None: run once, not captured yet.
        self._graphs: dict[tuple[int, int] | None, Any] = {}
        try:
            self._allocate(manifest.kv, limits, built.max_batch_size)
            staged = 0
            if facts.attention == "gather":
                staged = (tokens + built.max_batch_size) * manifest.kv.block_bytes // BLOCK_TOKENS
            free = device.free_memory() - facts.workspace_bytes - staged
            num_blocks = _count_blocks(engine, limits, kv_cache_memory, free)
            self._bind_caches(manifest.kv, num_blocks, tokens)
        except BaseException:
            self.close()
            raise
        self.limits = SessionLimits(
            max_batch_size=batch,
            max_num_tokens=tokens,
            max_seq_len=limits.max_seq_len,
            num_blocks=num_blocks,
            block_tokens=manifest.kv.block_tokens,
            vocab_size=self._vocab,
        )

    # Memory

    def _allocate(self, kv: KvFacts, limits: Limits, built_batch: int) -> None:
        """Take everything but the KV pool."""
        device, vocab = self._device, self._vocab
        batch, tokens = limits.max_batch_size, limits.max_num_tokens
        self._max_rows = batch + padded_size(batch, built_batch)  # a run's padding comes behind
        self._built_batch = built_batch
        self._logits = device.allocate(self._max_rows * vocab * 4, "logits")
        self._sampler = DeviceSampler(device, vocab, batch)
        self._previous = device.allocate(built_batch * 4, "sampled tokens")
        self._previous_bytes = batch * 4
        blocks = -(-limits.max_seq_len // BLOCK_TOKENS)
        # ids, positions and slots of all tokens, and a table for every sequence, padding included
        self._input_bytes = 4 * (4 * (tokens + batch) + 2 * batch * (blocks + 8))
        self._input_bytes += 8 * aligned(1)
        self._inputs = device.allocate(self._input_bytes, "inputs")
        self._input_hosts = [HostArena(device) for _ in range(_IN_FLIGHT)]
        self._logit_host = HostArena(device)
        self._block_host = HostArena(device)

    def _bind_caches(self, kv: KvFacts, num_blocks: int, max_tokens: int) -> None:
        """Take the KV pool, a block more than the scheduler knows, and bind every layer's part."""
        facts, device, layers = self._facts, self._device, kv.num_layers
        self._spare, self._pool_blocks = num_blocks, num_blocks + 1
        values = facts.num_kv_heads * facts.head_dim * ELEMENT_BYTES[kv.dtype]  # bytes a token
        scales = facts.num_kv_heads * 4
        self._pools: list[tuple[int, int]] = []  # address, bytes of a block in one half of a layer
        self._stores: list[tuple[str, int, int]] = []  # variant, source, pool
        kinds: list[tuple[str, str, int, tuple[int, ...]]] = [
            ("cache", "", values, (facts.head_dim,))
        ]
        if kv.dtype == "int8":
            kinds.append(("scale", "_scale", scales, ()))
        self._source_tokens = max_tokens + self._built_batch  # padding included
        for kind, suffix, token_bytes, last in kinds:
            block = token_bytes * BLOCK_TOKENS
            half = block * self._pool_blocks
            pool = device.allocate(2 * layers * half, "KV cache")
            self._pools.append((pool, block))
            shape = (self._pool_blocks, facts.num_kv_heads, BLOCK_TOKENS, *last)
            new_half = token_bytes * self._source_tokens
            source = 0
            if facts.attention == "gather":
                source = device.allocate(2 * layers * new_half, "new keys and values")
                self._stores.append(("kv" if kind == "cache" else "scale", source, pool))
            for index in range(2 * layers):
                layer, side = index // 2, "kv"[index % 2]
                self._context.set_shape(f"{side}_{kind}.{layer}", shape)
                self._context.bind(f"{side}_{kind}.{layer}", pool + index * half)
                if source:
                    self._context.bind(f"new_{side}{suffix}.{layer}", source + index * new_half)
        self._context.bind("previous_tokens", self._previous)

    # Steps

    def launch(self, batch: Batch) -> None:
        """Start a step's forward pass. Raises StepFailedError for a step that is too large."""
        self._check(batch)
        runs = lay_out(batch, self._facts, self._spare, self._built_batch)
        started = self._device.record()
        self._device.copy(self._previous, self._sampler.tokens, self._previous_bytes)
        slot = 1 - self._flights[-1].slot if self._flights else 0
        host = self._input_hosts[slot]
        host.reset(sum(_packed_bytes(run) for run in runs))
        for run in runs:
            self._queue(run, host, alone=len(runs) == 1)
        self._flights.append(_Flight(slot, len(batch.logit_rows), started))

    def _check(self, batch: Batch) -> None:
        limits, rows = self.limits, len(batch.logit_rows)
        tokens, seqs = len(batch.token_ids), len(batch.past_tokens)
        if (
            tokens > limits.max_num_tokens
            or rows > limits.max_batch_size
            or seqs > limits.max_batch_size
            or len(self._flights) == _IN_FLIGHT
        ):
            raise StepFailedError(
                f"the session refused a step of {tokens} tokens, {seqs} sequences and {rows} rows "
                f"with {len(self._flights)} steps in flight; it takes {limits.max_num_tokens}, "
                f"{limits.max_batch_size} and {limits.max_batch_size}, and {_IN_FLIGHT} steps in "
                "flight"
            )

    def _queue(self, run: Run, host: HostArena, alone: bool) -> None:
        """Queue the copies, the plan and the KV write of one run."""
        addresses: dict[str, int] = {}
        at = self._inputs
        arrays = dict(run.inputs)
        arrays.setdefault("slots", run.slots)
        packed = host.take(_packed_bytes(run))
        for name, array in arrays.items():
            start = at - self._inputs
            packed[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
            addresses[name] = at
            at += aligned(array.nbytes)
        self._device.upload(self._inputs, packed[: at - self._inputs])
        graph = self._graphs.get(run.key) if alone and run.key is not None else None
        if graph is not None:
            self._device.replay(graph)
            return
        captures = alone and run.key is not None and run.key in self._graphs
        context = self._context
        context.use_profile(run.profile)
        for name, array in run.inputs.items():
            context.set_shape(name, array.shape)
            context.bind(name, addresses[name])
        context.bind("logits", self._logits + run.first_row * self._vocab * 4)
        if not captures:
            self._compute(run, addresses)
            if alone and run.key is not None:
                self._graphs[run.key] = None  # all is warm: the next of its size is captured
            return
        self._device.begin_capture()
        try:
            self._compute(run, addresses)
        finally:
            graph = self._device.end_capture()
        self._graphs[run.key] = graph
        self._device.replay(graph)

    def _compute(self, run: Run, addresses: dict[str, int]) -> None:
        """Queue the plan, and behind it the writing of new keys and values into their pages."""
        self._context.execute()
        for variant, source, pool in self._stores:
            slots = addresses["slots"]
            arguments = (source, slots, pool, self._source_tokens, self._pool_blocks)
            grid = (len(run.slots), 2 * self._num_layers)
            self._device.launch("kv_store", variant, grid, arguments)

    def sample(self, sampling: Sampling | None) -> None:
        """Queue the sampling of the step that was launched last, or with None its logits."""
        flight = self._flights[-1]
        if sampling is None:
            flight.gives_logits = True
            self._download_logits(flight.rows)
            flight.done = self._device.record()
            return
        flight.top = self._sampler.queue(flight.slot, flight.rows, self._logits, sampling)
        flight.done = self._device.record()

    def wait(self) -> StepResult:
        """Finish the oldest step and return its result. Raises StepFailedError if there is none."""
        if not self._flights or self._flights[0].done is None:
            raise StepFailedError("there is no step to wait for, or it was never sampled")
        flight = self._flights.popleft()
        self._device.wait(flight.done)
        seconds = self._device.seconds_between(flight.started, flight.done)
        if flight.gives_logits:
            ints = np.zeros((flight.rows, 1), np.int32)
            tokens, logprobs = ints[:, 0], ints[:, 0].astype(np.float32)
            none, no_values = ints[:, :0], ints[:, :0].astype(np.float32)
            return StepResult(
                tokens, logprobs, none, no_values, seconds, logits=self._read_logits(flight.rows)
            )
        return StepResult(*self._sampler.read(flight.slot, flight.rows, flight.top), seconds)

    def logits(self, batch: Batch) -> Float32Array:
        """Run one forward pass and return its logits, [rows, vocab]."""
        if self._flights:
            raise StepFailedError("logits are asked for while a step is in flight; wait for it")
        self.launch(batch)
        flight = self._flights.pop()
        self._download_logits(flight.rows)
        self._finish(flight.started)
        return self._read_logits(flight.rows)

    def sample_logits(self, logits: Float32Array, sampling: Sampling) -> StepResult:
        """Sample rows of logits. Raises StepFailedError while a step is in flight."""
        if self._flights:
            raise StepFailedError("logits cannot be sampled while a step is in flight")
        started, rows = self._device.record(), len(logits)
        host = self._logit_host
        host.reset(logits.nbytes)
        if rows:
            there = host.take(logits.nbytes)
            there[:] = np.ascontiguousarray(logits, np.float32).reshape(-1).view(np.uint8)
            self._device.upload(self._logits, there)
        top = self._sampler.queue(0, rows, self._logits, sampling)
        seconds = self._finish(started)
        return StepResult(*self._sampler.read(0, rows, top), seconds)

    def _download_logits(self, rows: int) -> None:
        """Queue the copying of a step's logits to the host."""
        size = rows * self._vocab * 4
        self._logit_host.reset(size)
        if size:
            self._device.download(self._logit_host.take(size), self._logits)

    def _read_logits(self, rows: int) -> Float32Array:
        return self._logit_host.read(np.float32, (rows, self._vocab))

    def _finish(self, started: Any) -> float:
        """Wait for all that is queued; return the device's seconds since an event."""
        done = self._device.record()
        self._device.wait(done)
        return self._device.seconds_between(started, done)

    def copy_block(self, source: int, target: int) -> None:
        """Copy one KV block, all layers of it, onto another."""
        for block in (source, target):
            self._check_block(block)
        for pool, size in self._pools:
            self._device.copy_rows(
                pool + target * size,
                pool + source * size,
                size,
                2 * self._num_layers,
                size * self._pool_blocks,
            )

    def read_block(self, block: int) -> bytes:
        """Return what one KV block holds, all layers of it; waits for what is queued."""
        started = self._device.record()
        parts, host = self._parts(block), self._block_host
        host.reset(sum(size for _, size in parts))
        for address, size in parts:
            self._device.download(host.take(size), address)
        self._finish(started)
        return host.read(np.uint8, (sum(size for _, size in parts),)).tobytes()

    def write_block(self, block: int, data: bytes) -> None:
        """Put what `read_block` returned into a KV block."""
        started = self._device.record()
        parts, host = self._parts(block), self._block_host
        if len(data) != sum(size for _, size in parts):
            raise ValueError(f"{len(data)} bytes are not those of a KV block")
        host.reset(len(data))
        there = host.take(len(data))
        there[:] = np.frombuffer(data, np.uint8)
        at = 0
        for address, size in parts:
            self._device.upload(address, there[at : at + size])
            at += size
        self._finish(started)  # the host's memory is used again

    def _parts(self, block: int) -> list[tuple[int, int]]:
        """Return address and bytes of a block's parts: one for each half of each layer."""
        self._check_block(block)
        return [
            (pool + half * size * self._pool_blocks + block * size, size)
            for pool, size in self._pools
            for half in range(2 * self._num_layers)
        ]

    def _check_block(self, block: int) -> None:
        if not 0 <= block < self.limits.num_blocks:
            raise IndexError(f"block {block} of {self.limits.num_blocks}")

    def close(self) -> None:
        """Wait for the device and give everything back."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(StepFailedError):  # a device that failed runs nothing more
                self._device.wait(self._device.record())  # a context must not go while it runs
            self._context.close()
            self._device.close()


def _packed_bytes(run: Run) -> int:
    sizes = [array.nbytes for array in run.inputs.values()]
    if "slots" not in run.inputs:
        sizes.append(run.slots.nbytes)
    return sum(aligned(size) for size in sizes)


def _count_blocks(engine: Engine, limits: Limits, budget: int | None, free: int) -> int:
    """Return how many KV blocks fit. Raises OutOfMemoryError with the plan's numbers."""
    kv, facts = engine.manifest.kv, engine.manifest.target.tensorrt
    assert facts is not None
    if budget is None:
        full = limits.max_batch_size * -(-limits.max_seq_len // kv.block_tokens)
        blocks = min(full, int(free * _SHARE) // kv.block_bytes)
    else:
        blocks = budget // kv.block_bytes
    if blocks < 1 or (blocks + 1) * kv.block_bytes > free:
        plan = engine.manifest.files[ENGINE_FILE].bytes
        wanted = kv.block_bytes if budget is None else budget
        raise OutOfMemoryError(
            f"the KV cache wants {wanted} bytes (a block of {kv.block_tokens} tokens takes "
            f"{kv.block_bytes}) and the device has {max(0, free)} bytes free beside a plan of "
            f"{plan} and a workspace of about {facts.workspace_bytes}; lower --kv-cache-memory, "
            "--max-batch-size or --max-num-tokens, or free device memory"
        )
    return blocks


def _within(name: str, value: int | None, most: int) -> int:
    if value is None:
        return most
    if not 1 <= value <= most:
        raise InputError(f"{name} is {value}, expected 1 to {most} for this engine")
    return value
