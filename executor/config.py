"""What an executor is opened with."""

from __future__ import annotations

from dataclasses import dataclass

from ..runtime.errors import InputError


@dataclass(frozen=True, slots=True)
class ExecutorConfig:
    """Options of one executor process; None leaves a choice to the engine and the machine."""

    threads: int | None = None  # CPU threads of the session
    kv_cache_memory: int | None = None  # bytes for KV blocks
    max_batch_size: int | None = None  # sequences in a step, at most the engine's
    max_num_tokens: int | None = None  # tokens in a step, at most the engine's
    max_queue: int = 1024  # requests that may wait; more are refused

    def __post_init__(self) -> None:
        for name in ("threads", "kv_cache_memory", "max_batch_size", "max_num_tokens", "max_queue"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}, but it must be at least 1.")
