"""Typed access to the loose key-value pairs a checkpoint describes itself with."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..runtime.errors import CheckpointError

T = TypeVar("T")


class Fields:
    """Key-value pairs of `source`; every getter raises CheckpointError on a value of another type.

    A key whose value is null counts as absent.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values = values
        self.source = source

    @classmethod
    def from_json(cls, path: Path) -> Fields:
        """Read a JSON file; CheckpointError when it is missing or not one JSON object."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise CheckpointError(f"{path} is missing; a model folder needs it.") from error
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path} is not valid JSON: {error}.") from error
        if not isinstance(values, dict):
            raise CheckpointError(f"{path} holds a {type(values).__name__}, not a JSON object.")
        return cls(values, str(path))

    def integer(self, key: str, default: int | None = None) -> int:
        """Get an integer; a float without a fraction is taken as one."""
        value = self.optional_integer(key)
        return value if value is not None else self._default(key, default)

    def optional_integer(self, key: str) -> int | None:
        """Get an integer, or None when absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, value, "an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Get a finite number."""
        value = self.optional_number(key)
        return value if value is not None else self._default(key, default)

    def optional_number(self, key: str) -> float | None:
        """Get a finite number, or None when absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, value, "a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self._wrong(key, value, "a finite number")
        return number

    def flag(self, key: str, default: bool = False) -> bool:
        """Get true or false."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Get a string."""
        value = self.values.get(key)
        if value is None:
            return self._default(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def items(self, key: str, kind: type | tuple[type, ...]) -> list[Any]:
        """Get a list whose every element is of `kind`; empty when absent."""
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
            raise self._wrong(key, value, "a list of one kind of value")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """Get one token id or a list of them, as a tuple; empty when absent."""
        value = self.values.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(item) is int and item >= 0 for item in ids):
            raise self._wrong(key, value, "a token id or a list of token ids")
        return tuple(ids)

    def nested(self, key: str) -> Fields | None:
        """Get an object under `key`, or None when absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return Fields(value, f"{self.source}: {key}")

    def _default(self, key: str, default: T | None) -> T:
        if default is None:
            raise CheckpointError(f"{self.source}: {key} is missing; a model cannot do without it.")
        return default

    def _wrong(self, key: str, value: object, expected: str) -> CheckpointError:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        return CheckpointError(f"{self.source}: {key} is {shown}; expected {expected}.")
