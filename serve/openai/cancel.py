"""`POST /v1/requests/{id}/cancel`: end a request that runs, from anywhere."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ...runtime.errors import NotFoundError
from ..service import service_of
from .bodies import answer_headers
from .errors import json_response

PREFIXES = ("chatcmpl-", "cmpl-", "resp_", "msg_")  # of the ids that answers carry


async def cancel(request: Request) -> Response:
    """Cancel by the request's id or by its answer's; NotFoundError when nothing of it runs."""
    given = request.path_params["request_id"]
    service = service_of(request)
    names = [given, *(given.removeprefix(p) for p in PREFIXES if given.startswith(p))]
    for name in names:
        if service.cancel(name):
            return json_response(
                {"id": given, "object": "request", "cancelled": True},
                headers=answer_headers(request),
            )
    raise NotFoundError(f"no request {given[:160]!r} runs here", None)
