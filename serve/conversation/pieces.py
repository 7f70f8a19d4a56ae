"""What an answer is made of: text, reasoning and tool calls, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text that the model wrote for itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins; `index` counts the calls of one answer."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments' JSON text of call `index`."""

    index: int
    text: str


Piece = Text | Reasoning | CallStart | CallArguments


def merged(pieces: list[Piece]) -> list[Piece]:
    """Return the pieces with neighbours of one kind joined and empty ones left out."""
    result: list[Piece] = []
    for piece in pieces:
        last = result[-1] if result else None
        if isinstance(piece, Text | Reasoning | CallArguments) and not piece.text:
            continue
        if isinstance(piece, Text) and isinstance(last, Text):
            result[-1] = Text(last.text + piece.text)
        elif isinstance(piece, Reasoning) and isinstance(last, Reasoning):
            result[-1] = Reasoning(last.text + piece.text)
        elif (
            isinstance(piece, CallArguments)
            and isinstance(last, CallArguments)
            and piece.index == last.index
        ):
            result[-1] = CallArguments(last.index, last.text + piece.text)
        else:
            result.append(piece)
    return result
