"""The program: a rolled network as segments of kernel calls, with memory and barriers planned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ...network import Network, NetworkError, Node, Value, Weight
from ...passes.roll_layers import RolledNetwork
from .barriers import BarrierPlanner
from .calls import Buffer, KernelCall, Operand, PackedWeight, Place, Product, Split
from .isa import IsaLevel
from .lower import Lowering, is_row_value
from .memory import plan_memory
from .pack import PackedLayout


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The constants of an engine that no single call holds."""

    title: str
    row_size: int  # numbers in a row of the output: the vocabulary, or the hidden size
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    kv_dtype: str


@dataclass(eq=False, slots=True)
class Segment:
    """Calls that one function runs, and the weights they use in each iteration."""

    name: str
    calls: list[KernelCall]
    used: list[Weight] = field(default_factory=list[Weight])  # of the first iteration
    weights: list[list[PackedWeight]] = field(default_factory=list[list[PackedWeight]])

    def slot(self, weight: Weight) -> int:
        """Return the place of a weight in the segment's table."""
        return next(i for i, used in enumerate(self.used) if used is weight)


@dataclass(slots=True)
class Program:
    """Everything that emission prints."""

    facts: ModelFacts
    segments: list[Segment]
    phases: list[list[tuple[Segment, int]]]  # what runs between barriers: segment, iteration
    suffix: Segment
    packed: list[PackedWeight]  # every weight, once, in the order of the file
    stream_bytes: int
    local_bytes: int
    products: dict[str, PackedLayout]  # the kernels that are called, and a weight of each
    product_calls: list[Product]  # in the order of their numbers
    head: PackedLayout | None  # None: hidden states are the output
    quantizers: set[tuple[int, int]]  # group, rotation
    rounding: dict[str, tuple[PackedLayout, int, int]]  # products that round: group, rotation


def build_program(
    network: Network, rolled: RolledNetwork, facts: ModelFacts, level: IsaLevel
) -> Program:
    """Lower a rolled network. Raises NetworkError for an op or a shape that the target lacks."""
    head = network.producer(network.outputs[0])
    if head is None or head.op not in ("linear", "rms_norm"):
        raise NetworkError("the output must come from a linear op, or from a norm")
    outside = (*rolled.prefix, *rolled.suffix)
    rows = [node for node in outside if is_row_value(node.output)]
    regions = [_without(rolled.prefix, rows), rolled.body, _without(rolled.suffix, rows)]
    cut = [_cut_at_attention(region) for region in regions]
    stream = _stream_values(cut, rows, rolled)
    order = {node: i for i, node in enumerate([n for r in (*regions, rows) for n in r])}
    lowering = Lowering(level, stream, head, lambda value: _last_reader(network, value, order))
    planner = BarrierPlanner()
    segments: list[list[Segment]] = []
    for name, parts in zip(("prefix", "body", "tail"), cut, strict=True):
        made: list[Segment] = []
        if name == "body":
            planner.enter(lowering.operands[c.initial].buffer for c in rolled.carried)
        for i, nodes in enumerate(parts):
            calls = [
                call
                for node in nodes
                for call in lowering.lower(node, rolled.layers if name == "body" else 0)
            ]
            if name == "body" and i == len(parts) - 1:
                calls += _carry(rolled, lowering)
            planner.plan(calls)
            made.append(Segment(f"{name}_{i}", calls))
        segments.append(made)
        if name == "body":
            for result in rolled.results:
                lowering.share(result.value, result.body)
    planner.end_region()
    calls = [call for node in rows for call in lowering.lower(node, 0)]
    planner.plan(calls)
    suffix = Segment("suffix_rows", calls)
    flat = [segment for made in segments for segment in made]
    packed = _collect_weights(segments, suffix, rolled, lowering)
    buffers = _buffers([*flat, suffix])
    stream_buffers = [b for b in buffers if b.place is Place.STREAM]
    for buffer in stream_buffers:  # all of them live through the whole step
        buffer.first, buffer.last = 0, planner.interval
    return Program(
        facts=facts,
        segments=[*[s for s in flat if s.calls], suffix],
        phases=_phases(segments, rolled.count),
        suffix=suffix,
        packed=packed,
        stream_bytes=plan_memory(stream_buffers),
        local_bytes=plan_memory(b for b in buffers if b.place in (Place.MINE, Place.OURS)),
        products=lowering.products,
        product_calls=lowering.product_calls,
        head=lowering.layout_of(head.inputs[1]) if head.op == "linear" else None,
        quantizers=lowering.quantizers,
        rounding=lowering.rounding,
    )


def _without(nodes: Iterable[Node], others: Sequence[Node]) -> list[Node]:
    return [node for node in nodes if node not in others]


def _cut_at_attention(nodes: Iterable[Node]) -> list[list[Node]]:
    parts: list[list[Node]] = [[]]
    for node in nodes:
        if node.op == "attention":
            parts.append([])
        parts[-1].append(node)
    return parts


def _stream_values(
    cut: Sequence[Sequence[Sequence[Node]]], rows: Sequence[Node], rolled: RolledNetwork
) -> set[Value]:
    """Return the values that are read in another segment than the one that defines them."""
    home: dict[Value, tuple[int, int]] = {}
    root: dict[Value, Value] = {}
    stream: set[Value] = {value for c in rolled.carried for value in (c.initial, c.next)}
    stream |= {value for r in rolled.results for value in (r.body, r.value)}
    places = [((i, j), nodes) for i, parts in enumerate(cut) for j, nodes in enumerate(parts)]
    for place, nodes in [*places, ((len(cut), 0), rows)]:
        for node in nodes:
            for value in node.inputs:
                if value is not None and value in home and home[value] != place:
                    stream.add(root[value])
            for value in node.outputs:
                home[value] = place
                source = node.inputs[0] if node.op == "slice" else None
                root[value] = root.get(source, value) if source is not None else value
    return stream


def _last_reader(network: Network, value: Value, order: dict[Node, int]) -> Node | None:
    readers = [node for node in network.users(value) if node in order]
    return max(readers, key=lambda node: order[node], default=None)


def _carry(rolled: RolledNetwork, lowering: Lowering) -> list[KernelCall]:
    """Move what an iteration leaves to where the next one reads it, unless it is there already."""
    calls: list[KernelCall] = []
    for carried in rolled.carried:
        source, target = lowering.operands[carried.next], lowering.operands[carried.initial]
        if source.buffer is target.buffer:
            continue
        code = (
            "ew_move_rows({x}, {x_stride}, {y}, {y_stride}, "
            f"{4 * int(carried.initial.shape[-1])}, {{first}}, {{last}});"
        )
        calls.append(
            KernelCall(
                code,
                Split.ROWS,
                {"x": source},
                {"y": target},
                comment=f"carry {carried.next.name}",
                name="carry",
            )
        )
    return calls


def _collect_weights(
    segments: Sequence[Sequence[Segment]],
    suffix: Segment,
    rolled: RolledNetwork,
    lowering: Lowering,
) -> list[PackedWeight]:
    """Fill the segments' weight tables; each weight is stored once, in the order it is used."""
    packed: dict[Weight, PackedWeight] = {}

    def place(weight: Weight, like: Weight) -> PackedWeight:
        if weight not in packed:
            packed[weight] = PackedWeight(weight, lowering.layouts[like])
        return packed[weight]

    for made in (*segments, [suffix]):
        for segment in made:
            used: dict[Weight, None] = {}
            for call in segment.calls:
                used.update(dict.fromkeys(call.weights.values()))
            segment.used = list(used)
    prefix, body, tail = segments
    for segment in prefix:
        segment.weights = [[place(w, w) for w in segment.used]] if segment.used else []
    first = rolled.weights_of(0) if rolled.count else []
    for iteration in range(rolled.count):
        now = dict(zip(first, rolled.weights_of(iteration), strict=True))
        for segment in body:
            if segment.used:
                segment.weights.append([place(now.get(w, w), w) for w in segment.used])
    for segment in (*tail, suffix):
        segment.weights = [[place(w, w) for w in segment.used]] if segment.used else []
    return list(packed.values())


def _buffers(segments: Iterable[Segment]) -> list[Buffer]:
    found: dict[Buffer, None] = {}
    for segment in segments:
        for call in segment.calls:
            operands: Iterable[Operand] = (*call.reads.values(), *call.writes.values())
            found.update(dict.fromkeys(operand.buffer for operand in operands))
    return list(found)


def _phases(segments: Sequence[Sequence[Segment]], count: int) -> list[list[tuple[Segment, int]]]:
    """List the phases; each begins with a segment that opens with attention."""
    prefix, body, tail = segments
    sequence = [(segment, 0) for segment in prefix]
    sequence += [(segment, iteration) for iteration in range(count) for segment in body]
    sequence += [(segment, 0) for segment in tail]
    phases: list[list[tuple[Segment, int]]] = [[]]
    for segment, iteration in sequence:
        if not segment.calls:
            continue
        if segment.calls[0].starts_segment:
            phases.append([])
        phases[-1].append((segment, iteration))
    return phases
