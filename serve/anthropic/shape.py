"""Messages as JSON: the message object, and the events of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ...runtime.errors import EnginewrightError
from ..conversation.answer_parser import AnswerParser
from ..conversation.pieces import CallArguments, CallStart, Piece, Reasoning, Text
from ..generation import Delta
from ..openai.errors import anthropic_body, body_of
from ..openai.streaming import Usage, WholeChoice, named_event
from .types import tool_input

Event = dict[str, Any]


class MessageShape:
    """The answers of `/v1/messages`."""

    def __init__(self, object_id: str, model: str, parser: AnswerParser) -> None:
        self._parser = parser
        self._stop: tuple[str | None, int | str | None] = (None, None)
        self._blocks = 0  # that have begun
        self._open = ""  # type of the block that grows
        self._frame: dict[str, Any] = {
            "id": object_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }

    def opening(self, usage: Usage) -> bytes:
        """Return the events that begin a message."""
        message = self._frame | {"usage": _usage(usage)}
        return _encode([{"type": "message_start", "message": message}, {"type": "ping"}])

    def event(self, delta: Delta, usage: Usage) -> bytes:
        """Return the events of one delta."""
        last = delta.finish_reason is not None
        if last:
            self._stop = (delta.finish_reason, delta.stop_reason)
        pieces = self._parser.push(delta.text, last)
        return _encode(event for piece in pieces for event in self._grow(piece))

    def closing(self, usage: Usage) -> bytes:
        """Return the events that end a message."""
        reason, sequence = self._stop_of(*self._stop)
        events = list(self._close())
        if not self._blocks:
            events = [*self._begin("text", {"type": "text", "text": ""}), *self._close()]
        end = {"stop_reason": reason, "stop_sequence": sequence}
        return _encode(
            [
                *events,
                {"type": "message_delta", "delta": end, "usage": _usage(usage)},
                {"type": "message_stop"},
            ]
        )

    def failure(self, error: EnginewrightError, usage: Usage) -> bytes:
        """Return the event that ends a stream with an error."""
        return _encode([anthropic_body(body_of(error), error.http_status)])

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        [choice] = choices
        content: list[dict[str, Any]] = []
        arguments = ""
        for piece in self._parser.push(choice.text, True):
            match piece:
                case Text(text):
                    content.append({"type": "text", "text": text})
                case Reasoning(text):
                    content.append({"type": "thinking", "thinking": text, "signature": ""})
                case CallStart(_, call_id, name):
                    block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
                    content.append(block)
                    arguments = ""
                case CallArguments(_, text):
                    arguments += text
                    content[-1]["input"] = tool_input(arguments)
        reason, sequence = self._stop_of(choice.finish_reason, choice.stop_reason)
        return self._frame | {
            "content": content or [{"type": "text", "text": ""}],
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": _usage(usage),
        }

    def _grow(self, piece: Piece) -> Iterator[Event]:
        match piece:
            case Text(text):
                yield from self._begin("text", {"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            case Reasoning(text):
                yield from self._begin(
                    "thinking", {"type": "thinking", "thinking": "", "signature": ""}
                )
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case CallStart(_, call_id, name):
                yield from self._close()
                block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
                yield from self._begin("tool_use", block)
            case CallArguments(_, text):
                yield self._delta({"type": "input_json_delta", "partial_json": text})

    def _begin(self, kind: str, block: dict[str, Any]) -> Iterator[Event]:
        """Begin a block, unless the one that grows is of this kind."""
        if self._open == kind:
            return
        yield from self._close()
        self._open = kind
        self._blocks += 1
        yield {"type": "content_block_start", "index": self._blocks - 1, "content_block": block}

    def _close(self) -> Iterator[Event]:
        if self._open:
            if self._open == "thinking":
                yield self._delta({"type": "signature_delta", "signature": ""})
            yield {"type": "content_block_stop", "index": self._blocks - 1}
        self._open = ""

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self._blocks - 1, "delta": delta}

    def _stop_of(self, reason: str | None, stop: int | str | None) -> tuple[str | None, str | None]:
        """Return Anthropic's reason and the stop sequence, if it was one."""
        if reason == "stop":
            if isinstance(stop, str):
                return "stop_sequence", stop
            return ("tool_use" if self._parser.has_calls else "end_turn"), None
        return {"length": "max_tokens"}.get(reason or "", reason), None


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _encode(events: Iterable[Event]) -> bytes:
    return b"".join(named_event(event["type"], event) for event in events)
