"""The requests that are being answered now, and those that were answered lately."""

from __future__ import annotations

import time
from collections import deque

from .request_record import RequestRecord

_KEPT_ANSWERS = 1000
_KEPT_ERRORS = 50


class Traffic:
    """Owned by the service, written by the request log; used from one event loop."""

    def __init__(self) -> None:
        self.draining = False  # no new work is taken
        self.in_flight = 0  # requests that do work, as opposed to looking
        self._answers: deque[RequestRecord] = deque(maxlen=_KEPT_ANSWERS)
        self._errors: deque[RequestRecord] = deque(maxlen=_KEPT_ERRORS)

    def add(self, record: RequestRecord) -> None:
        """Remember a request that has ended."""
        if record.generation_tokens:
            self._answers.append(record)
        if record.error or record.status >= 500:
            self._errors.append(record)

    def answers(self, seconds: float) -> list[RequestRecord]:
        """Return the answers that arrived in the last `seconds`, oldest first."""
        since = time.time() - seconds
        return [record for record in self._answers if record.arrived >= since]

    def errors(self) -> list[RequestRecord]:
        """Return the latest requests that failed, newest first."""
        return list(reversed(self._errors))
