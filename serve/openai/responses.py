"""`/v1/responses`: input items in, output items out; answers are kept for a while."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...executor.sampling import MAX_LOGPROBS
from ...runtime.errors import NotFoundError, RequestError
from ..response_store import StoredResponse
from ..service import Service, service_of
from .bodies import answer_headers, object_id, read_generation_request, request_id
from .errors import json_response
from .response_shape import ResponseShape
from .responses_types import ResponsesRequest, input_messages
from .streaming import answer

_LOGPROBS = "message.output_text.logprobs"


async def create_response(request: Request) -> Response:
    """Answer one request for a response."""
    service = service_of(request)
    body = await read_generation_request(request, ResponsesRequest)
    _check(body)
    earlier = _earlier(service, body.previous_response_id)
    logprobs = body.top_logprobs
    if logprobs is None and _LOGPROBS in (body.include or ()):
        logprobs = 0
    defaults = service.tokenizer.sampling_defaults
    params = body.sampling(defaults, body.max_output_tokens, logprobs)
    prompt = service.dialect.prompt(body.to_conversation(earlier), params)
    ids = await service.encode(prompt.text, add_special_tokens=False)
    generation = service.generation([ids], prompt.params, request_id(request))
    shape = ResponseShape(
        service,
        body,
        object_id(request, "resp_"),
        [*earlier, *input_messages(body.input)],
        prompt.parser(),
        logprobs is not None,
    )
    return await answer(request, generation, shape, stream=bool(body.stream))


async def get_response(request: Request) -> Response:
    """Answer a response that is kept."""
    stored = _stored(service_of(request), request.path_params["response_id"])
    return json_response(stored.body, headers=answer_headers(request))


async def delete_response(request: Request) -> Response:
    """Forget a response that is kept."""
    response_id = request.path_params["response_id"]
    _stored(service_of(request), response_id)
    service_of(request).responses.remove(response_id)
    gone = {"id": response_id, "object": "response", "deleted": True}
    return json_response(gone, headers=answer_headers(request))


def _check(body: ResponsesRequest) -> None:
    if body.background:
        raise RequestError("background is not supported; wait for the answer", "background")
    for name in ("prompt", "conversation"):
        if getattr(body, name):
            raise RequestError(f"{name} names what OpenAI keeps; send `input` instead", name)
    if body.n not in (None, 1):
        raise RequestError(f"n is {body.n}; a response has one answer", "n")
    if body.top_logprobs is not None and not 0 <= body.top_logprobs <= MAX_LOGPROBS:
        raise RequestError(
            f"top_logprobs is {body.top_logprobs}; it must be from 0 to {MAX_LOGPROBS}",
            "top_logprobs",
        )


def _earlier(service: Service, response_id: str | None) -> Sequence[Mapping[str, Any]]:
    if response_id is None:
        return ()
    return _stored(service, response_id, "previous_response_id").messages


def _stored(service: Service, response_id: str, param: str | None = None) -> StoredResponse:
    found = service.responses.get(response_id)
    if found is None:
        raise NotFoundError(
            f"the response {response_id[:160]!r} is not kept here; only the latest ones are", param
        )
    return found
