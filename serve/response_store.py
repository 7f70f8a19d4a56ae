"""Answers of `/v1/responses` that clients may ask for again; bounded, in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

MAX_RESPONSES = 1000
MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One answer, and the conversation that led to it and holds it, as templates take it."""

    body: Mapping[str, Any]
    messages: tuple[Mapping[str, Any], ...]


class ResponseStore:
    """Keeps the latest answers, by id; the one that was not used for longest goes first."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._stored: OrderedDict[str, tuple[StoredResponse, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, response_id: str, response: StoredResponse) -> None:
        """Keep an answer, in the place of another one of its id; one that is too large is not."""
        self.remove(response_id)
        size = len(orjson.dumps([response.body, response.messages]))
        if size > self._max_bytes:
            return
        self._stored[response_id] = (response, size)
        self._bytes += size
        while len(self._stored) > self._max_responses or self._bytes > self._max_bytes:
            self.remove(next(iter(self._stored)))

    def get(self, response_id: str) -> StoredResponse | None:
        """Return an answer, if it is kept."""
        found = self._stored.get(response_id)
        if found is None:
            return None
        self._stored.move_to_end(response_id)
        return found[0]

    def remove(self, response_id: str) -> bool:
        """Forget an answer; return whether there was one."""
        found = self._stored.pop(response_id, None)
        if found is None:
            return False
        self._bytes -= found[1]
        return True
