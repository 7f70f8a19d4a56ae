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
from .dashboard.routes import DASHBOARD_ROUTES
from .endpoints import api_routes
from .openai.errors import json_response, on_bug, on_enginewright_error, on_http_error
from .openapi import openapi
from .operation.health import HEALTH_ROUTES
from .service import Service, service_of


def create_app(service: Service, dashboard: bool = True) -> Starlette:
    """Return the ASGI application that serves `service`; it does not own the client."""
    app = Starlette(
        routes=[
            *api_routes(),
            Route("/openapi.json", openapi),
            *HEALTH_ROUTES,
            *(DASHBOARD_ROUTES if dashboard else ()),
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


async def version(_: Request) -> Response:
    """Answer the version of enginewright."""
    return json_response({"version": VERSION})


async def metrics(request: Request) -> Response:
    """Answer the metrics in Prometheus' text format."""
    text = await asyncio.to_thread(service_of(request).metrics.render)
    return Response(text, media_type=CONTENT_TYPE_LATEST)
