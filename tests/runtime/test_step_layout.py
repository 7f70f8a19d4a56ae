"""Steps as runs of a plan: grouping, padding, slots and the choice of profile."""

from __future__ import annotations

import numpy as np
import pytest

from enginewright.runtime.errors import StepFailedError
from enginewright.runtime.manifest import TensorRTFacts
from enginewright.runtime.session import Batch
from enginewright.runtime.step_layout import Run, lay_out, padded_size
from tests.support.gpu_engine import GpuSpec, facts_of

SPARE = 99


def batch(*sequences: tuple[int, int], rows: list[int] | None = None) -> Batch:
    """One sequence for each (past, tokens), with blocks 10, 11 ... 20, 21 ... and so on."""
    counts = [count for _, count in sequences]
    starts = np.cumsum([0, *counts]).astype(np.int32)
    blocks = [-(-(past + count) // 32) for past, count in sequences]
    tables = np.full((len(sequences), max(blocks)), -1, np.int32)
    for row, count in enumerate(blocks):
        tables[row, :count] = 10 * (row + 1) + np.arange(count)
    return Batch(
        token_ids=np.arange(starts[-1], dtype=np.int32),
        seq_starts=starts,
        past_tokens=np.array([past for past, _ in sequences], np.int32),
        block_tables=tables,
        logit_rows=np.array(starts[1:] - 1 if rows is None else rows, np.int32),
    )


def runs(facts: TensorRTFacts, step: Batch) -> list[Run]:
    return lay_out(step, facts, SPARE, 16)


@pytest.fixture(scope="module")
def gather() -> TensorRTFacts:
    return facts_of(GpuSpec())


@pytest.fixture(scope="module")
def plugin() -> TensorRTFacts:
    return facts_of(GpuSpec(attention="plugin"))


def test_padded_sizes() -> None:
    assert [padded_size(n, 12) for n in range(1, 13)] == [1, 2, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12]


def test_chunks_run_alone_and_single_tokens_together(gather: TensorRTFacts) -> None:
    made = runs(gather, batch((0, 5), (40, 3), (7, 1), (31, 1), (32, 1)))
    assert [run.inputs["ids"].shape for run in made] == [(1, 5), (1, 3), (4, 1)]
    assert [(run.first_row, run.rows) for run in made] == [(0, 1), (1, 1), (2, 3)]
    assert [run.key for run in made] == [None, None, (4, 1)]
    assert [gather.profiles[run.profile].kind for run in made] == [
        "context",
        "context",
        "generation",
    ]
    assert made[2].inputs["ids"].tolist() == [[8], [9], [10], [0]]
    assert made[2].inputs["past_tokens"].tolist() == [7, 31, 32, 0]
    assert made[2].inputs["block_tables"].tolist() == [[30], [40], [50], [SPARE]]
    assert made[2].inputs["logit_rows"].tolist() == [0, 1, 2, 0]
    assert made[2].slots.tolist() == [30 * 32 + 7, 40 * 32 + 31, 51 * 32, SPARE * 32]


def test_a_gathered_past_leaves_out_the_steps_own_block(gather: TensorRTFacts) -> None:
    (run,) = runs(gather, batch((64, 3)))
    assert run.inputs["block_tables"].tolist() == [[10, 11]]
    assert run.slots.tolist() == [12 * 32, 12 * 32 + 1, 12 * 32 + 2]


def test_a_run_whose_logits_nobody_wants_gives_one_row(gather: TensorRTFacts) -> None:
    (run,) = runs(gather, batch((0, 4), rows=[]))
    assert (run.rows, run.inputs["logit_rows"].tolist()) == (0, [0])


def test_rows_are_counted_from_their_run(gather: TensorRTFacts) -> None:
    made = runs(gather, batch((0, 4), (0, 4), rows=[0, 3, 5]))
    assert [run.inputs["logit_rows"].tolist() for run in made] == [[0, 3], [1]]
    assert [run.first_row for run in made] == [0, 2]


def test_the_plugin_form_computes_a_step_at_once(plugin: TensorRTFacts) -> None:
    (run,) = runs(plugin, batch((30, 4), (7, 1)))
    assert run.inputs["ids"].tolist() == [0, 1, 2, 3, 4]
    assert run.inputs["positions"].tolist() == [30, 31, 32, 33, 7]
    assert run.inputs["seq_starts"].tolist() == [0, 4, 5]
    assert run.inputs["slots"].tolist() == [10 * 32 + 30, 10 * 32 + 31, 11 * 32, 11 * 32 + 1, 647]
    assert run.inputs["block_tables"].tolist() == [[10, 11], [20, SPARE]]
    assert plugin.profiles[run.profile].kind == "context"


def test_a_padded_plugin_step_gives_padding_a_token_each(plugin: TensorRTFacts) -> None:
    (run,) = runs(plugin, batch((7, 1), (8, 1), (9, 1)))
    assert run.inputs["seq_starts"].tolist() == [0, 1, 2, 3, 4]
    assert run.inputs["slots"].tolist()[3] == SPARE * 32
    assert run.key == (4, 1)


def test_blocks_of_generation_are_padded_to_powers_of_two(gather: TensorRTFacts) -> None:
    (run,) = runs(gather, batch((150, 1), (3, 1)))
    assert run.key == (2, 8)
    assert run.inputs["block_tables"][0].tolist() == [10, 11, 12, 13, 14, SPARE, SPARE, SPARE]


def test_small_steps_take_the_small_profiles() -> None:
    spec = GpuSpec(multiple_profiles=True, max_batch_size=32, max_num_tokens=400, max_seq_len=256)
    facts = facts_of(spec)
    assert [profile.dims["tokens"][2] for profile in facts.profiles] == [256, 400, 1, 1]
    assert [profile.dims["seqs"][2] for profile in facts.profiles] == [1, 1, 8, 32]

    def profile(step: Batch) -> int:
        return lay_out(step, facts, SPARE, 32)[0].profile

    assert profile(batch((0, 200))) == 0
    assert profile(batch((0, 256))) == 0
    assert profile(batch(*[(4, 1)] * 8)) == 2
    assert profile(batch(*[(4, 1)] * 9)) == 3


def test_a_step_that_no_profile_holds_is_refused(gather: TensorRTFacts) -> None:
    with pytest.raises(StepFailedError, match=r"no optimization profile .* 1 seqs.* 65 tokens"):
        runs(gather, batch((0, 65)))


def test_rows_out_of_order_are_refused(gather: TensorRTFacts) -> None:
    with pytest.raises(StepFailedError, match="order"):
        runs(gather, batch((0, 4), rows=[2, 1]))
