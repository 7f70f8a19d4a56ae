"""The frame of a streamed chunk, which chat and completions share."""

from __future__ import annotations

from typing import Any

import orjson

from ...runtime.errors import EnginewrightError
from .errors import body_of
from .streaming import Usage, data_event
from .types import SamplingFields

_DONE = b"data: [DONE]\n\n"


class Chunks:
    """Puts choices into chunks; what does not change between chunks is encoded once."""

    def __init__(self, head: dict[str, Any], body: SamplingFields) -> None:
        self._prefix = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['
        self._at_end = body.include_usage
        self._always = body.usage_in_every_event

    def wrap(self, choice: bytes, usage: Usage, extra: bytes = b"") -> bytes:
        """Return the chunk of one choice, a JSON object; `extra` are more members of the chunk."""
        if self._always:
            extra += b',"usage":' + orjson.dumps(usage.to_json())
        elif self._at_end:
            extra += b',"usage":null'
        return self._prefix + choice + b"]" + extra + b"}\n\n"

    def closing(self, usage: Usage) -> bytes:
        """Return the end of the stream, with the usage if it was asked for."""
        if not (self._at_end or self._always):
            return _DONE
        return self._prefix + b'],"usage":' + orjson.dumps(usage.to_json()) + b"}\n\n" + _DONE

    def failure(self, error: EnginewrightError, _: Usage) -> bytes:
        """Return the end of a stream that failed."""
        return data_event(body_of(error)) + _DONE
