"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ...executor.sampling import SamplingParams
from ...runtime.numa import NUMA_MODES

_UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
_UNITS |= {f"{unit}I": 1024**power for power, unit in enumerate("KMGT", 1)}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?I?)B?", re.IGNORECASE)


class ByteSize(click.ParamType[int]):
    """A number of bytes such as 500MB, 2GiB or 1073741824."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes."""
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(value.strip())
        unit = _UNITS.get(match.group(2).upper()) if match else None
        if match is None or unit is None:
            self.fail(f"{value!r} is not a size; write it like 500MB, 2GiB or a number of bytes")
        return int(float(match.group(1)) * unit)


class IntList(click.ParamType[list[int]]):
    """Whole numbers from 0, written like 1,8,32."""

    name = "numbers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int]:
        """Return the numbers."""
        if isinstance(value, list):
            return value
        words = [word.strip() for word in str(value).split(",")]
        if not all(word.isdecimal() for word in words):
            self.fail(f"{value!r} is no list of whole numbers; write it like 1,8,32")
        return [int(word) for word in words]


Command = Callable[..., Any]


def engine_options(command: Command) -> Command:
    """Add the engine argument and the options its executor is opened with."""
    decorators = (
        click.argument("engine", type=click.Path(path_type=Path)),
        click.option("--threads", type=click.IntRange(min=1), help="CPU threads; all by default."),
        click.option(
            "--numa",
            type=click.Choice(NUMA_MODES),
            help="Weights on several memory nodes: a copy on each, pages in turn, or no order.",
        ),
        click.option(
            "--kv-cache-memory",
            type=ByteSize(),
            help="Memory for keys and values, e.g. 2GiB; a part of what is free by default.",
        ),
        click.option(
            "--max-batch-size", type=click.IntRange(min=1), help="Sequences in a step, at most."
        ),
        click.option(
            "--max-num-tokens", type=click.IntRange(min=1), help="Tokens in a step, at most."
        ),
    )
    return _apply(command, decorators)


def sampling_options(command: Command) -> Command:
    """Add the options that become SamplingParams."""
    decorators = (
        click.option("--max-tokens", type=int, default=256, show_default=True),
        click.option("--temperature", type=float, help="0 is greedy; the model's default, or 1."),
        click.option("--top-k", type=int, help="Sample from the k likeliest tokens."),
        click.option("--top-p", type=float, help="Sample from the likeliest tokens of this mass."),
        click.option("--min-p", type=float, help="Drop tokens below this part of the likeliest."),
        click.option("--seed", type=int, help="The same seed gives the same answer."),
        click.option("--stop", multiple=True, help="Text that ends the answer; may be repeated."),
    )
    return _apply(command, decorators)


def sampling_params(options: dict[str, Any]) -> SamplingParams:
    """Take the sampling options out of a command's options."""
    names = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed")
    fields = {name: options.pop(name) for name in names}
    return SamplingParams(**fields, stop=list(options.pop("stop")) or None)


def _apply(command: Command, decorators: tuple[Callable[[Command], Command], ...]) -> Command:
    for decorator in reversed(decorators):
        command = decorator(command)
    return command
