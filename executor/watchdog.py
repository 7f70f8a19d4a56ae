"""The watchdog: a step that takes too long ends the process, with all its stacks in the log."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable

EXIT_HUNG = 75  # exit code of a process that its watchdog has ended
_CHECKS = 8  # in one timeout


class Watchdog:
    """A thread that looks at the loop; a device that hangs keeps the loop's own thread waiting.

    The process ends because nothing else frees the requests of a hung device: its client then
    answers them within a second, and may start another process.
    """

    def __init__(self, timeout: float, busy_since: Callable[[], float | None]) -> None:
        """`busy_since` tells since when the step in progress runs (time.monotonic)."""
        self._timeout = timeout
        self._busy_since = busy_since
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(self._timeout / _CHECKS)
            since = self._busy_since()
            if since is None or time.monotonic() - since <= self._timeout:
                continue
            print(
                f"The executor hangs: a step has taken more than {self._timeout:g} s "
                "(--step-timeout). The stacks of all threads follow; the process ends.",
                file=sys.stderr,
                flush=True,
            )
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
            os._exit(EXIT_HUNG)
