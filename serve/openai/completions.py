"""`/v1/completions`: prompts in (text or token ids), their continuations out."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from ...executor.messages import TokenLogprob
from ...runtime.errors import RequestError
from ..generation import Delta
from ..service import Service, service_of
from .logprobs import completion_logprobs
from .streaming import Usage, WholeChoice, answer, read_body
from .types import (
    CompletionRequest,
    check_choices,
    check_stream_options,
    decode_body,
    refuse_unsupported,
)


async def completions(request: Request) -> Response:
    """Answer one completion request."""
    service = service_of(request)
    body = decode_body(await read_body(request, service.max_body_bytes), CompletionRequest)
    service.check_model(body.model)
    refuse_unsupported(body, "echo", "suffix", "response_format")
    if body.best_of not in (None, body.n or 1):
        raise RequestError("best_of other than n is not supported by this server", "best_of")
    prompts = _prompts(body.prompt)
    check_stream_options(body)
    params = body.sampling(service.tokenizer.sampling_defaults, body.max_tokens, body.logprobs)
    check_choices(body, len(prompts))
    ids: list[list[int]] = []
    for prompt in prompts:
        ids.append(await service.encode(prompt) if isinstance(prompt, str) else prompt)
    generation = service.generation(ids, params)
    shape = CompletionShape(service, body.include_usage, body.logprobs)
    return await answer(
        request,
        generation,
        shape,
        stream=bool(body.stream),
        include_usage=body.include_usage,
    )


class CompletionShape:
    """Completions as JSON; what does not change between events is encoded once."""

    def __init__(self, service: Service, include_usage: bool, logprobs: int | None) -> None:
        self._tokenizer = service.tokenizer
        self._logprobs = logprobs is not None
        self._offsets: dict[int, int] = {}  # where each choice's next token has its text
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": service.model_name,
        }
        self._prefix = b"data: " + orjson.dumps(self._head)[:-1] + b',"choices":['
        self._suffix = b'}],"usage":null}\n\n' if include_usage else b"}]}\n\n"

    def opening(self) -> bytes:
        """Return nothing: a completion starts with its text."""
        return b""

    def event(self, delta: Delta) -> bytes:
        """Return the event of one delta."""
        if not (delta.text or delta.finish_reason or (self._logprobs and delta.logprobs)):
            return b""
        logprobs = b"null"
        if self._logprobs and delta.logprobs:
            logprobs = orjson.dumps(self._logprobs_of(delta.index, delta.logprobs))
        finish = b"null"
        if delta.finish_reason is not None:
            finish = orjson.dumps(delta.finish_reason)
            finish += b',"stop_reason":' + orjson.dumps(delta.stop_reason)
        return (
            self._prefix
            + b'{"index":%d,"text":' % delta.index
            + orjson.dumps(delta.text)
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
                    "text": choice.text,
                    "logprobs": self._logprobs_of(index, choice.logprobs)
                    if self._logprobs
                    else None,
                    "finish_reason": choice.finish_reason,
                    "stop_reason": choice.stop_reason,
                }
                for index, choice in enumerate(choices)
            ],
            "usage": usage.to_json(),
        }

    def _logprobs_of(self, index: int, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        offset = self._offsets.get(index, 0)
        result = completion_logprobs(self._tokenizer, entries, offset)
        self._offsets[index] = offset + sum(map(len, result["tokens"]))
        return result


def _prompts(prompt: str | list[Any]) -> list[str | list[int]]:
    """Read the four forms of `prompt`: a text, token ids, or a list of either."""
    if isinstance(prompt, str):
        return [prompt]
    if prompt and all(type(item) is int for item in prompt):
        return [prompt]
    for item in prompt:
        ids = isinstance(item, list) and bool(item) and all(type(one) is int for one in item)
        if not (isinstance(item, str) or ids):
            break
    else:
        if prompt:
            return prompt
    raise RequestError(
        "prompt must be a text, a list of token ids, or a list of either, none of them empty",
        "prompt",
    )
