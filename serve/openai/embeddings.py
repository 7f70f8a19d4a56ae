"""`/v1/embeddings`: texts in, one vector each out, from an engine that was built for it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ...executor.messages import floats_of
from ...executor.sampling import SamplingParams, check_task
from ...runtime.errors import RequestError
from ..service import Service, service_of
from .bodies import answer_headers, read_request, request_id
from .completions import read_prompts
from .errors import json_response
from .streaming import CLIENT_CLOSED_REQUEST, abort_on_disconnect

MAX_INPUTS = 2048
_AT_ONCE = 32  # texts of one request that are with the executor at a time, so that others pass


class EmbeddingsRequest(msgspec.Struct, kw_only=True):
    """Body of `/v1/embeddings`."""

    input: str | list[Any]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    add_special_tokens: bool | None = None
    user: Any = None


async def embeddings(request: Request) -> Response:
    """Answer one vector a text; a client that goes away ends the work."""
    service = service_of(request)
    body = await read_request(request, EmbeddingsRequest)
    service.check_model(body.model)
    check_task(True, service.embeds)
    size = service.client.info.embedding_size
    if body.dimensions not in (None, size):
        raise RequestError(
            f"dimensions is {body.dimensions}, but the model's vectors have {size} numbers; leave "
            "it out",
            "dimensions",
        )
    texts = read_prompts(body.input, "input")
    if len(texts) > MAX_INPUTS:
        raise RequestError(
            f"input has {len(texts)} texts; give at most {MAX_INPUTS} at once", "input"
        )
    prompts = [
        await service.encode(text, body.add_special_tokens is not False)
        if isinstance(text, str)
        else text
        for text in texts
    ]
    vectors: list[bytes] = []
    for start in range(0, len(prompts), _AT_ONCE):
        found = await _embed(request, service, prompts[start : start + _AT_ONCE])
        if found is None:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        vectors += found
    tokens = sum(map(len, prompts))
    answer = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _numbers(vector, body)}
            for index, vector in enumerate(vectors)
        ],
        "model": service.model_name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return json_response(answer, headers=answer_headers(request))


async def _embed(
    request: Request, service: Service, prompts: Sequence[Sequence[int]]
) -> list[bytes] | None:
    """Return the vectors of some prompts; None when the client has gone."""
    generation = service.generation(prompts, SamplingParams(), request_id(request), embeds=True)
    vectors = [b""] * len(prompts)
    try:
        async with abort_on_disconnect(request.receive, generation.abort) as gone:
            await generation.start()
            async for deltas in generation.batches():
                for delta in deltas:
                    if delta.embedding is not None:
                        vectors[delta.index] = delta.embedding
        return None if gone.is_set() else vectors
    finally:
        generation.abort()


def _numbers(vector: bytes, body: EmbeddingsRequest) -> list[float] | str:
    if body.encoding_format == "base64":
        return base64.b64encode(vector).decode()
    return floats_of(vector)
