"""The watchdog: reports a step that takes too long with all stacks, and may end the process."""

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

    A report is written once a step. The process ends, where it shall, because nothing else frees
    the requests of a hung device: its client then answers them within a second, and may start
    another process.
    """

    def __init__(
        self,
        busy_since: Callable[[], float | None],
        end_after: float | None,
        report_after: float | None,
    ) -> None:
        """`busy_since` tells since when the step in progress runs (time.monotonic).

        The others are seconds that a step may take before the process ends, and before its stacks
        are written; None for never.
        """
        self._busy_since = busy_since
        self._end_after = end_after
        self._report_after = report_after
        self._reported: float | None = None  # when the step began that was reported last
        waits = [seconds for seconds in (end_after, report_after) if seconds is not None]
        if waits:
            self._pause = min(waits) / _CHECKS
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(self._pause)
            since = self._busy_since()
            if since is None:
                continue
            taken = time.monotonic() - since
            if self._end_after is not None and taken > self._end_after:
                _report(self._end_after, "--step-timeout", "the process ends")
                os._exit(EXIT_HUNG)
            if self._report_after is not None and taken > self._report_after:
                if self._reported != since:
                    _report(self._report_after, "--hang-timeout", "it is waited for")
                self._reported = since


def _report(seconds: float, option: str, consequence: str) -> None:
    print(
        f"The executor hangs: a step has taken more than {seconds:g} s ({option}). The stacks of "
        f"all threads follow; {consequence}.",
        file=sys.stderr,
        flush=True,
    )
    faulthandler.dump_traceback(sys.stderr, all_threads=True)
