"""A request's body, read and checked; its id; and what its answer must remark on."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request

from ...executor.sampling import check_task
from ...runtime.errors import RequestError
from ..operation.request_record import current_record, request_id_of
from ..service import service_of
from .types import RequestFields, decode_body, unknown_fields

WARNING_HEADER = "x-enginewright-warning"
ID_HEADER = "x-request-id"
_MAX_NAMED = 8  # unknown fields that a warning names

_Body = TypeVar("_Body", bound=msgspec.Struct)
_Fields = TypeVar("_Fields", bound=RequestFields)


async def read_request(request: Request, kind: type[_Body]) -> _Body:
    """Return the request's checked body.

    Fields that `kind` does not have are remarked on, or refused by a strict server. Raises
    RequestError; HTTPException with 413 for a body that is too large.
    """
    service = service_of(request)
    raw = await read_body(request, service.max_body_bytes)
    body = decode_body(raw, kind)
    request.state.field_names = _names_of(body)
    unknown = unknown_fields(raw, kind)
    if unknown:
        names = ", ".join(name[:40] for name in unknown[:_MAX_NAMED])
        if service.strict:
            raise RequestError(f"the request has fields that do not exist: {names}", unknown[0])
        remark(request, f"ignored unknown fields: {names}")
    return body


async def read_generation_request(request: Request, kind: type[_Fields]) -> _Fields:
    """Return the body of a request for an answer, for the served model; takes its id over."""
    body = await read_request(request, kind)
    service = service_of(request)
    service.check_model(body.model)
    check_task(False, service.embeds)
    request.state.field_names["guided"] = body.guided_field()
    if body.request_id is not None:
        request.state.request_id = body.request_id
        if (record := current_record.get()) is not None:
            record.request_id = body.request_id
    return body


def _names_of(body: msgspec.Struct) -> dict[str, str]:
    """Return what a body calls the fields that errors from further down may name."""
    fields = body.__struct_fields__
    names: dict[str, str] = {}
    for own in ("input", "messages"):
        if own in fields:
            names["messages"] = own
            if getattr(body, "prompt", None) is None:  # else that field is meant
                names["prompt"] = own
            break
    if "max_output_tokens" in fields:
        names["max_tokens"] = "max_output_tokens"
    return names


async def read_body(request: Request, limit: int) -> bytes:
    """Return the request's body; more than `limit` bytes are refused with 413."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise HTTPException(413, f"the request body is larger than {limit} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def request_id(request: Request) -> str:
    """Return the request's id: the body's, the header's, or a new one."""
    if getattr(request.state, "request_id", None) is None:
        request.state.request_id = request_id_of(request.headers)
    return request.state.request_id


def object_id(request: Request, prefix: str) -> str:
    """Return the id of the answer's object: the prefix and the request's id.

    The object's id names the request where it is cancelled.
    """
    return f"{prefix}{request_id(request)}"


def remark(request: Request, text: str) -> None:
    """Put a remark into the warning header of the answer."""
    remarks = getattr(request.state, "remarks", [])
    request.state.remarks = [*remarks, text]


def answer_headers(request: Request) -> dict[str, str]:
    """Return the headers of every answer: the request's id and the remarks."""
    headers = {ID_HEADER: request_id(request)}
    if remarks := getattr(request.state, "remarks", None):
        text = "; ".join(remarks).encode("ascii", "replace").decode()
        headers[WARNING_HEADER] = "".join(c if c.isprintable() else "?" for c in text)
    return headers
