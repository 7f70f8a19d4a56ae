"""What is known of one HTTP request, from its arrival to its end."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

MAX_ID_LENGTH = 128

current_record: ContextVar[RequestRecord | None] = ContextVar("current_record", default=None)


@dataclass(slots=True)
class RequestRecord:
    """Filled by whoever learns something; read by logs, traces and the page. Seconds everywhere."""

    request_id: str
    method: str
    path: str
    client: str = ""
    key_name: str = ""
    trace_parent: str = ""  # W3C's traceparent, as the client sent it
    arrived: float = field(default_factory=time.time)
    begun: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0  # until the last byte was handed to the socket
    status: int = 0
    error: str = ""  # code and message of the answer's error
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    queue_seconds: float | None = None
    first_token_seconds: float | None = None  # from arrival
    last_token_seconds: float | None = None  # from arrival
    finish_reason: str = ""

    @property
    def per_token_seconds(self) -> float | None:
        """Mean time of a token after the first."""
        if self.generation_tokens < 2 or self.first_token_seconds is None:
            return None
        assert self.last_token_seconds is not None
        elapsed = self.last_token_seconds - self.first_token_seconds
        return elapsed / (self.generation_tokens - 1)

    def facts(self) -> dict[str, Any]:
        """Return what a log line says; what is not known is left out."""
        values = {
            "request_id": self.request_id,
            "client": self.client,
            "key": self.key_name,
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "seconds": round(self.seconds, 6),
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "generation_tokens": self.generation_tokens,
            "queue_seconds": _rounded(self.queue_seconds),
            "first_token_seconds": _rounded(self.first_token_seconds),
            "finish_reason": self.finish_reason,
            "error": self.error,
        }
        return {name: value for name, value in values.items() if value not in ("", None, 0)}


def request_id_of(headers: Mapping[str, str]) -> str:
    """Return the id that a client gave in `x-request-id`, if it is printable, or a new one."""
    given = headers.get("x-request-id", "")
    if 0 < len(given) <= MAX_ID_LENGTH and given.isascii() and given.isprintable():
        return given
    return uuid.uuid4().hex


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
