"""Forks: a child process inherits sockets and an executor that are its parent's, and no threads."""

from __future__ import annotations

import os

from ..runtime.errors import ForkedProcessError


class ForkGuard:
    """Remembers the process it was made in."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def inherited(self) -> bool:
        """Whether this process is a fork of the one it was made in."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Raise ForkedProcessError in a fork."""
        if self.inherited:
            raise ForkedProcessError(
                f"The engine was opened in process {self._pid}, and this is a fork of it, which "
                "cannot use it; open the engine in this process, or start it with "
                'multiprocessing\'s "spawn".'
            )
