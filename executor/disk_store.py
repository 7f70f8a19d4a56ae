"""Block files in a folder: checksummed, bounded in size, written by a thread of their own."""

from __future__ import annotations

import hashlib
import os
import struct
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..runtime.errors import InputError

_MAGIC = b"EWKV0001"
# magic, engine identity, key, bytes of the block; then its checksum, then the block
_HEADER = struct.Struct("<8s32s32sQ32s")
_SUFFIX = ".kv"
_MAX_PENDING = 128 << 20  # bytes that wait to be written; what comes beyond is not kept
_PAUSE_SECONDS = 30.0  # without writes after one that failed, e.g. on a full disk
_CLOSE_SECONDS = 10.0  # that the last writes may take


@dataclass(slots=True)
class DiskCounts:
    """What became of blocks, since the start."""

    saved: int = 0
    loaded: int = 0
    dropped: int = 0  # came faster than the disk takes them, or while it takes none
    damaged: int = 0  # files that were not what they should be
    write_errors: int = 0
    load_seconds: float = 0.0


class DiskStore:
    """Maps keys of 32 bytes to blocks of one size, for one engine; the oldest make room.

    Every file says whose block it is and holds a checksum over that and the block, so that a file
    that is damaged, cut short or another engine's is never taken for the block: it is removed, and
    the block counts as not there. Files appear whole, by a rename, under a folder of the engine.
    Calls come from one thread and never wait for a write; `load` reads.
    """

    def __init__(self, folder: Path, identity: bytes, block_bytes: int, max_bytes: int) -> None:
        """Raise InputError if the folder cannot be used, or has no room for a block."""
        self._identity = hashlib.sha256(identity).digest()
        self._block_bytes = block_bytes
        self._file_bytes = _HEADER.size + block_bytes
        self._max_bytes = max_bytes
        self._folder = folder / self._identity.hex()[:16]
        self.counts = DiskCounts()
        if max_bytes < self._file_bytes:
            raise InputError(
                f"--kv-cache-disk-size is {max_bytes} bytes and one block of this engine takes "
                f"{self._file_bytes}; give more"
            )
        self._lock = threading.Condition()
        self._files: OrderedDict[bytes, None] = OrderedDict()  # least recently used first
        self._pending: dict[bytes, bytes] = {}  # blocks on their way into files
        self._jobs: deque[bytes | list[bytes]] = deque()  # a key to write, or keys to read ahead
        self._closing = False
        self._paused_until = 0.0
        self._others: deque[tuple[Path, int]] = deque()  # other engines' files, oldest first
        self._other_bytes = 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            probe = self._folder / f".probe-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
            self._read_folder(folder)
        except OSError as error:
            reason = error.strerror or error
            raise InputError(
                f"--kv-cache-disk {folder} cannot be written: {reason}; choose another folder"
            ) from error
        self._thread = threading.Thread(target=self._work, name="kv disk", daemon=True)
        self._thread.start()

    @property
    def num_blocks(self) -> int:
        """Blocks in files."""
        return len(self._files)

    @property
    def num_bytes(self) -> int:
        """Bytes of this engine's files."""
        return len(self._files) * self._file_bytes

    @property
    def max_bytes(self) -> int:
        """Bytes that all files in the folder may have, as far as this store knows of them."""
        return self._max_bytes

    def __contains__(self, key: bytes) -> bool:
        return key in self._files or key in self._pending

    def save(self, key: bytes, block: bytes) -> None:
        """Keep a block; it is written soon, unless too many wait."""
        with self._lock:
            if key in self:
                return
            waiting = len(self._pending) * self._block_bytes
            if waiting >= _MAX_PENDING or time.monotonic() < self._paused_until:
                self.counts.dropped += 1
                return
            self._pending[key] = block
            self._jobs.append(key)
            self._lock.notify()

    def load(self, key: bytes) -> bytes | None:
        """Return a block; None if it is not there, or not as it was."""
        begun = time.perf_counter()
        with self._lock:
            block = self._pending.get(key)
            if block is None and key not in self._files:
                return None
        if block is None:
            block = self._read(key)
        if block is not None:
            self.counts.loaded += 1
        self.counts.load_seconds += time.perf_counter() - begun
        return block

    def read_ahead(self, keys: list[bytes]) -> None:
        """Have the system read the files of those keys, so that `load` will not wait for a disk."""
        if not hasattr(os, "posix_fadvise"):  # not on every system
            return
        with self._lock:
            self._jobs.appendleft(keys)
            self._lock.notify()

    def use(self, keys: Iterable[bytes]) -> None:
        """Note that blocks are in use; the last of them is the last to be removed."""
        with self._lock:
            for key in keys:
                if key in self._files:
                    self._files.move_to_end(key)

    def close(self) -> None:
        """Write what waits, within a while, and leave the order of use in the files' times."""
        with self._lock:
            self._closing = True
            self._lock.notify()
        self._thread.join(_CLOSE_SECONDS)
        now = time.time_ns()
        first = now - len(self._files) * 1000
        for place, key in enumerate(list(self._files)):
            stamp = first + place * 1000
            with suppress(OSError):
                os.utime(self._path(key), ns=(stamp, stamp))

    def _path(self, key: bytes) -> Path:
        name = key.hex()
        return self._folder / name[:2] / (name + _SUFFIX)

    def _read_folder(self, folder: Path) -> None:
        """Learn what files there are, and remove what half-written ones were left behind."""
        found: list[tuple[int, int, Path]] = []
        for directory, _, names in os.walk(folder):
            for name in names:
                path = Path(directory, name)
                if name.endswith(_SUFFIX):
                    with suppress(FileNotFoundError):
                        facts = path.stat()
                        found.append((facts.st_mtime_ns, facts.st_size, path))
                elif name.startswith(".") and self._folder in path.parents:
                    path.unlink(missing_ok=True)
        for _, size, path in sorted(found):
            key = _key_of(path)
            if key is not None and path == self._path(key):
                self._files[key] = None
            else:
                self._others.append((path, size))
                self._other_bytes += size
        self._make_room(0)

    def _read(self, key: bytes) -> bytes | None:
        """Read and check one file; a bad one is removed."""
        try:
            data = self._path(key).read_bytes()
        except FileNotFoundError:  # another server that shares the folder has made room
            with self._lock:
                self._files.pop(key, None)
            return None
        except OSError:
            data = b""
        block = self._checked(key, data)
        if block is None:
            self.counts.damaged += 1
            with self._lock:
                self._files.pop(key, None)
            with suppress(OSError):
                self._path(key).unlink()
        return block

    def _checked(self, key: bytes, data: bytes) -> bytes | None:
        if len(data) != self._file_bytes:
            return None
        *head, checksum = _HEADER.unpack_from(data)
        if head != [_MAGIC, self._identity, key, self._block_bytes]:
            return None
        block = data[_HEADER.size :]
        return block if checksum == self._checksum(key, block) else None

    def _checksum(self, key: bytes, block: bytes) -> bytes:
        digest = hashlib.sha256(self._identity + key)
        digest.update(block)
        return digest.digest()

    def _work(self) -> None:
        """Write blocks and read ahead until the end, on a thread of its own."""
        while True:
            with self._lock:
                while not self._jobs and not self._closing:
                    self._lock.wait()
                if not self._jobs:
                    return
                job = self._jobs.popleft()
            if isinstance(job, list):
                self._advise(job)
            else:
                self._write(job, self._pending[job])

    def _write(self, key: bytes, block: bytes) -> None:
        path = self._path(key)
        temporary = self._folder / f".{os.getpid()}"
        error = None
        try:
            self._make_room(self._file_bytes)
            path.parent.mkdir(exist_ok=True)
            header = _HEADER.pack(
                _MAGIC, self._identity, key, len(block), self._checksum(key, block)
            )
            with open(temporary, "wb", buffering=0) as file:
                _write_all(file.fileno(), [header, block])
            temporary.rename(path)
        except OSError as raised:
            error = raised
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        with self._lock:
            del self._pending[key]
            if error is None:
                self._files[key] = None
                self.counts.saved += 1
            else:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Stop writing for a while; whoever waits to be written is let go."""
        if not self.counts.write_errors:
            print(
                f"--kv-cache-disk {self._folder} takes no blocks: {error.strerror or error}; "
                f"it is tried again every {_PAUSE_SECONDS:g} s",
                file=sys.stderr,
            )
        self.counts.write_errors += 1
        self.counts.dropped += len(self._pending)
        self._pending.clear()
        self._jobs = deque(job for job in self._jobs if isinstance(job, list))
        self._paused_until = time.monotonic() + _PAUSE_SECONDS

    def _make_room(self, coming: int) -> None:
        """Remove the oldest files until there is room: other engines' first."""
        most = self._max_bytes - coming
        while self._others and self._other_bytes + self.num_bytes > most:
            path, size = self._others.popleft()
            self._other_bytes -= size
            path.unlink(missing_ok=True)
        while self.num_bytes > most:
            with self._lock:
                key, _ = self._files.popitem(last=False)
            self._path(key).unlink(missing_ok=True)

    def _advise(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            with suppress(OSError):
                descriptor = os.open(self._path(key), os.O_RDONLY)
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
                finally:
                    os.close(descriptor)


def _key_of(path: Path) -> bytes | None:
    try:
        return bytes.fromhex(path.stem)
    except ValueError:
        return None


def _write_all(descriptor: int, parts: Iterable[bytes]) -> None:
    for part in parts:
        view = memoryview(part)
        while view:
            view = view[os.write(descriptor, view) :]
