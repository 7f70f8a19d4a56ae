"""Errors as HTTP answers, in OpenAI's nested shape, and in Anthropic's for its endpoints."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ...runtime.errors import EnginewrightError, RequestError
from ..service import service_of

_LOG = logging.getLogger(__name__)
RETRY_AFTER_SECONDS = 1

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
_ANTHROPIC_TYPES = {
    413: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(status: int, message: str, param: str | None, code: str | None) -> dict[str, Any]:
    """Return the nested error object of OpenAI's API."""
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def body_of(error: EnginewrightError) -> dict[str, Any]:
    """Return the error object of one of our errors."""
    return error_body(error.http_status, str(error), getattr(error, "param", None), error.code)


def anthropic_body(body: dict[str, Any], status: int) -> dict[str, Any]:
    """Return an error object as Anthropic's clients look for it: marked, with its own kinds."""
    kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else body["error"]["type"])
    return {"type": "error", "error": {**body["error"], "type": kind}}


def refusal(
    path: str,
    status: int,
    message: str,
    code: str | None,
    headers: dict[str, str] | None = None,
    param: str | None = None,
) -> Response:
    """Return the answer to a request for `path` that goes no further, in the shape it expects."""
    body = error_body(status, message, param, code)
    if path.startswith("/v1/messages"):
        body = anthropic_body(body, status)
    return json_response(body, status, headers)


def json_response(
    content: Any, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Return a JSON response."""
    return Response(orjson.dumps(content), status, headers, media_type="application/json")


async def on_enginewright_error(request: Request, error: Exception) -> Response:
    """Answer one of our errors with its own status."""
    assert isinstance(error, EnginewrightError)
    status = error.http_status
    headers = {"retry-after": str(RETRY_AFTER_SECONDS)} if status in (429, 503) else None
    if status >= 500:
        _LOG.error("%s: %s", error.code, error)
    service_of(request).metrics.refuse(status, error.code)
    if isinstance(error, RequestError) and error.param is not None:
        error.param = getattr(request.state, "field_names", {}).get(error.param, error.param)
    param = getattr(error, "param", None)
    return refusal(request.url.path, status, str(error), error.code, headers, param)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer what the framework refused: unknown routes, wrong methods, bodies too large."""
    assert isinstance(error, HTTPException)
    status = error.status_code
    message = error.detail
    if status == 404:
        message = f"there is nothing at {request.method} {request.url.path}"
    elif status == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        message = f"{request.url.path} does not take {request.method}; use {allowed}"
    code = "content_too_large" if status == 413 else _phrase(status)  # Python's word has changed
    headers = dict(error.headers) if error.headers else None
    service_of(request).metrics.refuse(status, code)
    return refusal(request.url.path, status, message, code, headers)


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase.lower().replace(" ", "_")


async def on_bug(request: Request, error: Exception) -> Response:
    """Answer an error nobody expected, without its traceback; the framework logs that."""
    message = f"the server failed on this request ({type(error).__name__}); see its log"
    service_of(request).metrics.refuse(500, "internal_error")
    return refusal(request.url.path, 500, message, "internal_error")
