"""Tool calls written as tags: `<function=weather><parameter=city>Oslo</parameter></function>`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, cast

from .pieces import CallArguments, CallStart, Piece, Text
from .tools import Tool

_OPEN, _FUNCTION, _PARAMETER = "<tool_call>", "<function=", "<parameter="
_END_PARAMETER, _END_FUNCTION, _CLOSE = "</parameter>", "</function>", "</tool_call>"
_HEAD = re.compile(r"(?:<tool_call>\s*)?<function=([\w.:-]{1,128})>")
_MOST_HEAD = 300  # characters; what is longer is no call
_KINDS: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


class _In(Enum):
    TEXT = "text"
    CALL = "call"  # between a function's tags
    AFTER = "after"  # behind a function: its call may be closed


class XmlCallParser:
    """Takes an answer's text and gives text and calls, as Qwen3-Coder and its kin write them.

    The result does not depend on where the pieces were cut. An argument comes out when its tag is
    closed; its schema says whether it is a text or JSON. Space around calls is dropped.
    """

    def __init__(self, tools: Sequence[Tool], new_id: Callable[[], str], many: bool = True) -> None:
        self._schemas = {tool.name: tool.schema for tool in tools}
        self._new_id = new_id
        self._many = many
        self._held = ""
        self._in = _In.TEXT
        self._space = ""  # white space that the next text would make visible
        self._called = False  # no visible text since the last call
        self._count = 0
        self._name = ""
        self._arguments = 0  # of the call so far

    def push(self, text: str) -> list[Piece]:
        """Take a piece of the answer; return what is certain with it."""
        self._held += text
        return list(self._read(False))

    def flush(self) -> list[Piece]:
        """Return what is held; the answer has ended."""
        pieces = list(self._read(True))
        if not self._called and self._space:
            pieces.append(Text(self._space))
        self._space = self._held = ""
        return pieces

    def _read(self, last: bool) -> Iterator[Piece]:
        steps = {_In.TEXT: self._text, _In.CALL: self._call, _In.AFTER: self._after}
        while self._held:
            before = (self._in, len(self._held))
            yield from steps[self._in](last)
            if (self._in, len(self._held)) == before:
                return

    def _text(self, last: bool) -> Iterator[Piece]:
        """Give text up to where a call begins, or may begin."""
        places = [place for mark in (_OPEN, _FUNCTION) if (place := self._held.find(mark)) >= 0]
        if not places:
            kept = 0 if last else max(_overlap(self._held, _OPEN), _overlap(self._held, _FUNCTION))
            yield from self._give(len(self._held) - kept)
            return
        yield from self._give(min(places))
        if head := _HEAD.match(self._held):
            self._held = self._held[head.end() :]
            self._name, self._arguments = head.group(1), 0
            self._in, self._called, self._space = _In.CALL, True, ""
            self._count += 1
            yield from self._emit(CallStart(self._count - 1, self._new_id(), self._name))
        elif last or not _may_be_head(self._held):
            yield from self._give(len(_OPEN if self._held.startswith(_OPEN) else _FUNCTION))

    def _call(self, last: bool) -> Iterator[Piece]:
        """Give the next argument, or the end of the call."""
        self._held = self._held.lstrip()
        if self._held.startswith(_PARAMETER):
            end = self._held.find(_END_PARAMETER)
            if end < 0:
                return
            key, _, value = self._held[len(_PARAMETER) : end].partition(">")
            self._held = self._held[end + len(_END_PARAMETER) :]
            text = f"{json.dumps(key, ensure_ascii=False)}: {self._value(key, value)}"
            self._arguments += 1
            opening = "{" if self._arguments == 1 else ", "
            yield from self._emit(CallArguments(self._count - 1, opening + text))
            return
        if not last and any(tag.startswith(self._held) for tag in (_PARAMETER, _END_FUNCTION)):
            return
        if self._held.startswith(_END_FUNCTION):
            self._held = self._held[len(_END_FUNCTION) :]
            self._in = _In.AFTER
            yield from self._end()
        elif not _PARAMETER.startswith(self._held) and not _END_FUNCTION.startswith(self._held):
            self._in = _In.TEXT  # what was given out stays, and is closed; the rest is text
            yield from self._end()

    def _end(self) -> Iterator[Piece]:
        yield from self._emit(CallArguments(self._count - 1, "}" if self._arguments else "{}"))

    def _after(self, last: bool) -> Iterator[Piece]:
        self._held = self._held.lstrip()
        if self._held.startswith(_CLOSE):
            self._held = self._held[len(_CLOSE) :]
        elif self._held and _CLOSE.startswith(self._held) and not last:
            return
        if self._held or last:
            self._in = _In.TEXT
        yield from ()

    def _give(self, count: int) -> Iterator[Piece]:
        """Give the first characters that are held as text; white space waits for more."""
        text, self._held = self._space + self._held[:count], self._held[count:]
        body = text.rstrip()
        self._space = text[len(body) :]
        if body:
            yield Text(body.lstrip() if self._called else body)
            self._called = False

    def _emit(self, piece: CallStart | CallArguments) -> Iterator[Piece]:
        if self._many or piece.index == 0:
            yield piece

    def _value(self, key: str, text: str) -> str:
        """Return an argument as JSON."""
        text = text.removeprefix("\n").removesuffix("\n")
        properties = self._schemas.get(self._name, {}).get("properties")
        schema: Any = properties.get(key) if isinstance(properties, dict) else None
        value = _typed(text, _kinds_of(schema))
        return json.dumps(value, ensure_ascii=False)


def _overlap(text: str, mark: str) -> int:
    """Return how many characters at the end of a text begin a mark."""
    sizes = range(min(len(text), len(mark) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(mark[:size])), 0)


def _may_be_head(text: str) -> bool:
    """Return whether what begins like a call may still become one."""
    rest = text.removeprefix(_OPEN).lstrip() if text.startswith(_OPEN) else text
    if len(text) > _MOST_HEAD:
        return False
    return _FUNCTION.startswith(rest) or re.fullmatch(r"<function=[\w.:-]*", rest) is not None


def _kinds_of(schema: Any) -> set[str]:
    """Return the JSON types that a schema names, its alternatives' too."""
    if not isinstance(schema, dict):
        return set()
    known = cast(dict[str, Any], schema)
    kind = known.get("type")
    kinds = {kind} if isinstance(kind, str) else set(kind) if isinstance(kind, list) else set()
    for alternative in [*known.get("anyOf", ()), *known.get("oneOf", ())]:
        kinds |= _kinds_of(alternative)
    return kinds


def _typed(text: str, kinds: set[str]) -> Any:
    """Return the value of an argument: JSON if the schema wants it and it is, else the text."""
    wanted = tuple(one for kind in kinds for one in _KINDS.get(kind, ()))
    if not wanted:
        return text
    try:
        value = {"True": True, "False": False, "None": None}.get(text.strip(), ...)
        value = json.loads(text) if value is ... else value
    except (ValueError, RecursionError):
        return text
    if isinstance(value, bool) and "boolean" not in kinds:
        return text
    return value if isinstance(value, wanted) else text
