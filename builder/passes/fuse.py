"""What the fusing passes share: linears of one input become one linear with their rows stacked."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from ..network import Network, Node, Value, Weight, concatenate_weights
from ..ops import make_node


def is_plain_linear(node: Node | None) -> bool:
    """Whether `node` is a linear with nothing in its epilogue."""
    return (
        node is not None
        and node.op == "linear"
        and node.attrs["epilogue"] == ""
        and node.inputs[3] is None
    )


def only_user(network: Network, value: Value) -> Node | None:
    """Return the node that alone reads `value`; None if there are others, or it is an output."""
    users = network.users(value)
    if len(users) != 1 or network.is_output(value):
        return None
    return users[0]


def can_stack(linears: Sequence[Node]) -> bool:
    """Whether linears can be one: one input, and a bias in all of them or in none."""
    biased = {linear.inputs[2] is not None for linear in linears}
    inputs = {linear.inputs[0] for linear in linears}
    return len(set(linears)) == len(linears) and len(inputs) == 1 and len(biased) == 1


def stacked_linear(network: Network, linears: Sequence[Node]) -> Node:
    """Return the linear that computes all of `linears` side by side, not yet in the network."""
    weight = concatenate_weights(*_stack(linears, 1))
    bias = None if linears[0].inputs[2] is None else concatenate_weights(*_stack(linears, 2))
    name = network.fresh_name(joined_name([linear.output.name for linear in linears]))
    return make_node("linear", [linears[0].inputs[0], weight, bias], name)


def joined_name(names: Sequence[str]) -> str:
    """Return one name for what `names` differ in: a.q.weight, a.k.weight -> a.q_k.weight."""
    parts = [name.split(".") for name in names]
    head = _shared(parts)
    tail = _shared([part[head:][::-1] for part in parts])
    middle = ["_".join(".".join(part[head : len(part) - tail]) for part in parts)]
    return ".".join(parts[0][:head] + middle + parts[0][len(parts[0]) - tail :])


def _shared(lists: Sequence[Sequence[str]]) -> int:
    """Return how many first elements all lists have in common."""
    return len(list(takewhile(lambda words: len(set(words)) == 1, zip(*lists, strict=False))))


def _stack(linears: Sequence[Node], index: int) -> tuple[str, list[Weight]]:
    parts = [value for node in linears if isinstance(value := node.inputs[index], Weight)]
    return joined_name([part.name for part in parts]), parts
