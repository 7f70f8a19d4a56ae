"""Tool calls written as a Python list: `[weather(city="Oslo"), time()]`."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from typing import Any

from .pieces import CallArguments, CallStart, Piece, Text

_BEGINS = re.compile(r"\s*(\[\s*([A-Za-z_][\w.]*(\s*\(.*)?)?)?", re.DOTALL)
_CONSTANTS = {"true": True, "false": False, "null": None}


class PythonicParser:
    """Takes an answer's text; the list comes out when it is complete, other text at once."""

    def __init__(self, new_id: Callable[[], str], many: bool = True) -> None:
        self._new_id = new_id
        self._many = many
        self._held = ""
        self._depth = 0
        self._quote = ""
        self._escaped = False
        self._text_only = False

    def push(self, text: str) -> list[Piece]:
        """Take a piece of the answer; return what is certain with it."""
        for number, char in enumerate(text):
            if self._text_only:
                return [*self._give_up(), Text(text[number:])]
            self._held += char
            if not _BEGINS.fullmatch(self._held):
                self._text_only = True
            elif self._closes(char):
                self._text_only = True
                calls = self._calls()
                if calls is not None:
                    self._held = ""
                    return [*calls, Text(text[number + 1 :].lstrip())]
        return self._give_up() if self._text_only else []

    def flush(self) -> list[Piece]:
        """Return what is held; the answer has ended."""
        return self._give_up()

    def _give_up(self) -> list[Piece]:
        held, self._held = self._held, ""
        return [Text(held)]

    def _closes(self, char: str) -> bool:
        """Follow strings and brackets; return whether this one closes the list."""
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == self._quote:
                self._quote = ""
            return False
        if char in "\"'":
            self._quote = char
        elif char in "[({":
            self._depth += 1
        elif char in "])}":
            self._depth -= 1
            return self._depth == 0
        return False

    def _calls(self) -> list[Piece] | None:
        try:
            tree = ast.parse(self._held.strip(), mode="eval").body
            assert isinstance(tree, ast.List)
            found = [_call(node) for node in tree.elts]
        except (SyntaxError, ValueError, AssertionError, RecursionError, MemoryError):
            return None
        if not found:
            return None
        pieces: list[Piece] = []
        for index, (name, arguments) in enumerate(found if self._many else found[:1]):
            pieces.append(CallStart(index, self._new_id(), name))
            pieces.append(CallArguments(index, json.dumps(arguments, ensure_ascii=False)))
        return pieces


def _call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    assert isinstance(node, ast.Call)
    assert not node.args
    arguments = {keyword.arg or "": _value(keyword.value) for keyword in node.keywords}
    assert "" not in arguments
    return ast.unparse(node.func), arguments


def _value(node: ast.expr) -> Any:
    """Return the value of a literal; JSON's names for constants are understood too."""
    if isinstance(node, ast.Name):
        return _CONSTANTS[node.id] if node.id in _CONSTANTS else node.id
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = [ast.literal_eval(key) if key is not None else "" for key in node.keys]
        assert all(isinstance(key, str) for key in keys)
        return dict(zip(keys, map(_value, node.values), strict=True))
    value = ast.literal_eval(node)
    assert isinstance(value, str | int | float | bool | None)
    return value
