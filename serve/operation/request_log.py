"""One line a request: the outermost layer, which knows when a request came and how it ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import orjson
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .logs import FACTS
from .request_record import RequestRecord, current_record, request_id_of
from .traffic import Traffic

_LOG = logging.getLogger("enginewright.requests")
_ID_HEADER = "x-request-id"

Listener = Callable[[RequestRecord], None]


class RequestLog:
    """Gives each request an id and a record, and hands the record on when it has ended."""

    def __init__(self, app: ASGIApp, traffic: Traffic, listener: Listener | None = None) -> None:
        self._app = app
        self._traffic = traffic
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection of the server."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        client = scope.get("client")
        record = RequestRecord(
            request_id_of(headers),
            scope["method"],
            scope["path"],
            client=client[0] if client else "",
            trace_parent=headers.get("traceparent", ""),
        )
        scope.setdefault("state", {})["request_id"] = record.request_id

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                answer = MutableHeaders(scope=message)
                answer.setdefault(_ID_HEADER, record.request_id)
            elif record.status >= 400 and not record.error:
                record.error = _error_of(message.get("body", b""))
            await send(message)

        token = current_record.set(record)
        try:
            await self._app(scope, receive, watch)
        finally:
            current_record.reset(token)
            self._end(record)

    def _end(self, record: RequestRecord) -> None:
        record.seconds = time.perf_counter() - record.begun
        self._traffic.add(record)
        level = logging.INFO if record.method == "POST" else logging.DEBUG
        level = logging.WARNING if record.status >= 500 else level
        if _LOG.isEnabledFor(level):
            _LOG.log(level, "request", extra={FACTS: record.facts()})
        if self._listener is not None:
            self._listener(record)


def _error_of(body: bytes) -> str:
    """Return code and message of an error answer, as far as it has our shape."""
    try:
        error = orjson.loads(body)["error"]
        return f"{error.get('code') or error.get('type')}: {error['message']}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
