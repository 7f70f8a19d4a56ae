"""Chat completions as JSON, whole and in chunks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from ..conversation.answer_parser import AnswerParser
from ..conversation.pieces import CallArguments, CallStart, Piece, Reasoning, Text
from ..generation import Delta
from ..service import Service
from .chat_types import ChatRequest
from .chunks import ChunkedShape, Chunks
from .logprobs import chat_logprobs, prompt_logprobs
from .streaming import Usage, WholeChoice


class ChatShape(ChunkedShape):
    """The answers of `/v1/chat/completions`."""

    def __init__(
        self,
        service: Service,
        body: ChatRequest,
        object_id: str,
        prompt_ids: Sequence[int],
        parser: Callable[[], AnswerParser],
    ) -> None:
        self._tokenizer = service.tokenizer
        self._logprobs = bool(body.logprobs)
        self._token_ids = bool(body.return_token_ids)
        self._with_reasoning = body.include_reasoning is not False
        self._prompt_ids = prompt_ids
        self._parsers = [parser() for _ in range(body.n or 1)]
        self._head: dict[str, Any] = {
            "id": object_id,
            "object": "chat.completion",
            "created": int(time.time()),
            "model": service.model_name,
        }
        self._chunks = Chunks(self._head | {"object": "chat.completion.chunk"}, body)

    def opening(self, usage: Usage) -> bytes:
        """Return one chunk a choice with the role."""
        extra = b""
        if self._token_ids:
            extra = b',"prompt_token_ids":' + orjson.dumps(list(self._prompt_ids))
        return b"".join(
            self._chunks.wrap(
                b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,'
                b'"finish_reason":null}' % index,
                usage,
                extra if index == 0 else b"",
            )
            for index in range(len(self._parsers))
        )

    def event(self, delta: Delta, usage: Usage) -> bytes:
        """Return the chunk of one delta."""
        parser = self._parsers[delta.index]
        content = self._message(parser.push(delta.text, delta.finish_reason is not None))
        with_logprobs = self._logprobs and bool(delta.logprobs)
        with_ids = self._token_ids and bool(delta.token_ids)
        if not (content or delta.finish_reason or with_logprobs or with_ids):
            return b""
        logprobs = b"null"
        if with_logprobs:
            logprobs = orjson.dumps(chat_logprobs(self._tokenizer, delta.logprobs))
        return self._chunks.choice(
            delta,
            b'"delta":' + orjson.dumps(content),
            usage,
            logprobs=logprobs,
            finish=_finish_reason(delta.finish_reason, parser),
            with_ids=with_ids,
        )

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        body = self._head | {
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage.to_json(),
        }
        if self._token_ids:
            body["prompt_token_ids"] = list(self._prompt_ids)
        if (entries := choices[0].prompt_logprobs) is not None:
            body["prompt_logprobs"] = prompt_logprobs(self._tokenizer, entries)
        return body

    def _choice(self, index: int, choice: WholeChoice) -> dict[str, Any]:
        parser = self._parsers[index]
        message = self._message(parser.push(choice.text, True))
        for call in message.get("tool_calls", ()):
            del call["index"]
        content = message.pop("content", None)
        if content is None and "tool_calls" not in message:
            content = ""
        result: dict[str, Any] = {
            "index": index,
            "message": {"role": "assistant", "content": content, "refusal": None, **message},
            "logprobs": chat_logprobs(self._tokenizer, choice.logprobs) if self._logprobs else None,
            "finish_reason": _finish_reason(choice.finish_reason, parser),
            "stop_reason": choice.stop_reason,
        }
        if self._token_ids:
            result["token_ids"] = choice.token_ids
        return result

    def _message(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Return the members of a message, or of a delta, that some pieces make."""
        message: dict[str, Any] = {}
        calls: dict[int, dict[str, Any]] = {}
        for piece in pieces:
            match piece:
                case Text(text):
                    message["content"] = message.get("content", "") + text
                case Reasoning(text):
                    if self._with_reasoning:
                        message["reasoning"] = message.get("reasoning", "") + text
                case CallStart(index, call_id, name):
                    function = {"name": name, "arguments": ""}
                    calls[index] = {
                        "index": index,
                        "id": call_id,
                        "type": "function",
                        "function": function,
                    }
                case CallArguments(index, text):
                    call = calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
                    call["function"]["arguments"] += text
        if "reasoning" in message:
            message["reasoning_content"] = message["reasoning"]
        if calls:
            message["tool_calls"] = list(calls.values())
        return message


def _finish_reason(reason: str | None, parser: AnswerParser) -> str | None:
    return "tool_calls" if reason == "stop" and parser.has_calls else reason
