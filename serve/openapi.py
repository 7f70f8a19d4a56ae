"""`/openapi.json`: the API described, from the same table and types that serve it."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..runtime.version import VERSION
from .endpoints import ENDPOINTS, Endpoint
from .openai.answers import Error
from .openai.errors import json_response

# Errors that any endpoint with a body may answer; the others have their own short lists.
_ERRORS = {
    400: "A field is wrong, or the prompt is too long; `param` names the field.",
    401: "The API key is missing or wrong.",
    404: "The model, response or request is not here.",
    408: "The request waited for its start longer than its queue_timeout.",
    413: "The body is too large.",
    429: "The queue is full or the key's limit is used up; see Retry-After.",
    500: "This request failed; others are not hurt.",
    503: "The server is stopping or its executor has ended; see Retry-After.",
    504: "The request's own deadline has passed.",
}
_WITHOUT_BODY = (401, 404, 429, 500, 503)


async def openapi(_: Request) -> Response:
    """Answer the description."""
    return json_response(describe())


@cache
def describe() -> dict[str, Any]:
    """Return the OpenAPI 3.1 description of the API."""
    bodies = [one.body for one in ENDPOINTS if one.body is not None]
    answers = [one.answer for one in ENDPOINTS if one.answer is not None]
    types = [*dict.fromkeys([*bodies, *answers, Error])]
    _, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        path = paths.setdefault(endpoint.public_path, {})
        path[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "enginewright",
            "version": VERSION,
            "description": "A compiled language model behind OpenAI's and Anthropic's APIs.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    errors = _ERRORS if endpoint.body is not None else {s: _ERRORS[s] for s in _WITHOUT_BODY}
    responses: dict[str, Any] = {
        str(status): {
            "description": text,
            "content": {"application/json": {"schema": _reference(Error)}},
        }
        for status, text in errors.items()
    }
    if endpoint.answer is not None:
        content: dict[str, Any] = {"application/json": {"schema": _reference(endpoint.answer)}}
        if endpoint.streams:
            content["text/event-stream"] = {}
        responses["200"] = {"description": "The answer.", "content": content}
    operation: dict[str, Any] = {
        "operationId": endpoint.handler.__name__,
        "summary": endpoint.summary,
        "responses": dict(sorted(responses.items())),
    }
    if endpoint.body is not None:
        schema = _reference(endpoint.body)
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    names = re.findall(r"{(\w+)}", endpoint.public_path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    return operation


def _reference(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
