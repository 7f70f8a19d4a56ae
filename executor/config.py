"""What an executor is opened with."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..runtime.errors import InputError
from ..runtime.numa import NUMA_MODES, NumaMode
from .chunks import ChunkPolicyName
from .policies import PolicyName

DEFAULT_DISK_BYTES = 8 << 30


@dataclass(frozen=True, slots=True)
class ExecutorConfig:
    """Options of one executor process; None leaves a choice to the engine and the machine."""

    threads: int | None = None  # CPU threads of the session
    numa: NumaMode | None = None  # where a CPU engine's weights are, on several memory nodes
    kv_cache_memory: int | None = None  # bytes for KV blocks
    max_batch_size: int | None = None  # sequences in a step, at most the engine's
    max_num_tokens: int | None = None  # tokens in a step, at most the engine's
    max_queue: int = 1024  # requests that may wait; more are refused
    max_queue_tokens: int | None = None  # prompt tokens that may wait
    capacity_policy: PolicyName = "guaranteed_no_evict"
    chunk_policy: ChunkPolicyName = "first_come_first_served"
    itl_target_ms: float | None = None  # milliseconds from token to token that prompts leave
    tenant_weights: dict[str, float] = field(default_factory=dict[str, float])  # others have 1
    overlap: bool = True  # launch a step before the tokens of the one before are known
    hang_timeout: float | None = None  # seconds that a step may take before the process ends
    report_timeout: float | None = None  # and before the stacks of all threads are written
    speculative: str | None = None  # "ngram", or the folder of a draft engine
    draft_tokens: int = 4  # guesses of one sequence in one step, at most
    kv_cache_disk: str | None = None  # folder that keeps KV blocks beyond memory and restarts
    kv_cache_disk_size: int = DEFAULT_DISK_BYTES  # bytes of its files, at most

    def __post_init__(self) -> None:
        for name in (
            "threads",
            "kv_cache_memory",
            "max_batch_size",
            "max_num_tokens",
            "max_queue",
            "max_queue_tokens",
            "draft_tokens",
            "kv_cache_disk_size",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}, but it must be at least 1.")
        if self.numa not in (None, *NUMA_MODES):
            raise InputError(f"numa is {self.numa!r}; expected one of {', '.join(NUMA_MODES)}.")
        for name in ("itl_target_ms", "hang_timeout", "report_timeout"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InputError(f"{name} is {value}, but it must be above 0.")
        for tenant, weight in self.tenant_weights.items():
            if weight <= 0:
                raise InputError(f"the weight of tenant {tenant!r} is {weight}; give one above 0.")
