"""Where threads wait: hand-made calls, and a walk over real programs that misses no hazard."""

from __future__ import annotations

import pytest

from enginewright.builder.passes.roll_layers import roll_layers
from enginewright.builder.targets.cpu.barriers import BarrierPlanner
from enginewright.builder.targets.cpu.calls import Buffer, KernelCall, Operand, Place, Split
from enginewright.builder.targets.cpu.isa import LEVELS
from enginewright.builder.targets.cpu.program import Program, build_program
from enginewright.builder.targets.cpu.target import model_facts
from tests.support.cpu_engine import FAMILY_SPECS, Spec

ROWS, COLUMNS, ITEMS = Split.ROWS, Split.COLUMNS, Split.ITEMS


def buffer(name: str, place: Place = Place.MINE) -> Buffer:
    return Buffer(name, 64, place)


def call(
    split: Split, reads: list[Buffer], writes: list[Buffer], segment: bool = False
) -> KernelCall:
    inputs = {f"x{i}": Operand(b) for i, b in enumerate(reads)}
    outputs = {f"y{i}": Operand(b) for i, b in enumerate(writes)}
    return KernelCall("", split, inputs, outputs, starts_segment=segment)


def plan(*calls: KernelCall) -> list[str]:
    planner = BarrierPlanner()
    planner.plan(calls)
    return [c.barrier for c in calls]


def test_row_ops_on_local_rows_need_none() -> None:
    a, b, c = buffer("a"), buffer("b"), buffer("c")
    assert plan(call(ROWS, [], [a]), call(ROWS, [a], [b]), call(ROWS, [a, b], [c])) == ["", "", ""]


def test_a_product_waits_for_the_rows_it_reads() -> None:
    a, y = buffer("a"), buffer("y", Place.OURS)
    assert plan(call(ROWS, [], [a]), call(COLUMNS, [a], [y])) == ["", "rows"]


def test_everybody_waits_for_what_was_split_by_columns() -> None:
    x, y, z = buffer("x"), buffer("y", Place.OURS), buffer("z", Place.OURS)
    assert plan(call(COLUMNS, [], [y]), call(ROWS, [y], [x])) == ["", "all"]
    assert plan(call(COLUMNS, [], [y]), call(COLUMNS, [y], [z])) == ["", "all"]


def test_one_barrier_serves_all_that_was_written_before_it() -> None:
    y, z, x = buffer("y", Place.OURS), buffer("z", Place.OURS), buffer("x")
    calls = [
        call(COLUMNS, [], [y]),
        call(COLUMNS, [], [z]),
        call(ROWS, [y], []),
        call(ROWS, [z], [x]),
    ]
    assert plan(*calls) == ["", "", "all", ""]


def test_rows_of_the_stream_are_read_by_everybody_only_behind_a_barrier() -> None:
    a, b = buffer("a", Place.STREAM), buffer("b")
    assert plan(call(ROWS, [], [a]), call(ROWS, [a], [b])) == ["", "all"]


def test_a_value_of_the_stream_is_not_written_over_while_others_read_it() -> None:
    a, y = buffer("a", Place.STREAM), buffer("y", Place.OURS)
    assert plan(call(COLUMNS, [a], [y]), call(COLUMNS, [], [a])) == ["", "all"]


def test_attention_waits_for_all_that_was_written_in_the_cache() -> None:
    q, y = buffer("q", Place.STREAM), buffer("y", Place.STREAM)
    calls = [call(ROWS, [], [q]), call(ITEMS, [q], [y], segment=True), call(COLUMNS, [y], [])]
    assert plan(*calls) == ["", "all", "all"]


def test_a_loop_begins_with_what_its_last_iteration_left() -> None:
    a = buffer("a", Place.STREAM)
    planner = BarrierPlanner()
    planner.enter([a])
    first = call(ROWS, [a], [buffer("b")])
    planner.plan([first])
    assert first.barrier == "all"


def test_lifetimes_are_counted_in_barriers() -> None:
    a, y, z = buffer("a"), buffer("y", Place.OURS), buffer("z", Place.OURS)
    plan(call(ROWS, [], [a]), call(COLUMNS, [a], [y]), call(ROWS, [y], [z]), call(ROWS, [z], []))
    assert (a.first, a.last) == (0, 0)  # a barrier for rows alone is not one for all
    assert (y.first, y.last) == (0, 1)
    assert (z.first, z.last) == (1, 1)


def make_program(spec: Spec) -> Program:
    network = spec.network()
    facts = model_facts(network, spec.build)
    level = next(level for level in LEVELS if level.name == spec.isa)
    return build_program(network, roll_layers(network), facts, level)


def overlap(a: Buffer, b: Buffer) -> bool:
    """Whether two buffers have bytes in common; local ones lie in one piece of memory."""
    if (a.place is Place.STREAM) != (b.place is Place.STREAM) or Place.LOGITS in (a.place, b.place):
        return False
    return a.offset < b.offset + b.row_bytes and b.offset < a.offset + a.row_bytes


@pytest.mark.parametrize("spec", FAMILY_SPECS, ids=lambda spec: spec.name)
def test_no_call_of_a_real_program_meets_one_that_may_still_run(spec: Spec) -> None:
    """Walks the calls in the order of execution, loops and all: threads drift between barriers."""
    program = make_program(spec)
    segments = [segment for phase in program.phases for segment, _ in phase]
    written: dict[Buffer, Split] = {}  # since the last barrier of everybody
    touched: dict[Buffer, None] = {}
    for step in (step for segment in segments for step in segment.calls):
        reads = [operand.buffer for operand in step.reads.values()]
        writes = [operand.buffer for operand in step.writes.values()]
        if step.barrier == "all":
            written, touched = {}, {}
        if step.barrier == "rows":
            written = {b: s for b, s in written.items() if b.place is not Place.MINE}
        for buffer in reads:
            own_rows = step.split is ROWS and written.get(buffer, ROWS) is ROWS
            local = buffer.place is not Place.STREAM
            assert buffer not in written or (own_rows and local), step.comment
        for buffer in writes:
            assert buffer.place is not Place.STREAM or buffer not in touched
            for other in touched:
                assert other is buffer or not overlap(buffer, other), (step.comment, other)
        touched.update(dict.fromkeys([*reads, *writes]))
        written.update(dict.fromkeys(writes, step.split))


@pytest.mark.parametrize("spec", FAMILY_SPECS, ids=lambda spec: spec.name)
def test_buffers_of_a_real_program_do_not_overlap_while_they_live(spec: Spec) -> None:
    program = make_program(spec)
    steps = [step for segment in program.segments for step in segment.calls]
    operands = [o for step in steps for o in (*step.reads.values(), *step.writes.values())]
    made = list(dict.fromkeys(operand.buffer for operand in operands))
    for i, a in enumerate(made):
        size = program.stream_bytes if a.place is Place.STREAM else program.local_bytes
        assert a.place is Place.LOGITS or 0 <= a.offset <= size - a.row_bytes
        for b in made[:i]:
            assert not (a.first <= b.last and b.first <= a.last and overlap(a, b)), (a, b)
