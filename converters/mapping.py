"""Applies a family's name table: stored tensors in, canonical tensors out, none left over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from ..builder.model_config import ModelConfig
from ..runtime.errors import CheckpointError
from .checkpoint import Tensor
from .families.base import Rule, dimension

NAMED_IN_MESSAGES = 3  # of many wrong tensors, how many a message spells out


@dataclass(frozen=True, slots=True)
class NameTable:
    """A family's table seen from one file format."""

    rules: tuple[Rule, ...]
    stored_name: Callable[[Rule], str]
    extras: tuple[str, ...]


def map_tensors(
    stored: Mapping[str, Tensor], table: NameTable, config: ModelConfig, source: str
) -> dict[str, Tensor]:
    """Rename `stored` to canonical names, in the table's order, layer by layer.

    Raises CheckpointError naming the tensors that are missing, unused or of another shape.
    """
    unused = dict.fromkeys(stored)
    found: dict[str, Tensor] = {}
    missing: list[str] = []
    for rule, layer in _wanted(table.rules, config):
        name = table.stored_name(rule).format(i=layer)
        tensor = stored.get(name)
        if tensor is None:
            missing.append(name)
            continue
        unused.pop(name, None)
        shape = tuple(dimension(config, dim) for dim in rule.shape)
        if tensor.shape != shape:
            raise CheckpointError(
                f"{source}: tensor {name} has shape {list(tensor.shape)}, but the config says "
                f"{list(shape)}; config and weights do not belong together."
            )
        canonical = rule.canonical.format(i=layer)
        found[canonical] = replace(tensor, name=canonical)
    for name in _expand(table.extras, config):
        unused.pop(name, None)
    if missing:
        raise CheckpointError(
            f"{source}: {_listing(missing)} missing; "
            f"the config says {config.num_layers} layers of family {config.family}."
        )
    if unused:
        raise CheckpointError(
            f"{source}: {_listing(list(unused))} not part of a {config.family} model "
            f"of {config.num_layers} layers; the config does not describe this checkpoint."
        )
    return found


def _wanted(rules: Iterable[Rule], config: ModelConfig) -> Iterable[tuple[Rule, int]]:
    """Every (rule, layer) the config implies; rules outside the layers come with layer 0."""
    wanted = [rule for rule in rules if rule.wanted(config)]
    yield from ((rule, 0) for rule in wanted if "{i}" not in rule.canonical)
    for layer in range(config.num_layers):
        yield from ((rule, layer) for rule in wanted if "{i}" in rule.canonical)


def _expand(names: Iterable[str], config: ModelConfig) -> Iterable[str]:
    for name in names:
        layers = range(config.num_layers) if "{i}" in name else range(1)
        yield from (name.format(i=layer) for layer in layers)


def _listing(names: list[str]) -> str:
    """`tensor a is`, or `tensors a, b, c and 4 more are`."""
    if len(names) == 1:
        return f"tensor {names[0]} is"
    shown = ", ".join(names[:NAMED_IN_MESSAGES])
    more = len(names) - NAMED_IN_MESSAGES
    return f"tensors {shown} and {more} more are" if more > 0 else f"tensors {shown} are"
