"""Sampling on a device: parameters go there, the `sample` kernel runs, its results come back."""

from __future__ import annotations

from typing import Any

import numpy as np

from .device import Device
from .device_memory import DeviceArena, HostArena, aligned
from .session import Float32Array, Int32Array, Sampling

_SCRATCH_ARRAYS = 2  # of the kernel, each as large as the logits
_SLOTS = 2  # steps in flight


class DeviceSampler:
    """Owns the memory of the sampling stage. A slot is one of the steps in flight."""

    def __init__(self, device: Device, vocab_size: int, max_rows: int) -> None:
        self._device = device
        self._vocab = vocab_size
        scratch = max_rows * vocab_size * 4 * _SCRATCH_ARRAYS
        self._scratch = device.allocate(scratch, "working memory of the sampling")
        self.tokens = device.allocate(max_rows * 4, "sampled tokens")
        self._logprobs = device.allocate(max_rows * 4, "log-probabilities")
        self._parameters = DeviceArena(device, "sampling parameters")
        self._tops = DeviceArena(device, "log-probabilities")
        self._parameter_hosts = [HostArena(device) for _ in range(_SLOTS)]
        self._result_hosts = [HostArena(device) for _ in range(_SLOTS)]

    def queue(self, slot: int, rows: int, logits: int, sampling: Sampling) -> int:
        """Queue the sampling of `rows` at `logits`; returns the width of the top arrays."""
        top = min(max(0, int(sampling.num_logprobs.max(initial=0))), self._vocab)
        parameters = self._upload(slot, sampling)
        words = 0 if sampling.masks is None else sampling.masks.shape[1]
        width = rows * top * 4
        self._tops.reset(2 * width)
        ids = self._tops.address if width else 0
        values = ids + width if width else 0
        if rows:
            fixed = (logits, self.tokens, self._logprobs, ids, values, self._scratch)
            arguments = (*fixed, *parameters, self._vocab, words, top)
            self._device.launch("sample", "", (rows, 1), arguments)
        host = self._result_hosts[slot]
        sizes = (rows * 4, rows * 4, width, width)
        host.reset(sum(sizes))
        for address, size in zip((self.tokens, self._logprobs, ids, values), sizes, strict=True):
            if size:
                self._device.download(host.take(size), address)
        return top

    def read(
        self, slot: int, rows: int, top: int
    ) -> tuple[Int32Array, Float32Array, Int32Array, Float32Array]:
        """Return tokens, logprobs, and ids and logprobs of the likeliest, once they are there."""
        host = self._result_hosts[slot]
        tokens, logprobs = host.read(np.int32, (rows,)), host.read(np.float32, (rows,))
        if not top:
            empty = np.empty((0, 0), np.int32)
            return tokens, logprobs, empty, empty.view(np.float32)
        ids = host.read(np.int32, (rows, top))
        return tokens, logprobs, ids, host.read(np.float32, (rows, top))

    def _upload(self, slot: int, s: Sampling) -> list[int]:
        """Copy the parameters to the device; returns their addresses, 0 for absent masks."""
        arrays: list[Any] = list(s.arrays)
        if s.masks is not None:
            arrays.append(s.masks)
        total = sum(aligned(array.nbytes) for array in arrays)
        host = self._parameter_hosts[slot]
        host.reset(total)
        self._parameters.reset(total)
        packed, at = host.take(total), 0
        addresses: list[int] = []
        for array in arrays:
            packed[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            addresses.append(self._parameters.address + at)
            at += aligned(array.nbytes)
        self._device.upload(self._parameters.address, packed)
        return addresses if s.masks is not None else [*addresses, 0]
