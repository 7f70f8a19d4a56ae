"""`/v1/chat/completions`: messages in, an assistant's message out."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from ...executor.sampling import MAX_LOGPROBS
from ...runtime.errors import RequestError
from ..generation import Delta
from ..service import Service, service_of
from .logprobs import chat_logprobs
from .streaming import Usage, WholeChoice, answer, read_body
from .types import (
    ChatRequest,
    ContentPart,
    Message,
    check_stream_options,
    decode_body,
    refuse_unsupported,
)

_RESERVED = ("messages", "add_generation_prompt", "bos_token", "eos_token")


async def chat_completions(request: Request) -> Response:
    """Answer one chat completion request."""
    service = service_of(request)
    body = decode_body(await read_body(request, service.max_body_bytes), ChatRequest)
    service.check_model(body.model)
    refuse_unsupported(body, "tools", "tool_choice", "functions", "response_format")
    check_stream_options(body)
    logprobs = _num_logprobs(body)
    max_tokens = body.max_tokens
    if body.max_completion_tokens is not None:
        max_tokens = body.max_completion_tokens
    params = body.sampling(service.tokenizer.sampling_defaults, max_tokens, logprobs)
    prompt = await service.chat_prompt(
        [_plain(message) for message in body.messages], _template_variables(body)
    )
    generation = service.generation([prompt], params)
    shape = ChatShape(service, body.include_usage, len(generation.generation.choices), logprobs)
    return await answer(
        request,
        generation,
        shape,
        stream=bool(body.stream),
        include_usage=body.include_usage,
    )


class ChatShape:
    """Chat completions as JSON; what does not change between events is encoded once."""

    def __init__(
        self, service: Service, include_usage: bool, num_choices: int, logprobs: int | None
    ) -> None:
        self._tokenizer = service.tokenizer
        self._logprobs = logprobs is not None
        self._num_choices = num_choices
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": service.model_name,
        }
        chunk_head = orjson.dumps(self._head | {"object": "chat.completion.chunk"})[:-1]
        self._prefix = b"data: " + chunk_head + b',"choices":['
        self._suffix = b'}],"usage":null}\n\n' if include_usage else b"}]}\n\n"

    def opening(self) -> bytes:
        """Return one event a choice with the role."""
        return b"".join(
            self._prefix
            + b'{"index":%d,"delta":{"role":"assistant","content":""},' % index
            + b'"logprobs":null,"finish_reason":null'
            + self._suffix
            for index in range(self._num_choices)
        )

    def event(self, delta: Delta) -> bytes:
        """Return the event of one delta."""
        if not (delta.text or delta.finish_reason or (self._logprobs and delta.logprobs)):
            return b""
        content = b'{"content":' + orjson.dumps(delta.text) + b"}" if delta.text else b"{}"
        logprobs = b"null"
        if self._logprobs and delta.logprobs:
            logprobs = orjson.dumps(chat_logprobs(self._tokenizer, delta.logprobs))
        finish = b"null"
        if delta.finish_reason is not None:
            finish = orjson.dumps(delta.finish_reason)
            finish += b',"stop_reason":' + orjson.dumps(delta.stop_reason)
        return (
            self._prefix
            + b'{"index":%d,"delta":' % delta.index
            + content
            + b',"logprobs":'
            + logprobs
            + b',"finish_reason":'
            + finish
            + self._suffix
        )

    def usage_event(self, usage: Usage) -> bytes:
        """Return the event that carries the usage."""
        return self._prefix + b'],"usage":' + orjson.dumps(usage.to_json()) + b"}\n\n"

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        return self._head | {
            "choices": [
                {
                    "index": index,
                    "message": {"role": "assistant", "content": choice.text, "refusal": None},
                    "logprobs": chat_logprobs(self._tokenizer, choice.logprobs)
                    if self._logprobs
                    else None,
                    "finish_reason": choice.finish_reason,
                    "stop_reason": choice.stop_reason,
                }
                for index, choice in enumerate(choices)
            ],
            "usage": usage.to_json(),
        }


def _num_logprobs(body: ChatRequest) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs needs `logprobs` to be true", "top_logprobs")
    top = body.top_logprobs or 0
    if not 0 <= top <= MAX_LOGPROBS:
        raise RequestError(
            f"top_logprobs is {top}; it must be from 0 to {MAX_LOGPROBS}", "top_logprobs"
        )
    return top if body.logprobs else None


def _template_variables(body: ChatRequest) -> dict[str, Any]:
    variables = body.chat_template_kwargs or {}
    taken = [name for name in _RESERVED if name in variables]
    if taken:
        raise RequestError(
            f"chat_template_kwargs sets {taken[0]}, which the server sets itself",
            "chat_template_kwargs",
        )
    return variables


def _plain(message: Message) -> dict[str, Any]:
    if message.role == "tool" or message.tool_calls:
        raise RequestError("tools are not supported by this server", "messages")
    if message.content is None:
        raise RequestError(f"the {message.role} message has no content", "messages")
    role = "system" if message.role == "developer" else message.role
    content = message.content
    if not isinstance(content, str):
        content = "".join(map(_part_text, content))
    return {"role": role, "content": content}


def _part_text(part: ContentPart) -> str:
    if part.type != "text" or part.text is None:
        raise RequestError(
            f"a message has a part of type {part.type!r}; this model reads text alone", "messages"
        )
    return part.text
