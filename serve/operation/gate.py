"""The gate before the application: keys, their limits, and no new work while the server drains."""

from __future__ import annotations

import time

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ..dashboard.routes import STATIC_PATHS
from ..openai.errors import RETRY_AFTER_SECONDS, refusal
from ..service import Service
from .key_limits import KeyLimiter
from .keys import KeyRing, KeyRule, key_of
from .request_record import current_record

# What a probe or a browser's first visit needs; nothing in them is secret.
OPEN_PATHS = frozenset({"/health", "/health/ready"}) | STATIC_PATHS


class Gate:
    """Lets a request through to the application, or answers it."""

    def __init__(self, app: ASGIApp, service: Service, ring: KeyRing) -> None:
        self._app = app
        self._service = service
        self._ring = ring
        self._limiter = KeyLimiter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection of the server."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        rule = None
        if self._ring:
            rule = self._rule_of(connection)
            if rule is None:
                await self._refuse_key(connection)(scope, receive, send)
                return
        if scope["method"] != "POST":  # looking is free
            await self._app(scope, receive, send)
            return
        refused = self._enter(scope["path"], rule)
        if refused is not None:
            await refused(scope, receive, send)
            return
        self._service.traffic.in_flight += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._service.traffic.in_flight -= 1
            if rule is not None:
                self._limiter.leave(rule)

    def _rule_of(self, connection: HTTPConnection) -> KeyRule | None:
        key = key_of(connection)
        rule = None if key is None else self._ring.find(key)
        record = current_record.get()
        if rule is not None and record is not None:
            record.key_name = rule.name
        return rule

    def _enter(self, path: str, rule: KeyRule | None) -> Response | None:
        """Count a request in, or return the answer that refuses it."""
        if self._service.traffic.draining:
            message = "the server is stopping; try again elsewhere"
            headers = {"retry-after": str(RETRY_AFTER_SECONDS), "connection": "close"}
            return self._refuse(path, 503, message, "server_stopping", headers)
        wait = 0 if rule is None else self._limiter.enter(rule, time.monotonic())
        if wait:
            message = f"this key has used up its limit; try again in {wait} s"
            headers = {"retry-after": str(wait)}
            return self._refuse(path, 429, message, "rate_limit_exceeded", headers)
        return None

    def _refuse_key(self, connection: HTTPConnection) -> Response:
        message = "the API key is not known here; check it"
        if key_of(connection) is None:
            message = "this server needs an API key; send `Authorization: Bearer KEY`"
        headers = {"www-authenticate": "Bearer"}
        return self._refuse(connection.url.path, 401, message, "invalid_api_key", headers)

    def _refuse(
        self, path: str, status: int, message: str, code: str, headers: dict[str, str]
    ) -> Response:
        self._service.metrics.refuse(status, code)
        return refusal(path, status, message, code, headers)
