"""`/v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ...executor.sampling import SamplingParams
from ...runtime.errors import RequestError
from ..openai.bodies import (
    answer_headers,
    object_id,
    read_generation_request,
    read_request,
    request_id,
)
from ..openai.errors import json_response
from ..openai.streaming import answer
from ..service import service_of
from .shape import MessageShape
from .types import CountTokensRequest, MessagesRequest


async def create_message(request: Request) -> Response:
    """Answer one request for a message."""
    service = service_of(request)
    body = await read_generation_request(request, MessagesRequest)
    if body.n not in (None, 1):
        raise RequestError(f"n is {body.n}; a message has one answer", "n")
    if body.stop_sequences and body.stop:
        raise RequestError("stop and stop_sequences say the same; give one", "stop")
    body.stop = body.stop_sequences or body.stop
    params = body.sampling(service.tokenizer.sampling_defaults, body.max_tokens, None)
    prompt = service.dialect.prompt(body.conversation(), params)
    ids = await service.encode(prompt.text, add_special_tokens=False)
    generation = service.generation([ids], prompt.params, request_id(request))
    shape = MessageShape(object_id(request, "msg_"), service.model_name, prompt.parser())
    return await answer(request, generation, shape, stream=bool(body.stream))


async def count_tokens(request: Request) -> Response:
    """Answer how many tokens a message's prompt has."""
    service = service_of(request)
    body = await read_request(request, CountTokensRequest)
    service.check_model(body.model)
    prompt = service.dialect.prompt(body.conversation(), SamplingParams())
    ids = await service.encode(prompt.text, add_special_tokens=False)
    return json_response({"input_tokens": len(ids)}, headers=answer_headers(request))
