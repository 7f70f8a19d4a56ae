"""The memory plan: buffers that are in use at the same time never share bytes."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from enginewright.builder.targets.cpu.calls import Buffer, Place
from enginewright.builder.targets.cpu.memory import plan_memory


@st.composite
def buffers(draw: st.DrawFn) -> list[Buffer]:
    made: list[Buffer] = []
    for i in range(draw(st.integers(0, 14))):
        first = draw(st.integers(0, 12))
        last = first + draw(st.integers(0, 5))
        size = 64 * draw(st.integers(1, 40))
        made.append(Buffer(f"b{i}", size, Place.OURS, first=first, last=last))
    return made


def meet(a: Buffer, b: Buffer) -> bool:
    return a.first <= b.last and b.first <= a.last


@settings(max_examples=300, deadline=None, derandomize=True)
@given(buffers())
def test_live_buffers_do_not_overlap(made: list[Buffer]) -> None:
    total = plan_memory(made)
    for buffer in made:
        assert buffer.offset % 64 == 0
        assert 0 <= buffer.offset <= total - buffer.row_bytes
    for a, b in combinations(made, 2):
        if meet(a, b):
            apart = a.offset + a.row_bytes <= b.offset or b.offset + b.row_bytes <= a.offset
            assert apart, (a, b)
    assert total <= sum(buffer.row_bytes for buffer in made)
    needed = [sum(b.row_bytes for b in made if b.first <= i <= b.last) for i in range(20)]
    assert total >= max(needed)


def test_buffers_that_never_meet_share_one_place() -> None:
    made = [Buffer(f"b{i}", 640, Place.MINE, first=2 * i, last=2 * i + 1) for i in range(6)]
    assert plan_memory(made) == 640
    assert {buffer.offset for buffer in made} == {0}


def test_a_gap_is_used() -> None:
    large = Buffer("large", 640, Place.MINE, first=0, last=9)
    early = Buffer("early", 320, Place.MINE, first=0, last=3)
    late = Buffer("late", 320, Place.MINE, first=4, last=9)
    assert plan_memory([late, early, large]) == 960
    assert early.offset == late.offset


def test_the_order_of_the_buffers_does_not_matter() -> None:
    def make() -> list[Buffer]:
        return [
            Buffer(f"b{i}", 64 * (1 + i % 5), Place.MINE, first=i, last=i + 3) for i in range(9)
        ]

    one, other = make(), make()
    plan_memory(one)
    plan_memory(reversed(other))
    assert [b.offset for b in one] == [b.offset for b in other]


def test_no_buffers_need_no_memory() -> None:
    assert plan_memory([]) == 0
