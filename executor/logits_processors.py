"""Logits processors: Python callables of the LLM class that change a request's logits.

They travel to the executor process by value, with cloudpickle. Only the program that started that
process can send one: its sockets stand in a private folder, and no HTTP body has such a field.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]
import numpy as np

from ..runtime.errors import RequestError
from ..runtime.session import Float32Array

# Of all tokens so far, prompt and answer, and the logits of the next one, [vocab]. It changes the
# logits in place and returns None, or returns others of the same shape.
LogitsProcessor = Callable[[list[int], Float32Array], Float32Array | None]

_FIELD = "logits_processor"


def dump_processors(given: LogitsProcessor | Sequence[LogitsProcessor]) -> bytes:
    """Return the processors as bytes. Raises RequestError for what cannot be called or sent."""
    processors = [given] if callable(given) else list(given)
    for processor in processors:
        if not callable(processor):
            kind = type(processor).__name__
            raise RequestError(f"{_FIELD} is a {kind}, expected something to call.", _FIELD)
    try:
        return cloudpickle.dumps(processors)  # pyright: ignore[reportUnknownMemberType]
    except Exception as error:  # whatever an object's own pickling raises
        message = f"The logits processor cannot be sent to the executor process: {error!r}"
        raise RequestError(message, _FIELD) from error


class Processors:
    """One request's processors, in the order in which they are applied."""

    def __init__(self, data: bytes) -> None:
        """Load what `dump_processors` made. Raises RequestError."""
        try:
            self._processors = cast(list[LogitsProcessor], cloudpickle.loads(data))
        except Exception as error:
            message = f"The logits processor cannot be loaded in the executor process: {error!r}"
            raise RequestError(message, _FIELD) from error

    def apply(self, tokens: Sequence[int], logits: Float32Array) -> None:
        """Change the logits, [vocab], of the token that follows. Raises RequestError."""
        for processor in self._processors:
            name = getattr(processor, "__name__", type(processor).__name__)
            try:
                changed: Any = processor(list(tokens), logits)
                if changed is not None and changed is not logits:
                    logits[:] = _checked(np.asarray(changed), logits)
            except Exception as error:
                message = f"The logits processor {name} raised {type(error).__name__}: {error}"
                raise RequestError(message, _FIELD) from error


def _checked(changed: Float32Array, logits: Float32Array) -> Float32Array:
    if changed.shape != logits.shape:
        raise ValueError(f"it returned shape {changed.shape}, expected {logits.shape}")
    return changed
