"""The timing cache: what was measured for tactics, kept for later builds on the same processor."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Any

import msgspec

_SCHEMA = 1


class TimingCache:
    """A file of choices under keys that say all that decided them.

    It begins empty where the file is absent, damaged or of another schema. Builds may share it: it
    is replaced whole, after what others have added meanwhile was read again.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._entries: dict[str, Any] = _read(path)
        self._added: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        """Return what was kept, or None."""
        return self._entries.get(key)

    def put(self, key: str, choice: Any) -> None:
        """Keep a choice, plain data, once `save` is called."""
        self._entries[key] = self._added[key] = choice

    def save(self) -> None:
        """Write what was added; a folder that cannot be written keeps nothing."""
        if self._path is None or not self._added:
            return
        entries = {**_read(self._path), **self._added}
        data = msgspec.json.encode({"schema": _SCHEMA, "entries": entries}, order="deterministic")
        partial = self._path.with_name(f".{secrets.token_hex(8)}.partial")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial.write_bytes(msgspec.json.format(data, indent=1) + b"\n")
            os.replace(partial, self._path)
        except OSError:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


def _read(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}
    entries = found.get("entries")
    return dict(entries) if found.get("schema") == _SCHEMA and isinstance(entries, dict) else {}
