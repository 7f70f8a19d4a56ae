"""The disk tier of the KV cache: which blocks go into files, and what comes back from them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from .disk_store import DiskStore

_CHAIN_BYTES = 32


class BlockMemory(Protocol):
    """What the tier needs of a session."""

    def read_block(self, block: int) -> bytes:
        """Return what a KV block holds."""
        ...


class DiskTier:
    """Names blocks by engine, salt and all tokens up to their end, and moves them.

    The name of a block is a chain of hashes: that of the blocks before it, and its own tokens.
    """

    def __init__(
        self, folder: Path, identity: bytes, block_bytes: int, max_bytes: int, memory: BlockMemory
    ) -> None:
        """`identity` is equal for engines that compute the same bits. Raises InputError."""
        self._store = DiskStore(folder, identity, block_bytes, max_bytes)
        self._memory = memory

    def root(self, salt: str | None) -> bytes:
        """Return the name under which the first blocks of a salt stand."""
        return _hash(b"" if salt is None else b"salt:" + salt.encode("utf-8", "surrogatepass"))

    def child(self, name: bytes, key: bytes) -> bytes:
        """Return the name of the block with those tokens after the block of that name."""
        return _hash(name + key)

    def has(self, name: bytes) -> bool:
        """Return whether a block seems to be there; only `load` knows."""
        return name in self._store

    def save(self, name: bytes, block: int) -> None:
        """Copy a full KV block, to be written soon."""
        if name not in self._store:
            self._store.save(name, self._memory.read_block(block))

    def load(self, name: bytes) -> bytes | None:
        """Return what a block holds; None if it is not there, or not as it was."""
        return self._store.load(name)

    def read_ahead(self, names: list[bytes]) -> None:
        """Have files read that will be loaded soon."""
        self._store.read_ahead(names)

    def use(self, names: Sequence[bytes]) -> None:
        """Note that blocks are in use; the last of them is the last to make room."""
        self._store.use(names)

    def gauges(self) -> dict[str, Any]:
        """Return what is on the disk now, and what has come and gone since the start."""
        store, counts = self._store, self._store.counts
        return {
            "disk_blocks": store.num_blocks,
            "disk_bytes": store.num_bytes,
            "disk_max_bytes": store.max_bytes,
            "disk_saved_blocks": counts.saved,
            "disk_loaded_blocks": counts.loaded,
            "disk_dropped_blocks": counts.dropped,
            "disk_damaged_files": counts.damaged,
            "disk_write_errors": counts.write_errors,
            "disk_load_seconds": counts.load_seconds,
        }

    def close(self) -> None:
        """Write what waits to be written."""
        self._store.close()


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHAIN_BYTES).digest()
