"""What serving needs of an executor; ExecutorClient is one, a test may bring another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ..executor.messages import ExecutorInfo, TokenOutput
from ..executor.sampling import TokenParams


class Client(Protocol):
    """An executor's client; methods may be called from any thread."""

    @property
    def info(self) -> ExecutorInfo:
        """What the executor can hold and runs."""
        ...

    @property
    def alive(self) -> bool:
        """Whether the executor process lives."""
        ...

    def submit(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: TokenParams,
        sink: Callable[[TokenOutput], None],
    ) -> None:
        """Start a request; `sink` gets its outputs on the client's thread."""
        ...

    def abort(self, request_id: str) -> None:
        """End a request; one that is unknown or has ended is left alone."""
        ...

    def stats(self, detail: bool = False, timeout: float | None = None) -> dict[str, Any]:
        """Return the executor's counters, with `detail` its records; blocks until it answers.

        Raises TimeoutError after `timeout` seconds.
        """
        ...

    def shutdown(self) -> None:
        """End the executor process; may be called again."""
        ...
