"""Requests on their way to the scheduler: one with a grammar waits here until it is compiled."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from ..runtime.errors import EnginewrightError, OverloadedError, RequestError
from .guided import Compiler, Grammar
from .messages import Submit

POLL_SECONDS = 0.001  # how often an executor that only waits for grammars looks


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that may go to the scheduler, or the reason why it may not."""

    command: Submit
    grammar: Grammar | None = None
    error: EnginewrightError | None = None


class Intake:
    """Compiles grammars away from the loop; `compiler` is None where there is no tokenizer."""

    def __init__(self, compiler: Compiler | None, max_waiting: int) -> None:
        self._compiler = compiler
        self._max_waiting = max_waiting
        self._waiting: dict[str, tuple[Submit, Future[Grammar]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, command: Submit) -> Arrival | None:
        """Take in a request; None when it waits for its grammar."""
        if command.request_id in self._waiting:
            message = f"Request id {command.request_id!r} is in use; choose another."
            return Arrival(command, error=RequestError(message, "request_id"))
        guided = command.params.guided
        if guided is None:
            return Arrival(command)
        if self._compiler is None:
            message = "This executor has no tokenizer, so answers cannot be guided."
            return Arrival(command, error=RequestError(message, "guided"))
        if len(self._waiting) >= self._max_waiting:
            message = f"{len(self._waiting)} grammars wait to be compiled; try again later."
            return Arrival(command, error=OverloadedError(message))
        self._waiting[command.request_id] = (command, self._compiler.compile(guided))
        return None

    def compiled(self) -> list[Arrival]:
        """Return the requests whose grammars are done, in order of arrival."""
        done = [one for one in self._waiting.values() if one[1].done()]
        for command, _ in done:
            del self._waiting[command.request_id]
        return [_arrival(command, future) for command, future in done]

    def abort(self, request_id: str) -> bool:
        """Forget a request; False if it does not wait here."""
        found = self._waiting.pop(request_id, None)
        if found is not None:
            found[1].cancel()
        return found is not None

    def abort_all(self) -> list[str]:
        """Forget every request and end the compiler; return their ids."""
        ids = list(self._waiting)
        for request_id in ids:
            self.abort(request_id)
        if self._compiler is not None:
            self._compiler.close()
        return ids


def _arrival(command: Submit, future: Future[Grammar]) -> Arrival:
    try:
        return Arrival(command, future.result())
    except EnginewrightError as error:
        return Arrival(command, error=error)
    except Exception as error:  # a compiler that fails must not take the loop with it
        message = f"The grammar cannot be compiled: {type(error).__name__}: {error}"
        return Arrival(command, error=RequestError(message, "guided"))
