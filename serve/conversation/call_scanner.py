"""Reads one JSON object that describes a tool call, one character at a time."""

from __future__ import annotations

import enum
import json
from typing import Any

NAME_KEYS = ("name",)
ARGUMENT_KEYS = ("arguments", "parameters")


class NotACall(Exception):
    """The text is not an object that describes a call."""


class ValueEnd:
    """Finds where a JSON value ends; what stands inside is not checked."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._started = False
        self._scalar = False

    def push(self, char: str) -> tuple[bool, bool]:
        """Take a character; return (it belongs to the value, the value is complete)."""
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = False
                return True, self._depth == 0
            return True, False
        if self._scalar and char in ",}] \t\r\n":
            return False, True
        if char == '"':
            self._in_string = self._started = True
        elif char in "{[":
            self._depth += 1
            self._started = True
        elif char in "}]":
            if self._depth == 0:
                raise NotACall
            self._depth -= 1
            return True, self._depth == 0
        elif not self._started and char not in " \t\r\n":
            self._started = self._scalar = True
        return True, False


class _At(enum.Enum):
    OBJECT = enum.auto()  # before the opening brace
    FIRST_KEY = enum.auto()
    KEY = enum.auto()
    IN_KEY = enum.auto()
    COLON = enum.auto()
    VALUE = enum.auto()
    NEXT = enum.auto()  # before a comma or the closing brace
    DONE = enum.auto()


class CallScanner:
    """One call: `name` as soon as it is known, and the text of its arguments as it comes.

    Arguments that are written as a JSON string are unwrapped. `push` raises NotACall at the first
    character that cannot belong to such an object.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self._at = _At.OBJECT
        self._key = ""
        self._value = ""
        self._end = ValueEnd()
        self._arguments = ""  # not handed out yet
        self._has_arguments = False

    @property
    def done(self) -> bool:
        """Whether the closing brace has come."""
        return self._at is _At.DONE

    def take_arguments(self) -> str:
        """Return the new text of the arguments; empty until the name is known."""
        if self.name is None:
            return ""
        text, self._arguments = self._arguments, ""
        return text

    def push(self, char: str) -> None:
        """Take the next character."""
        match self._at:
            case _At.VALUE:
                self._push_value(char)
            case _At.IN_KEY:
                if char != '"':
                    self._key += char
                else:
                    self._at = _At.COLON
            case _ if char in " \t\r\n":
                return
            case _At.OBJECT:
                self._expect(char, {"{": _At.FIRST_KEY})
            case _At.FIRST_KEY:
                self._expect(char, {'"': _At.IN_KEY, "}": _At.DONE})
            case _At.KEY:
                self._expect(char, {'"': _At.IN_KEY})
            case _At.COLON:
                self._expect(char, {":": _At.VALUE})
            case _At.NEXT:
                self._expect(char, {",": _At.KEY, "}": _At.DONE})
            case _At.DONE:
                raise NotACall

    def _expect(self, char: str, ways: dict[str, _At]) -> None:
        if char not in ways:
            raise NotACall
        self._at = ways[char]
        if self._at is _At.IN_KEY:
            self._key = ""
        elif self._at is _At.VALUE:
            self._value, self._end = "", ValueEnd()
        elif self._at is _At.DONE:
            if self.name is None:
                raise NotACall
            if not self._has_arguments:
                self._arguments = "{}"

    def _push_value(self, char: str) -> None:
        inside, complete = self._end.push(char)
        is_arguments = self._key in ARGUMENT_KEYS
        if inside and (self._value or char not in " \t\r\n"):
            self._value += char
            if is_arguments and self._value[0] == "{":
                self._arguments += char
                self._has_arguments = True
        if not complete:
            return
        if self._key in NAME_KEYS:
            name = _load(self._value)
            if not isinstance(name, str) or not name:
                raise NotACall
            self.name = name
        elif is_arguments and self._value[0] != "{":
            self._arguments += _unwrapped(self._value)
            self._has_arguments = True
        self._at = _At.NEXT
        if not inside:
            self.push(char)


def _unwrapped(value: str) -> str:
    loaded = _load(value)
    if loaded is None:
        return "{}"
    return loaded if isinstance(loaded, str) else value


def _load(text: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        raise NotACall from None
