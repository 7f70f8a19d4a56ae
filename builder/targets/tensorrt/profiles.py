"""Optimization profiles: the ranges of every named dimension, for prompts and for generation."""

from __future__ import annotations

from ....runtime.cuda_contract import BLOCK_TOKENS
from ....runtime.manifest import ProfileFacts
from ...config import BuildConfig

Range = tuple[int, int, int]

MOST_POOL_BLOCKS = 1 << 22  # 134 million tokens: no device holds more, and offsets fit 64 bits
_TYPICAL_POOL_BLOCKS = 4096
_TYPICAL_BLOCKS = 32  # 1,024 tokens of past
_SMALL_TOKENS = 256  # with several profiles, prompts up to here have their own
_SMALL_BATCH = 8  # and generation steps up to here


def make_profiles(config: BuildConfig) -> tuple[ProfileFacts, ...]:
    """Return a context and a generation profile, or two of each with `multiple_profiles`.

    In the gather form a run computes one chunk of one sequence, or one token of many.
    """
    batch, tokens = config.max_batch_size, config.max_num_tokens
    batches, chunks = [batch], [tokens]
    if config.gpu.multiple_profiles:
        batches = [*([_SMALL_BATCH] if batch > _SMALL_BATCH else []), batch]
        chunks = [*([_SMALL_TOKENS] if tokens > _SMALL_TOKENS else []), tokens]
    profiles = [_profile(config, "context", chunk) for chunk in chunks]
    profiles += [_profile(config, "generation", size) for size in batches]
    return tuple(profiles)


def max_blocks(config: BuildConfig) -> int:
    """Return the KV blocks of the longest sequence."""
    return -(-config.seq_len // BLOCK_TOKENS)


def _profile(config: BuildConfig, kind: str, most: int) -> ProfileFacts:
    blocks = max_blocks(config)
    rows = config.max_batch_size if kind == "context" else most
    if kind == "generation":
        seqs: Range = (1, most, most)
        tokens: Range = (1, 1, 1) if config.gpu.attention == "gather" else seqs
    elif config.gpu.attention == "gather":
        seqs, tokens = (1, 1, 1), (1, most, most)
    else:
        seqs = (1, min(config.max_batch_size, most), config.max_batch_size)
        tokens = (1, most, most)
    dims = {
        "seqs": seqs,
        "tokens": tokens,
        "blocks": (1, min(_TYPICAL_BLOCKS, blocks), blocks),
        "rows": (1, 1 if kind == "context" else most, rows),
        "pool_blocks": (2, _TYPICAL_POOL_BLOCKS, MOST_POOL_BLOCKS),
    }
    if config.gpu.attention == "plugin":
        low, likely, high = seqs
        dims["starts"] = (low + 1, likely + 1, high + 1)
    return ProfileFacts(kind="context" if kind == "context" else "generation", dims=dims)
