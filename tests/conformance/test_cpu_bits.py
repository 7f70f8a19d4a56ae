"""The rule of one result: neither company, chunks, threads nor placement change a bit."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from enginewright.builder.targets.cpu.isa import find_level
from enginewright.runtime import machine
from enginewright.runtime.tactics_cpu import BUCKETS, CpuTactics
from tests.support.cpu_engine import FAMILY_SPECS, EngineCache, Spec, make_batch, random_ids
from tests.support.generate import (
    Lane,
    make_lanes,
    make_sampling,
    run_lanes,
)

LENGTHS = (1, 5, 31, 32, 33, 70, 130, 600)
BLOCKS = 900
EVERY_SPEC = pytest.mark.parametrize("spec", FAMILY_SPECS, ids=lambda spec: spec.name)


def make_prompts(spec: Spec, count: int = len(LENGTHS)) -> list[npt.NDArray[np.int32]]:
    lengths = [*LENGTHS, *(3 + 7 * i % 90 for i in range(count - len(LENGTHS)))]
    return [random_ids(spec, length, seed=50 + i) for i, length in enumerate(lengths)]


def results(lanes: Sequence[Lane]) -> list[tuple[list[int], list[bytes]]]:
    return [(lane.tokens, lane.trace) for lane in lanes[: len(LENGTHS)]]


def alone(engines: EngineCache, spec: Spec, threads: int, chunk: int, placement: int = 0) -> object:
    lanes = make_lanes(make_prompts(spec), blocks=BLOCKS, placement=placement)
    with engines.session(spec, threads, BLOCKS) as session:
        for lane in lanes:
            run_lanes(session, [lane], chunk)
    return results(lanes)


@EVERY_SPEC
def test_tokens_and_logprobs_are_those_of_a_prompt_alone(spec: Spec, engines: EngineCache) -> None:
    expected = alone(engines, spec, threads=1, chunk=64)
    for threads, chunk in ((1, 1), (1, 16), (2, 512), (3, 64)):
        found = alone(engines, spec, threads, chunk, placement=chunk)
        assert found == expected, f"{threads} threads, chunks of {chunk}"
    for threads, chunk, placement in ((1, 512, 1), (2, 16, 2), (2, 64, 3), (3, 1, 4)):
        lanes = make_lanes(make_prompts(spec, 32), blocks=BLOCKS, placement=placement)
        order = np.random.default_rng(placement).permutation(32)
        with engines.session(spec, threads, BLOCKS) as session:
            run_lanes(session, [lanes[i] for i in order], chunk)
        assert results(lanes) == expected, f"batch of 32, {threads} threads, chunks of {chunk}"


@EVERY_SPEC
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_forced_tactics_change_no_bit(spec: Spec, engines: EngineCache, threads: int) -> None:
    expected = alone(engines, spec, threads=1, chunk=64)
    usual = msgspec.convert(engines.get(spec).manifest.tactics, CpuTactics)
    level = find_level(spec.build.isa, machine.detect())
    random, buckets = np.random.default_rng([threads, len(usual.products)]), len(BUCKETS) + 1
    for tile_rows, column_rows, redundant_rows in ((16, 1, 0), (48, 9, 5), (192, 500, 2)):
        products = [
            msgspec.structs.replace(
                product,
                block_rows=random.integers(
                    1, level.max_rows, len(BUCKETS) + 1, endpoint=True
                ).tolist(),
                prefetch=random.integers(0, 2, buckets).astype(bool).tolist(),
            )
            for product in usual.products
        ]
        tactics = CpuTactics(
            chosen_by="a test",
            tile_rows=tile_rows,
            column_rows=column_rows,
            redundant_rows=redundant_rows,
            products=products,
        )
        lanes = make_lanes(make_prompts(spec), blocks=BLOCKS, placement=tile_rows)
        with engines.session(spec, threads, BLOCKS, tactics) as session:
            run_lanes(session, lanes, 130)
        assert results(lanes) == expected, tactics


@EVERY_SPEC
def test_logits_are_the_same_by_columns_and_by_tiles(spec: Spec, engines: EngineCache) -> None:
    """130 tokens are columns for six threads, a tile or two for one, two and three."""
    ids, others = random_ids(spec, 130, 1), random_ids(spec, 60, 2)
    found: dict[str, npt.NDArray[np.float32]] = {}
    for threads in (1, 2, 3):
        with engines.session(spec, threads, 40) as session:
            parts = [
                session.logits(make_batch([ids[i : i + 20]], [i], [[4, 1, 7, 0, 9]]))
                for i in range(0, 130, 20)
            ]
            found[f"columns of 20, {threads}"] = np.concatenate(parts)
            found[f"all at once, {threads}"] = session.logits(
                make_batch([ids], [0], [[0, 1, 2, 3, 4]])
            )
            both = make_batch([others, ids], [0, 0], [[11, 12], [6, 5, 8, 2, 1]])
            found[f"behind another, {threads}"] = session.logits(both)[60:]
            order = np.random.default_rng(0).permutation(130).astype(np.int32)
            shuffled = session.logits(make_batch([ids], [0], [[20, 21, 22, 23, 24]], order))
            found[f"rows in any order, {threads}"] = shuffled[np.argsort(order)]
    first, *rest = found
    for name in rest:
        np.testing.assert_array_equal(
            found[name].view(np.uint32), found[first].view(np.uint32), err_msg=name
        )


@EVERY_SPEC
def test_two_steps_in_flight_give_the_tokens_of_one_by_one(
    spec: Spec, engines: EngineCache
) -> None:
    prompts = make_prompts(spec)[:6]
    lanes = make_lanes(prompts, new_tokens=8)
    with engines.session(spec, threads=2) as session:
        run_lanes(session, lanes, chunk=1024)
        ahead = make_lanes(prompts, new_tokens=8, placement=3)
        order = [3, 0, 5, 1, 4, 2]  # rows of a step that reads tokens of the step before
        ends = np.cumsum([len(prompt) for prompt in prompts])
        tables = [lane.table for lane in ahead]
        session.launch(make_batch(prompts, [0] * 6, tables, ends - 1))
        session.sample(plain_sampling(ahead, range(6), 0))
        rows = list(range(6))
        found: list[dict[int, int]] = []
        for step in range(1, 8):
            who = order if step % 2 else list(range(6))
            parts = [[-1 - rows.index(i)] for i in who]
            past = [len(prompts[i]) + step - 1 for i in who]
            session.launch(make_batch(parts, past, [tables[i] for i in who]))
            session.sample(plain_sampling(ahead, who, step))
            found.append(dict(zip(rows, session.wait().tokens.tolist(), strict=True)))
            rows = who
        found.append(dict(zip(rows, session.wait().tokens.tolist(), strict=True)))
    assert [[step[i] for step in found] for i in range(6)] == [lane.tokens for lane in lanes]


def plain_sampling(lanes: Sequence[Lane], who: Sequence[int], step: int):
    return make_sampling(
        len(who),
        temperature=[lanes[i].temperature for i in who],
        top_p=0.95,
        seeds=[lanes[i].seed for i in who],
        positions=[len(lanes[i].prompt) + step for i in who],
    )
