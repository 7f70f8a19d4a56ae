"""Responses as JSON: the response object, and the events of a stream."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ...runtime.errors import EnginewrightError
from ..conversation.answer_parser import AnswerParser
from ..conversation.pieces import Reasoning
from ..generation import Delta
from ..response_store import StoredResponse
from ..service import Service
from .response_items import Event, OutputItems, as_message
from .responses_types import ResponsesRequest
from .streaming import Usage, WholeChoice, named_event

_STATUS = {"stop": "completed", "length": "incomplete", "cancelled": "cancelled"}


class ResponseShape:
    """The answers of `/v1/responses`; a finished one goes into the store, if that is wanted."""

    def __init__(
        self,
        service: Service,
        body: ResponsesRequest,
        object_id: str,
        messages: Sequence[Mapping[str, Any]],
        parser: AnswerParser,
        with_logprobs: bool,
    ) -> None:
        self._store = service.responses if body.store is not False else None
        self._messages = messages
        self._parser = parser
        self._object_id = object_id
        self._items = OutputItems(object_id.partition("_")[2], service.tokenizer, with_logprobs)
        self._reasoning_tokens = 0
        self._finish_reason = "stop"
        self._number = 0
        self._response = _frame(service, body, object_id)

    def opening(self, usage: Usage) -> bytes:
        """Return the events that tell of the response's existence."""
        return self._encode(
            {"type": f"response.{name}", "response": self._response | {"output": []}}
            for name in ("created", "in_progress")
        )

    def event(self, delta: Delta, usage: Usage) -> bytes:
        """Return the events of one delta."""
        return self._encode(self._take(delta))

    def closing(self, usage: Usage) -> bytes:
        """Return the last events of an answer."""
        events = list(self._items.end(self._finish_reason == "stop"))
        response = self._finish(usage)
        name = {"completed": "completed", "cancelled": "failed"}.get(
            response["status"], "incomplete"
        )
        return self._encode([*events, {"type": f"response.{name}", "response": response}])

    def failure(self, error: EnginewrightError, usage: Usage) -> bytes:
        """Return the events that end a stream with an error."""
        fault = {"code": error.code, "message": str(error)}
        response = self._response | {
            "status": "failed",
            "error": fault,
            "output": self._items.items,
            "usage": self._usage(usage),
        }
        return self._encode([{"type": "response.failed", "response": response}])

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        [choice] = choices
        delta = Delta(0, choice.text, choice.token_ids, choice.logprobs, choice.finish_reason)
        for _ in self._take(delta):
            pass
        for _ in self._items.end(self._finish_reason == "stop"):
            pass
        return self._finish(usage)

    def _take(self, delta: Delta) -> Iterable[Event]:
        if delta.finish_reason is not None:
            self._finish_reason = delta.finish_reason
        self._items.add_logprobs(delta.logprobs)
        pieces = self._parser.push(delta.text, delta.finish_reason is not None)
        if pieces and all(isinstance(piece, Reasoning) for piece in pieces):
            self._reasoning_tokens += len(delta.token_ids)
        for piece in pieces:
            yield from self._items.add(piece)

    def _finish(self, usage: Usage) -> dict[str, Any]:
        status = _STATUS.get(self._finish_reason, "failed")
        response = self._response | {
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "incomplete_details": {"reason": "max_output_tokens"}
            if status == "incomplete"
            else None,
            "output": self._items.items,
            "usage": self._usage(usage),
        }
        if self._store is not None:
            answer = as_message(self._items.items)
            stored = StoredResponse(response, (*self._messages, answer))
            self._store.put(self._object_id, stored)
        return response

    def _usage(self, usage: Usage) -> dict[str, Any]:
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }

    def _encode(self, events: Iterable[Event]) -> bytes:
        parts: list[bytes] = []
        for event in events:
            parts.append(named_event(event["type"], event | {"sequence_number": self._number}))
            self._number += 1
        return b"".join(parts)


def _frame(service: Service, body: ResponsesRequest, object_id: str) -> dict[str, Any]:
    """Return what a response says about its request."""
    form = None if body.text is None or body.text.format is None else body.text.format
    text_format = {"type": "text"} if form is None else msgspec.to_builtins(form)
    reasoning = body.reasoning
    return {
        "id": object_id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "model": service.model_name,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": None if reasoning is None else reasoning.effort, "summary": None},
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": text_format},
        "tool_choice": "auto"
        if body.tool_choice is None
        else msgspec.to_builtins(body.tool_choice),
        "tools": [
            {"strict": False, "description": None, "parameters": None}
            | {k: v for k, v in msgspec.to_builtins(tool).items() if v is not None}
            for tool in body.tools or ()
        ],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user if isinstance(body.user, str) else None,
        "metadata": body.metadata if isinstance(body.metadata, dict) else {},
    }
