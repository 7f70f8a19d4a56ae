"""The frame of a streamed chunk, which chat and completions share."""

from __future__ import annotations

from typing import Any

import orjson

from ...runtime.errors import EnginewrightError
from ..generation import Delta
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

    def choice(
        self,
        delta: Delta,
        content: bytes,
        usage: Usage,
        *,
        logprobs: bytes = b"null",
        finish: str | None = None,
        with_ids: bool = False,
        more: bytes = b"",
    ) -> bytes:
        """Return the chunk of one delta: its choice begins with `content` and ends with `more`.

        Those are members of a JSON object, the latter after a comma. `finish` is the API's name of
        the delta's finish reason.
        """
        parts = [b'{"index":%d,' % delta.index, content, b',"logprobs":', logprobs]
        parts += [b',"finish_reason":', orjson.dumps(finish)]
        if delta.finish_reason is not None:
            parts += [b',"stop_reason":', orjson.dumps(delta.stop_reason)]
        if with_ids:
            parts += [b',"token_ids":', orjson.dumps(delta.token_ids)]
        parts += [more, b"}"]
        return self.wrap(b"".join(parts), usage)

    def closing(self, usage: Usage) -> bytes:
        """Return the end of the stream, with the usage if it was asked for."""
        if not (self._at_end or self._always):
            return _DONE
        return self._prefix + b'],"usage":' + orjson.dumps(usage.to_json()) + b"}\n\n" + _DONE

    def failure(self, error: EnginewrightError, _: Usage) -> bytes:
        """Return the end of a stream that failed."""
        return data_event(body_of(error)) + _DONE


class ChunkedShape:
    """What the shapes of chat and of completions have in common: how their streams end."""

    _chunks: Chunks

    def closing(self, usage: Usage) -> bytes:
        """Return the end of the stream."""
        return self._chunks.closing(usage)

    def failure(self, error: EnginewrightError, usage: Usage) -> bytes:
        """Return the end of a stream that failed."""
        return self._chunks.failure(error, usage)
