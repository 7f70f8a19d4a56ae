"""The executor's statistics for many askers: one question at a time, none waits for ever."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

from ...runtime.errors import EnginewrightError
from ..client import Client

_LOG = logging.getLogger(__name__)
_ASKS = 8  # in one hang timeout
_LONGEST_PAUSE = 5.0  # seconds between two questions


class StatsProbe:
    """Asks an executor, and knows for how long it has not answered. Used from any thread."""

    def __init__(self, client: Client, hang_timeout: float = 60.0) -> None:
        self._client = client
        self._hang_timeout = hang_timeout
        self._changed = threading.Condition()
        self._asked: float | None = None  # when the question was put that is still open
        self._answers = 0
        self._latest: dict[str, Any] = {}

    @property
    def silent_seconds(self) -> float:
        """For how long the open question has waited; 0 when none is open."""
        asked = self._asked
        return 0.0 if asked is None else time.monotonic() - asked

    @property
    def hung(self) -> bool:
        """Whether the executor has been silent for longer than it may."""
        return self.silent_seconds > self._hang_timeout

    def ask(self, timeout: float) -> dict[str, Any] | None:
        """Return fresh statistics; None if they have not come in time or the executor is gone.

        Blocks. An answer to an earlier question that comes meanwhile counts as fresh.
        """
        with self._changed:
            self.put_question()
            before = self._answers
            if not self._changed.wait_for(lambda: self._answers != before, timeout):
                return None
            return self._latest or None

    async def keep_asking(self) -> None:
        """Ask for ever, often enough that a hang is noticed when it counts as one; say so once."""
        told = False
        while True:
            await asyncio.sleep(min(self._hang_timeout / _ASKS, _LONGEST_PAUSE))
            self.put_question()
            if self.hung and not told:
                _LOG.error(
                    "the executor has not answered for %.0f s (--hang-timeout); /health says 503",
                    self.silent_seconds,
                )
            told = self.hung

    def put_question(self) -> None:
        """Put a question unless one is open; does not wait for its answer."""
        with self._changed:
            if self._asked is None:
                self._asked = time.monotonic()
                threading.Thread(target=self._question, name="stats", daemon=True).start()

    def _question(self) -> None:
        try:
            stats = self._client.stats()
        except EnginewrightError:
            stats = {}
        with self._changed:
            self._latest = stats
            self._asked = None
            self._answers += 1
            self._changed.notify_all()
