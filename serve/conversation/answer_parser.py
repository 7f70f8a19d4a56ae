"""An answer's text as pieces: reasoning first, then text and tool calls."""

from __future__ import annotations

from typing import Protocol

from .pieces import CallStart, Piece, Text, merged
from .reasoning import ReasoningSplitter


class PieceParser(Protocol):
    """What finds tool calls."""

    def push(self, text: str) -> list[Piece]:
        """Take a piece of text; return what is certain with it."""
        ...

    def flush(self) -> list[Piece]:
        """Return what is held; the text has ended."""
        ...


class AnswerParser:
    """One choice's text in, its pieces out; without parts it gives the text through."""

    def __init__(self, splitter: ReasoningSplitter | None, calls: PieceParser | None) -> None:
        self._splitter = splitter
        self._calls = calls
        self.has_calls = False

    def push(self, text: str, last: bool) -> list[Piece]:
        """Take a piece of the answer; `last` says that nothing follows."""
        if self._splitter is None and self._calls is None:
            return [Text(text)] if text else []
        pieces: list[Piece] = [Text(text)]
        if self._splitter is not None:
            pieces = self._splitter.push(text)
            pieces += self._splitter.flush() if last else []
        if self._calls is not None:
            parsed: list[Piece] = []
            for piece in merged(pieces):
                parsed += self._calls.push(piece.text) if isinstance(piece, Text) else [piece]
            pieces = parsed + (self._calls.flush() if last else [])
        self.has_calls = self.has_calls or any(isinstance(piece, CallStart) for piece in pieces)
        return merged(pieces)
