"""The server's own limit on prompt and answer, below what the engine was built for."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...executor.sampling import SamplingParams
from ...runtime.errors import ContextLengthError


def within_context(
    prompts: Sequence[Sequence[int]], params: SamplingParams, max_context: int
) -> SamplingParams:
    """Return `params` with an answer that fits beside the longest prompt.

    Raises ContextLengthError when a prompt leaves no room for an answer.
    """
    longest = max(map(len, prompts), default=0)
    room = max_context - longest
    if room < 1:
        raise ContextLengthError(
            f"the prompt has {longest} tokens, but this server takes at most {max_context - 1} "
            f"({max_context} with the answer); shorten it",
            "prompt",
        )
    if params.max_tokens is not None and params.max_tokens <= room:
        return params
    return msgspec.structs.replace(params, max_tokens=room, min_tokens=min(params.min_tokens, room))
