"""API keys: who may use the server, and how much of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.errors import InputError

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

_LIMITS = ("max_in_flight", "requests_per_minute")


@dataclass(frozen=True, slots=True)
class KeyRule:
    """What one key may do; `name` stands for it in logs and metrics."""

    name: str
    max_in_flight: int | None = None
    requests_per_minute: int | None = None


class KeyRing:
    """All keys, by their hash; an empty ring lets everybody in."""

    def __init__(self, rules: Mapping[str, KeyRule]) -> None:
        # A lookup by hash takes a time that tells nothing about the keys that exist.
        self._rules = {_hash(key): rule for key, rule in rules.items()}

    def __bool__(self) -> bool:
        return bool(self._rules)

    def find(self, key: str) -> KeyRule | None:
        """Return the rule of a key; None if there is no such key."""
        return self._rules.get(_hash(key))


def make_ring(keys: Iterable[str], path: Path | None) -> KeyRing:
    """Return the ring of keys given one by one (without limits) and of a key file.

    Raises InputError for a file that cannot be read, a wrong line, or no key at all in it.
    """
    rules = {key: KeyRule(f"key-{number}") for number, key in enumerate(keys, 1)}
    if path is not None:
        rules |= read_key_file(path)
    return KeyRing(rules)


def read_key_file(path: Path) -> dict[str, KeyRule]:
    """Read a key file: a key a line, then `name=`, `max_in_flight=`, `requests_per_minute=`.

    Empty lines and lines that begin with # are passed over.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the key file {path} cannot be read: {error}") from error
    rules: dict[str, KeyRule] = {}
    for number, line in enumerate(lines, 1):
        words = [] if line.lstrip().startswith("#") else line.split()
        if words:
            if words[0] in rules:
                raise InputError(f"line {number} of {path} has a key that is there already")
            rules[words[0]] = _rule(f"line-{number}", words[1:], f"line {number} of {path}")
    if not rules:
        raise InputError(f"the key file {path} holds no key; write one a line")
    return rules


def key_of(connection: HTTPConnection) -> str | None:
    """Return the key that a request carries: `Authorization: Bearer KEY` or `x-api-key: KEY`."""
    scheme, _, key = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return connection.headers.get("x-api-key")


def _rule(name: str, words: list[str], where: str) -> KeyRule:
    limits: dict[str, int] = {}
    for word in words:
        field, _, value = word.partition("=")
        if field == "name" and value:
            name = value
        elif field in _LIMITS and value.isdecimal() and int(value) > 0:
            limits[field] = int(value)
        else:
            raise InputError(
                f"{where} says {word!r}; after the key come name=NAME, max_in_flight=N and "
                "requests_per_minute=N, with whole numbers from 1"
            )
    return KeyRule(name, **limits)


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
