"""The layers around the application: request log, origins, gate."""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from ..service import Service
from .config import ServeConfig
from .gate import Gate
from .keys import KeyRing
from .request_log import Listener, RequestLog


def with_layers(
    app: ASGIApp,
    service: Service,
    config: ServeConfig,
    ring: KeyRing,
    listener: Listener | None = None,
) -> ASGIApp:
    """Return the application behind its gate; `listener` hears of every request that has ended."""
    app = Gate(app, service, ring)
    if config.cors_origin:
        app = CORSMiddleware(
            app,
            allow_origins=config.cors_origin,
            allow_credentials=config.cors_credentials,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    return RequestLog(app, service.traffic, listener)
