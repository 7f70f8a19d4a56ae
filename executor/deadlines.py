"""Which requests run out of time, and when."""

from __future__ import annotations

import heapq

from ..runtime.errors import DeadlineExceededError, EnginewrightError, QueueTimeoutError
from .request import Request, RequestStatus


class Deadlines:
    """Holds the deadlines of requests; those of ended requests are passed over when they come."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, bool, Request]] = []

    def add(self, request: Request) -> None:
        """Remember the deadlines of a request, if it has any."""
        params, arrived = request.params, request.arrived
        if params.queue_timeout is not None:
            entry = (arrived + params.queue_timeout, request.number, False, request)
            heapq.heappush(self._heap, entry)
        if params.deadline is not None:
            heapq.heappush(self._heap, (arrived + params.deadline, request.number, True, request))

    def expired(self, now: float) -> list[tuple[Request, EnginewrightError]]:
        """Return the requests that are out of time, each once with the reason, and forget them."""
        found: dict[int, tuple[Request, EnginewrightError]] = {}
        while self._heap and self._heap[0][0] <= now:
            _, number, is_whole, request = heapq.heappop(self._heap)
            waited, params = now - request.arrived, request.params
            if request.ended >= 0:
                continue
            if is_whole:
                made = len(request.tokens) - request.prompt_tokens
                found[number] = (
                    request,
                    DeadlineExceededError(
                        f"The request's deadline of {params.deadline:g} s has passed after "
                        f"{waited:.3g} s, with {made} of at most {request.max_new_tokens} tokens; "
                        "ask for less or give it more time."
                    ),
                )
            elif request.status is RequestStatus.WAITING and request.started < 0:
                found.setdefault(
                    number,
                    (
                        request,
                        QueueTimeoutError(
                            f"The request waited {waited:.3g} s and its queue_timeout is "
                            f"{params.queue_timeout:g} s; try again later."
                        ),
                    ),
                )
        return list(found.values())
