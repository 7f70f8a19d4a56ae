"""Finds tool calls in an answer that arrives in pieces of any size."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Protocol

from .call_scanner import CallScanner, NotACall, ValueEnd
from .call_syntax import CallSyntax
from .pieces import CallArguments, CallStart, Piece, Text

_SPACE = " \t\r\n"
_HEAD = re.compile(r"\s*([\w.:-]+)\s*(?:\[CALL_ID\]\s*(\w+)\s*)?(?:\[ARGS\]\s*)?")


class _Scanner(Protocol):
    name: str | None

    @property
    def done(self) -> bool: ...
    def push(self, char: str) -> None: ...
    def take_arguments(self) -> str: ...


class CallParser:
    """Takes an answer's text and gives text and calls.

    Works a character at a time, so that the result does not depend on where the pieces were cut.
    What begins like a call and is none comes out as the text it is. Space around calls is dropped.
    """

    def __init__(
        self,
        syntax: CallSyntax,
        known_names: Collection[str],
        new_id: Callable[[], str],
        many: bool = True,
    ) -> None:
        self._syntax = syntax
        self._known = known_names
        self._new_id = new_id
        self._many = many
        self._count = 0  # calls that have started
        self._pieces: list[Piece] = []
        self._space = ""  # white space that the next text would make visible
        self._held = ""  # what may become a marker
        self._raw = ""  # of the call that has not started yet
        self._scanner: _Scanner | None = None
        self._started = False
        self._just_called = False  # no visible text since the last call
        self._state = self._at_start if syntax.bare else self._in_text

    def push(self, text: str) -> list[Piece]:
        """Take a piece of the answer; return what is certain with it."""
        for char in text:
            self._state(char)
        return self._take()

    def flush(self) -> list[Piece]:
        """Return what is held; the answer has ended."""
        if self._state == self._after_marker or (self._scanner is not None and not self._started):
            self._text(self._raw)
        self._text(self._held)
        if not self._just_called:
            self._pieces.append(Text(self._space))
        self._space = self._held = self._raw = ""
        return self._take()

    def _take(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def _text(self, text: str) -> None:
        text = self._space + text
        body = text.rstrip(_SPACE)
        self._space = text[len(body) :]
        if body:
            self._pieces.append(Text(body.lstrip(_SPACE) if self._just_called else body))
            self._just_called = False

    def _at_start(self, char: str) -> None:
        """Before the first visible character of a style whose calls need no marker."""
        if char in _SPACE:
            self._text(char)
        elif char == "{":
            self._begin("", CallScanner(), char)
        else:
            self._state = self._in_text
            self._in_text(char)

    def _in_text(self, char: str) -> None:
        self._held += char
        marker = self._syntax.open
        while self._held and not marker.startswith(self._held):
            first, self._held = self._held[0], self._held[1:]
            self._text(first)
        if self._held == marker:
            self._held = ""
            self._raw = marker
            self._state = self._after_marker

    def _after_marker(self, char: str) -> None:
        """Between a marker and the call; the call's first character decides its form."""
        if char in _SPACE or (self._syntax.prefixed and char == "["):
            self._raw += char
        elif char == "{" or not self._syntax.prefixed:
            self._begin(self._raw, CallScanner(), char)
        else:
            self._begin(self._raw, _PrefixedCall(), char)

    def _begin(self, raw: str, scanner: _Scanner, char: str) -> None:
        self._raw, self._scanner, self._started = raw, scanner, False
        self._state = self._in_call
        self._in_call(char)

    def _in_call(self, char: str) -> None:
        scanner = self._scanner
        assert scanner is not None
        if not self._started:
            self._raw += char
        try:
            scanner.push(char)
            if scanner.name is not None and not self._started:
                self._start(scanner)
        except NotACall:
            self._scanner = None
            self._state = self._in_text
            if self._started:  # what was given out stays; the rest is read as text
                self._in_text(char)
            else:
                self._text(self._raw)
            return
        if self._started and (text := scanner.take_arguments()):
            self._give(CallArguments(self._count - 1, text))
        if scanner.done:
            self._scanner = None
            self._state = self._after_call

    def _start(self, scanner: _Scanner) -> None:
        assert scanner.name is not None
        if self._syntax.bare and scanner.name not in self._known:
            raise NotACall
        self._started = self._just_called = True
        self._space = ""
        self._count += 1
        call_id = getattr(scanner, "call_id", None) or self._new_id()
        self._give(CallStart(self._count - 1, call_id, scanner.name))

    def _give(self, piece: CallStart | CallArguments) -> None:
        if self._many or piece.index == 0:
            self._pieces.append(piece)

    def _after_call(self, char: str) -> None:
        """After a call: its end marker, a separator, another call, or text again."""
        if not self._held:
            if char in _SPACE:
                return
            if char == "{":
                self._begin("", CallScanner(), char)
                return
        self._held += char
        syntax = self._syntax
        if syntax.close and self._held == syntax.close:
            self._held = ""
            self._state = self._in_text
        elif self._held == syntax.open:
            self._held, self._raw = "", self._held
            self._state = self._after_marker
        elif syntax.open.startswith(self._held) or syntax.close.startswith(self._held):
            return
        elif self._held in syntax.separators:
            self._held = ""
        else:
            held, self._held = self._held, ""
            self._state = self._in_text
            for one in held:
                self._state(one)


class _PrefixedCall:
    """`name{...}`, `name[ARGS]{...}` or `name[CALL_ID]id[ARGS]{...}`."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.call_id: str | None = None
        self.done = False
        self._head = ""
        self._arguments = ""
        self._end = ValueEnd()

    def push(self, char: str) -> None:
        """Take the next character; raises NotACall."""
        if self.name is None:
            if char != "{":
                self._head += char
                if len(self._head) > 300:
                    raise NotACall
                return
            match = _HEAD.fullmatch(self._head)
            if match is None:
                raise NotACall
            self.name, self.call_id = match.groups()
        self._arguments += char
        _, self.done = self._end.push(char)

    def take_arguments(self) -> str:
        """Return the new text of the arguments."""
        text, self._arguments = self._arguments, ""
        return text
