"""roll_layers: finds the layers that repeat, so that a target can make them a loop."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..network import Network, Node, Value, Weight


@dataclass(frozen=True, slots=True)
class Carried:
    """A value that each iteration hands to the next."""

    initial: Value  # what the first iteration reads; the body's nodes name it
    next: Value  # the body's value that the iteration after it reads in its place


@dataclass(frozen=True, slots=True)
class Result:
    """A value of the last iteration that is read behind the loop."""

    body: Value  # as the first iteration names it
    value: Value  # as the suffix, or the network's outputs, name it


@dataclass(frozen=True, slots=True)
class RolledNetwork:
    """A network as prefix, `count` times a body, suffix. Without a repetition all is prefix.

    `body` holds the nodes of the first iteration. Iteration t differs from it in the weights, in
    `layer` (which grows by `layers` an iteration) and in the carried values.
    """

    prefix: list[Node]
    body: list[Node]
    count: int
    suffix: list[Node]
    layers: int  # layers in an iteration
    carried: list[Carried]
    results: list[Result]
    iterations: list[list[Node]]

    def weights_of(self, iteration: int) -> list[Weight]:
        """Return the weights of an iteration in order of the body's uses, each use an entry.

        Entry i of every iteration stands where entry i of iteration 0 does in the body. A weight
        that all iterations share (a rotary table) is the same object in each.
        """
        return [
            value
            for node in self.iterations[iteration]
            for value in node.inputs
            if isinstance(value, Weight)
        ]


def roll_layers(network: Network) -> RolledNetwork:
    """Find the repetition that covers most nodes, the shortest body among equals.

    The network stays as it is. Two iterations are equal when ops, attributes but `layer`, types,
    formats and wiring agree.
    """
    nodes = network.nodes
    signatures = _signatures(nodes)
    anchors = [i for i, node in enumerate(nodes) if node.op in ("attention", "paged_attention")]
    lengths = {b - a for i, a in enumerate(anchors) for b in anchors[i + 1 :]}
    candidates: list[tuple[int, int, int]] = []  # nodes covered, body length, first node
    for length in lengths:
        for begin, end in _periodic_runs(signatures, length):
            count = (end - begin) // length
            for first in range(begin, end - count * length + 1):
                candidates.append((count * length, length, first))
    candidates.sort(key=lambda c: (-c[0], c[1], c[2]))
    best: RolledNetwork | None = None
    best_size = (0, 0)
    for covered, length, first in candidates:
        if best is not None and (covered, length) != best_size:
            break
        rolled = _roll(network, first, length, covered // length)
        if rolled is not None and (best is None or len(rolled.carried) < len(best.carried)):
            best, best_size = rolled, (covered, length)
    return best or RolledNetwork(list(nodes), [], 0, [], 0, [], [], [])


def _signatures(nodes: Sequence[Node]) -> list[int]:
    """Number the nodes so that equal numbers mean equal ops, attributes, types and formats."""
    numbers: dict[Hashable, int] = {}

    def kind(value: Value | None) -> Hashable:
        if value is None:
            return None
        if isinstance(value, Weight):
            return value.dtype, value.shape, value.format, value.group, value.rotation
        return value.dtype, value.shape

    def signature(node: Node) -> Hashable:
        attrs = tuple(
            sorted((name, value) for name, value in node.attrs.items() if name != "layer")
        )
        kinds = tuple(kind(value) for value in (*node.inputs, *node.outputs))
        return node.op, attrs, kinds

    return [numbers.setdefault(signature(node), len(numbers)) for node in nodes]


def _periodic_runs(signatures: Sequence[int], length: int) -> list[tuple[int, int]]:
    """Return the longest stretches [begin, end) of at least two bodies of that length."""
    runs: list[tuple[int, int]] = []
    begin = 0
    for i in range(len(signatures) - length + 1):
        inside = i + length < len(signatures) and signatures[i] == signatures[i + length]
        if inside:
            continue
        if i - begin >= length:
            runs.append((begin, i + length))
        begin = i + 1
    return runs


def _roll(network: Network, first: int, length: int, count: int) -> RolledNetwork | None:
    """Return the rolled network if the wiring repeats too, else None."""
    nodes = network.nodes
    iterations = [nodes[first + t * length :][:length] for t in range(count)]
    place: dict[Value, tuple[int, int]] = {  # value -> iteration, node in the body
        node.output: (t, i) for t, body in enumerate(iterations) for i, node in enumerate(body)
    }
    body, second = iterations[0], iterations[1]
    layers = _layer_stride(iterations)
    if layers is None:
        return None
    carried: dict[tuple[Value, Value], Carried] = {}
    for i, node in enumerate(body):
        for j, value in enumerate(node.inputs):
            if value is None or isinstance(value, Weight):
                continue
            later = [iteration[i].inputs[j] for iteration in iterations[1:]]
            source = place.get(value)
            if source is not None:  # made in the same iteration
                expected = [it[source[1]].output for it in iterations[1:]]
            elif second[i].inputs[j] is value:  # the same for all, as the batch is
                expected = [value] * (count - 1)
            else:
                handed = place.get(later[0]) if later[0] is not None else None
                if handed is None or handed[0] != 0:
                    return None
                expected = [it[handed[1]].output for it in iterations[:-1]]
                pair = Carried(value, body[handed[1]].output)
                carried[pair.initial, pair.next] = pair
            if any(a is not b for a, b in zip(later, expected, strict=True)):
                return None
    suffix = nodes[first + count * length :]
    read = [value for node in suffix for value in node.inputs if value is not None]
    results: dict[Value, Result] = {}
    for value in (*read, *network.outputs):
        if value in place:
            iteration, i = place[value]
            if iteration != count - 1:
                return None
            results[value] = Result(body[i].output, value)
    return RolledNetwork(
        prefix=nodes[:first],
        body=body,
        count=count,
        suffix=suffix,
        layers=layers,
        carried=list(carried.values()),
        results=list(results.values()),
        iterations=iterations,
    )


def _layer_stride(iterations: Sequence[Sequence[Node]]) -> int | None:
    """Return by how much every `layer` grows from one iteration to the next; None if it varies."""
    columns = [
        [node.attrs["layer"] for node in nodes]
        for nodes in zip(*iterations, strict=True)
        if "layer" in nodes[0].attrs
    ]
    strides = {b - a for column in columns for a, b in pairwise(column)}
    layers = {column[0] for column in columns}
    return strides.pop() if strides == {len(layers)} else None
