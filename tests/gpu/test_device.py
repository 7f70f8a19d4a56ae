"""The CUDA device: memory, copies, events and graphs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from enginewright.runtime.cuda import CudaDevice
from enginewright.runtime.errors import OutOfMemoryError


@pytest.fixture
def device(tmp_path: Path) -> Iterator[CudaDevice]:
    opened = CudaDevice(tmp_path, ())
    yield opened
    opened.close()


def read(device: CudaDevice, address: int, nbytes: int) -> np.ndarray:
    host = device.allocate_host(nbytes)
    device.download(host, address)
    device.wait(device.record())
    return host.copy()


def test_new_memory_is_zero(device: CudaDevice) -> None:
    assert not read(device, device.allocate(1 << 20, "test"), 1 << 20).any()


def test_copies_there_within_and_back(device: CudaDevice) -> None:
    host = device.allocate_host(4096)
    host[:] = np.arange(4096) % 251
    first, second = device.allocate(4096, "test"), device.allocate(4096, "test")
    device.upload(first, host)
    device.copy(second, first, 4096)
    assert np.array_equal(read(device, second, 4096), host)
    device.copy_rows(second + 16, first, 16, rows=4, stride=1024)
    found = read(device, second, 4096).reshape(4, 1024)
    assert np.array_equal(found[:, 16:32], host.reshape(4, 1024)[:, :16])


def test_events_measure(device: CudaDevice) -> None:
    first = device.record()
    device.allocate(1 << 24, "test")
    second = device.record()
    device.wait(second)
    assert 0 <= device.seconds_between(first, second) < 10


def test_a_graph_is_replayed(device: CudaDevice) -> None:
    host = device.allocate_host(256)
    host[:] = 7
    first, second = device.allocate(256, "test"), device.allocate(256, "test")
    device.begin_capture()
    device.copy(second, first, 256)
    graph = device.end_capture()
    device.upload(first, host)
    assert not read(device, second, 256).any()
    device.replay(graph)
    assert (read(device, second, 256) == 7).all()


def test_too_much_memory_is_told_with_numbers(device: CudaDevice) -> None:
    with pytest.raises(OutOfMemoryError, match="for the moon, and has"):
        device.allocate(1 << 48, "the moon")
