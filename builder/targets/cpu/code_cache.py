"""Compiled code that is kept between builds, in a folder of bounded size."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from pathlib import Path

DEFAULT_LIMIT = 64 << 20  # bytes; the code of one engine takes about 200 kB
_SUFFIX = ".code"
_DIGEST_BYTES = hashlib.sha256().digest_size


class CodeCache:
    """Files of compiled code under keys that say all that decided them.

    Many builds may use one folder at once: an entry appears whole or not at all, and begins with
    the hash of what follows. What was not used for the longest time goes first. A folder that
    cannot be used, or that belongs to another user, holds nothing.
    """

    def __init__(self, folder: Path, limit: int = DEFAULT_LIMIT) -> None:
        self._folder = folder
        self._limit = limit

    def take(self, key: str, output: Path) -> bool:
        """Write the code of `key` to `output`; False if there is none, or it is damaged."""
        path = self._folder / f"{key}{_SUFFIX}"
        try:
            if self._folder.stat().st_uid != os.getuid():
                return False
            data = path.read_bytes()
            code = data[_DIGEST_BYTES:]
            if hashlib.sha256(code).digest() != data[:_DIGEST_BYTES]:
                path.unlink(missing_ok=True)
                return False
            os.utime(path)
        except OSError:
            return False
        output.write_bytes(code)
        output.chmod(0o755)
        return True

    def put(self, key: str, compiled: Path) -> None:
        """Keep a copy of a compiled file."""
        code = compiled.read_bytes()
        partial = self._folder / f".{secrets.token_hex(8)}.partial"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial.write_bytes(hashlib.sha256(code).digest() + code)
            partial.replace(self._folder / f"{key}{_SUFFIX}")
            self._shrink()
        except OSError:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)

    def _shrink(self) -> None:
        entries: list[tuple[float, int, Path]] = []
        for path in self._folder.iterdir():  # what builds that were killed have left counts too
            with contextlib.suppress(FileNotFoundError):  # another build has just removed it
                status = path.stat()
                entries.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self._limit:
                return
            path.unlink(missing_ok=True)
            total -= size
