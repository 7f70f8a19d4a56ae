"""The output of a response: items that grow piece by piece, and the events that tell of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...executor.messages import TokenLogprob
from ..conversation.pieces import CallArguments, CallStart, Piece, Reasoning, Text
from ..conversation.tools import call_arguments
from ..tokenizer import Tokenizer
from .logprobs import chat_logprobs

Event = dict[str, Any]


class OutputItems:
    """The items of one response, in order; `add` and `end` yield events without their numbers."""

    def __init__(self, suffix: str, tokenizer: Tokenizer, with_logprobs: bool) -> None:
        self.items: list[dict[str, Any]] = []
        self._suffix = suffix
        self._tokenizer = tokenizer
        self._with_logprobs = with_logprobs
        self._logprobs: list[Any] = []  # that no event has carried yet

    def add_logprobs(self, entries: Sequence[TokenLogprob]) -> None:
        """Take the log-probabilities of new tokens; they go out with the next text."""
        if self._with_logprobs and entries:
            self._logprobs += chat_logprobs(self._tokenizer, entries)["content"]

    def add(self, piece: Piece) -> Iterator[Event]:
        """Take a piece of the answer."""
        match piece:
            case Text(text):
                yield from self._open("message", "msg")
                yield from self._text(text, "output_text")
            case Reasoning(text):
                yield from self._open("reasoning", "rs")
                yield from self._text(text, "reasoning_text")
            case CallStart(_, call_id, name):
                yield from self.close()
                yield from self._open("function_call", "fc", call_id=call_id, name=name)
            case CallArguments(_, text):
                item = self.items[-1]
                item["arguments"] += text
                yield self._event("function_call_arguments.delta", delta=text)

    def end(self, complete: bool) -> Iterator[Event]:
        """End the newest item; an answer without any gets an empty message."""
        if not self.items:
            yield from self._open("message", "msg")
        yield from self.close("completed" if complete else "incomplete")

    def close(self, status: str = "completed") -> Iterator[Event]:
        """End the newest item, if there is one that has not ended."""
        if not self.items or self.items[-1]["status"] != "in_progress":
            return
        item = self.items[-1]
        if item["type"] == "function_call":
            yield self._event(
                "function_call_arguments.done", arguments=item["arguments"], name=item["name"]
            )
        else:
            part = item["content"][0]
            if part["type"] == "output_text":
                part["logprobs"] += self._taken_logprobs()
                done = {"text": part["text"], "logprobs": part["logprobs"]}
            else:
                done = {"text": part["text"]}
            yield self._event(f"{part['type']}.done", content_index=0, **done)
            yield self._event("content_part.done", content_index=0, part=part)
        item["status"] = status
        yield {
            "type": "response.output_item.done",
            "output_index": len(self.items) - 1,
            "item": item,
        }

    def _open(self, kind: str, prefix: str, **members: Any) -> Iterator[Event]:
        """Begin an item, unless the newest one is of this kind and takes more."""
        last = self.items[-1] if self.items else None
        if last is not None and last["type"] == kind and last["status"] == "in_progress":
            return
        yield from self.close()
        item_id = f"{prefix}_{self._suffix}_{len(self.items)}"
        item: dict[str, Any] = {"id": item_id, "type": kind, "status": "in_progress", **members}
        if kind == "message":
            item |= {"role": "assistant", "content": []}
        elif kind == "reasoning":
            item |= {"summary": [], "content": []}
        else:
            item["arguments"] = ""
        self.items.append(item)
        yield {
            "type": "response.output_item.added",
            "output_index": len(self.items) - 1,
            "item": _copy(item),
        }
        if kind != "function_call":
            part = {"type": "reasoning_text", "text": ""}
            if kind == "message":
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item["content"] = [part]
            yield self._event("content_part.added", content_index=0, part=_copy(part))

    def _text(self, text: str, kind: str) -> Iterator[Event]:
        part = self.items[-1]["content"][0]
        part["text"] += text
        more: dict[str, Any] = {}
        if kind == "output_text":
            more["logprobs"] = self._taken_logprobs()
            part["logprobs"] += more["logprobs"]
        yield self._event(f"{kind}.delta", content_index=0, delta=text, **more)

    def _taken_logprobs(self) -> list[Any]:
        taken, self._logprobs = self._logprobs, []
        return taken

    def _event(self, kind: str, **members: Any) -> Event:
        return {
            "type": f"response.{kind}",
            "item_id": self.items[-1]["id"],
            "output_index": len(self.items) - 1,
            **members,
        }


def _copy(value: dict[str, Any]) -> dict[str, Any]:
    return {name: list(v) if isinstance(v, list) else v for name, v in value.items()}


def as_message(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the assistant's message that some output items make, as chat templates take it."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for item in items:
        if item["type"] == "message":
            message["content"] += item["content"][0]["text"]
        elif item["type"] == "reasoning":
            message["reasoning_content"] = message["reasoning"] = item["content"][0]["text"]
        else:
            function = {"name": item["name"], "arguments": call_arguments(item["arguments"])}
            call = {"id": item["call_id"], "type": "function", "function": function}
            message.setdefault("tool_calls", []).append(call)
    return message
