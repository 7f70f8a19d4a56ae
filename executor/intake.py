"""Requests on their way to the scheduler: what needs preparing waits here until that is done."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..runtime.errors import EnginewrightError, OverloadedError, RequestError
from .guided import Compiler, Grammar
from .messages import Submit

if TYPE_CHECKING:
    from .logits_processors import Processors

POLL_SECONDS = 0.001  # how often an executor that has nothing else to do looks


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that may go to the scheduler, or the reason why it may not."""

    command: Submit
    grammar: Grammar | None = None
    processors: Processors | None = None
    error: EnginewrightError | None = None


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request, and what is made for it on other threads."""

    command: Submit
    grammar: Future[Grammar] | None
    processors: Future[Processors] | None

    @property
    def futures(self) -> list[Future[Grammar] | Future[Processors]]:
        """Return what it waits for."""
        return [future for future in (self.grammar, self.processors) if future is not None]


class Intake:
    """Compiles grammars and loads logits processors away from the loop.

    `compiler` is None where there is no tokenizer.
    """

    def __init__(self, compiler: Compiler | None, max_waiting: int) -> None:
        self._compiler = compiler
        self._max_waiting = max_waiting
        self._loader: ThreadPoolExecutor | None = None  # of processors, when the first comes
        self._waiting: dict[str, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, command: Submit) -> Arrival | None:
        """Take in a request; None when it has to wait here."""
        if command.request_id in self._waiting:
            message = f"Request id {command.request_id!r} is in use; choose another."
            return Arrival(command, error=RequestError(message, "request_id"))
        guided, processors = command.params.guided, command.params.logits_processor
        if guided is None and processors is None:
            return Arrival(command)
        if guided is not None and self._compiler is None:
            message = "This executor has no tokenizer, so answers cannot be guided."
            return Arrival(command, error=RequestError(message, "guided"))
        if len(self._waiting) >= self._max_waiting:
            message = f"{len(self._waiting)} requests are being prepared; try again later."
            return Arrival(command, error=OverloadedError(message))
        grammar = None
        if guided is not None and self._compiler is not None:
            grammar = self._compiler.compile(guided)
        loading = None if processors is None else self._load(processors)
        self._waiting[command.request_id] = _Waiting(command, grammar, loading)
        return None

    def prepared(self) -> list[Arrival]:
        """Return the requests that need not wait any more, in order of arrival."""
        done = [one for one in self._waiting.values() if all(f.done() for f in one.futures)]
        for one in done:
            del self._waiting[one.command.request_id]
        return [_arrival(one) for one in done]

    def abort(self, request_id: str) -> bool:
        """Forget a request; False if it does not wait here."""
        found = self._waiting.pop(request_id, None)
        if found is not None:
            for future in found.futures:
                future.cancel()
        return found is not None

    def abort_all(self) -> list[str]:
        """Forget every request and end the compiler; return their ids."""
        ids = list(self._waiting)
        for request_id in ids:
            self.abort(request_id)
        if self._compiler is not None:
            self._compiler.close()
        if self._loader is not None:
            self._loader.shutdown(wait=False, cancel_futures=True)
        return ids

    def _load(self, data: bytes) -> Future[Processors]:
        """Load processors on a thread: what they import may take a while."""
        from .logits_processors import Processors

        if self._loader is None:
            self._loader = ThreadPoolExecutor(1, "processor loader")
        return self._loader.submit(Processors, data)


def _arrival(one: _Waiting) -> Arrival:
    command = one.command
    try:
        grammar = None if one.grammar is None else one.grammar.result()
        processors = None if one.processors is None else one.processors.result()
        return Arrival(command, grammar, processors)
    except EnginewrightError as error:
        return Arrival(command, error=error)
    except Exception as error:  # a compiler that fails must not take the loop with it
        message = f"The grammar cannot be compiled: {type(error).__name__}: {error}"
        return Arrival(command, error=RequestError(message, "guided"))
