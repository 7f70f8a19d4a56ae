"""The options of `enginewright serve` that say how the executor schedules."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click

from ...executor.chunks import ChunkPolicyName
from ...executor.config import ExecutorConfig
from ...executor.policies import PolicyName
from ...runtime.errors import InputError
from .options import ByteSize, Command

# Steps of 2,048 prompt tokens would let answers wait for most of a second on two cores, and first
# tokens for each other; with shorter ones a server also ends more answers a second.
ITL_TARGET_MS = 70.0

_DEFAULTS = ExecutorConfig()
_COUNT = click.IntRange(min=1)
_ABOVE_0 = click.FloatRange(min=0, min_open=True)


def scheduling_options(command: Command) -> Command:
    """Add options whose values `take_executor_config` reads."""
    decorators = (
        click.option(
            "--max-queue",
            type=_COUNT,
            default=_DEFAULTS.max_queue,
            show_default=True,
            help="Requests that may wait; more get 429.",
        ),
        click.option("--max-queue-tokens", type=_COUNT, help="Prompt tokens that may wait."),
        click.option(
            "--capacity-policy",
            type=click.Choice(get_args(PolicyName)),
            default=_DEFAULTS.capacity_policy,
            show_default=True,
            help="How many sequences share the KV cache.",
        ),
        click.option(
            "--chunk-policy",
            type=click.Choice(get_args(ChunkPolicyName)),
            default=_DEFAULTS.chunk_policy,
            show_default=True,
            help="How prompts share a step.",
        ),
        click.option(
            "--itl-target-ms",
            type=click.FloatRange(min=0),
            default=ITL_TARGET_MS,
            show_default=True,
            help="Time from token to token that prompts leave to answers; 0 is no bound.",
        ),
        click.option("--tenant-weight", multiple=True, help="NAME=WEIGHT; may be repeated."),
        click.option(
            "--overlap/--no-overlap",
            default=_DEFAULTS.overlap,
            show_default=True,
            help="Launch a step before the last is read.",
        ),
        click.option(
            "--speculative",
            metavar="ngram|ENGINE",
            help="Guess tokens: from the text itself, or with a draft engine.",
        ),
        click.option(
            "--draft-tokens",
            type=_COUNT,
            default=_DEFAULTS.draft_tokens,
            show_default=True,
            help="Guesses of one sequence in one step, at most.",
        ),
        click.option(
            "--step-timeout", type=_ABOVE_0, help="Seconds after which a step ends it all."
        ),
        click.option(
            "--kv-cache-disk",
            metavar="DIR",
            help="Keep KV blocks in files too, also over restarts.",
        ),
        click.option(
            "--kv-cache-disk-size",
            type=ByteSize(),
            default=_DEFAULTS.kv_cache_disk_size,
            show_default="8GiB",
            help="Room for those files; the oldest leave.",
        ),
        click.option(
            "--warm-prompts",
            type=click.Path(path_type=Path),
            help="JSON lines: prompts to compute and pin before the first request.",
        ),
        click.option(
            "--restart", is_flag=True, help="Start the executor again when its process has ended."
        ),
    )
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


def take_executor_config(options: dict[str, Any]) -> ExecutorConfig:
    """Make the executor's configuration of what is left of a command's options.

    Raises InputError.
    """
    weights = dict(map(_weight, options.pop("tenant_weight")))
    timeout, target = options.pop("step_timeout"), options.pop("itl_target_ms") or None
    return ExecutorConfig(
        **options, tenant_weights=weights, hang_timeout=timeout, itl_target_ms=target
    )


def _weight(word: str) -> tuple[str, float]:
    name, _, value = word.rpartition("=")
    try:
        return name, float(value)
    except ValueError as error:
        raise InputError(f"--tenant-weight is {word!r}; write NAME=WEIGHT") from error
