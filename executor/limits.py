"""What the scheduler keeps to: limits of steps, sequences and queue, and the rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .chunks import ChunkPolicyName
from .policies import PolicyName


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What steps, sequences and the queue may hold, and by which rules."""

    max_batch_size: int  # sequences in a step
    max_num_tokens: int  # tokens in a step
    max_seq_len: int  # prompt and answer of one sequence
    vocab_size: int
    max_queue: int  # requests that wait
    max_queue_tokens: int | None = None  # prompt tokens that wait
    capacity_policy: PolicyName = "guaranteed_no_evict"
    chunk_policy: ChunkPolicyName = "first_come_first_served"
    itl_target_ms: float | None = None  # most milliseconds of a step that has answers in it
    tenant_weights: Mapping[str, float] = field(default_factory=dict[str, float])
