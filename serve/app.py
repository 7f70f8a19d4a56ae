"""The HTTP application: routes over one Service."""

from __future__ import annotations

import asyncio

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..runtime.errors import EnginewrightError
from ..runtime.version import VERSION
from .openai.chat import chat_completions
from .openai.completions import completions
from .openai.errors import error_body, json_response, on_bug, on_enginewright_error, on_http_error
from .openai.models import get_model, list_models
from .service import Service, service_of


def create_app(service: Service) -> Starlette:
    """Return the ASGI application that serves `service`; it does not own the client."""
    app = Starlette(
        routes=[
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
            Route("/v1/models", list_models),
            Route("/v1/models/{name:path}", get_model),
            Route("/health", health),
            Route("/version", version),
            Route("/metrics", metrics),
        ],
        exception_handlers={
            EnginewrightError: on_enginewright_error,
            HTTPException: on_http_error,
            Exception: on_bug,
        },
    )
    app.state.service = service
    return app


async def health(request: Request) -> Response:
    """Answer 200 while the executor process lives, 503 after its end."""
    if service_of(request).client.alive:
        return json_response({"status": "ok"})
    message = "the executor process has ended; restart the server"
    return json_response(error_body(503, message, None, "executor_died"), 503)


async def version(_: Request) -> Response:
    """Answer the version of enginewright."""
    return json_response({"version": VERSION})


async def metrics(request: Request) -> Response:
    """Answer the metrics in Prometheus' text format."""
    text = await asyncio.to_thread(service_of(request).metrics.render)
    return Response(text, media_type=CONTENT_TYPE_LATEST)
