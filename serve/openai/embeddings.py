"""`/v1/embeddings`: refused, since no engine gives embeddings."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ...runtime.errors import RequestError
from ..service import service_of
from .bodies import read_request


class EmbeddingsRequest(msgspec.Struct, kw_only=True):
    """Body of `/v1/embeddings`."""

    input: str | list[Any]
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    user: Any = None


async def embeddings(request: Request) -> Response:
    """Refuse with one sentence; a wrong body and a wrong model are named first."""
    service = service_of(request)
    body = await read_request(request, EmbeddingsRequest)
    service.check_model(body.model)
    raise RequestError(
        f"the engine {service.model_name!r} was built to write text and gives no embeddings; "
        "use a server for embedding models",
        "model",
    )
