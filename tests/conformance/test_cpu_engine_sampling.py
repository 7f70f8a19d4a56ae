"""Sampling inside an engine: the head's own maximum, stored logits, rows that fail."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from enginewright.runtime.artifact import Engine
from enginewright.runtime.session import Batch, Session, StepResult
from enginewright.runtime.session_cpu import WEIGHTS_FILE, CpuSession
from tests.support.cpu_engine import (
    FAMILY_SPECS,
    FORMATS,
    EngineCache,
    Spec,
    family_spec,
    make_batch,
    random_ids,
)
from tests.support.generate import make_sampling
from tests.support.sampling_twin import choose

LLAMAS = [family_spec("llama", weights) for weights in FORMATS]
MISTRALS = [family_spec("mistral", weights) for weights in FORMATS]
EVERY_SPEC = pytest.mark.parametrize("spec", FAMILY_SPECS, ids=lambda spec: spec.name)


def step(session: Session, batch: Batch, **fields: object) -> StepResult:
    session.launch(batch)
    session.sample(make_sampling(len(batch.logit_rows), **fields))
    return session.wait()


@EVERY_SPEC
def test_the_head_finds_the_lowest_of_the_highest(spec: Spec, engines: EngineCache) -> None:
    """Head rows are there twice, so every tenth maximum or more is a tie."""
    ids = random_ids(spec, 200, 8)
    batch = make_batch([ids], [0], [range(7)])
    vocab = spec.model.vocab_size
    with engines.session(spec, threads=2) as session:
        logits = session.logits(batch)
        greedy = step(session, batch)
        # A bias that changes nothing sends rows the long way.
        starts = np.arange(201, dtype=np.int32)
        bias = {"bias_ids": np.zeros(200, np.int32), "bias_values": np.zeros(200, np.float32)}
        other = step(session, batch, bias_starts=starts, **bias)
    expected = logits.argmax(axis=1)
    assert greedy.tokens.tolist() == expected.tolist() == other.tokens.tolist()
    assert np.isnan(greedy.logprobs).all()
    assert greedy.top_ids.size == 0
    np.testing.assert_array_equal(logits[:, -40:], logits[:, :40])
    assert vocab > 80
    assert (expected < vocab - 40).all()
    assert (expected < 40).any()


@pytest.mark.parametrize("spec", LLAMAS, ids=lambda spec: spec.name)
def test_draws_are_of_the_logits_that_the_engine_gives(spec: Spec, engines: EngineCache) -> None:
    ids = random_ids(spec, 60, 3)
    batch = make_batch([ids], [0], [[0, 1]])
    fields = {
        "temperature": np.linspace(0, 2, 60),
        "top_k": np.arange(60) % 20,
        "seeds": np.arange(60),
    }
    with engines.session(spec, threads=2) as session:
        logits = session.logits(batch)
        result = step(session, batch, **fields)
    sampling = make_sampling(60, **fields)
    for row in range(60):
        assert choose(sampling, row, logits[row]).accepts(int(result.tokens[row])), row


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("spec", LLAMAS, ids=lambda spec: spec.name)
def test_what_the_head_keeps_decides_as_all_logits_do(
    spec: Spec, threads: int, engines: EngineCache
) -> None:
    """Candidates that the head found against logits that were stored; ties are among them."""
    ids = random_ids(spec, 200, 8)
    batch = make_batch([ids], [0], [range(7)])
    rows = np.arange(200)
    fields = {
        "temperature": 0.1 + rows % 7,
        "top_k": np.where(rows % 2, 1 + rows % 64, 1 + rows),  # 64 is the most that it keeps
        "top_p": np.where(rows % 3, 1.0, 0.6).astype(np.float32),
        "min_p": np.where(rows % 5, 0.0, 0.2).astype(np.float32),
        "seeds": rows,
    }
    bias = {"bias_ids": np.zeros(200, np.int32), "bias_values": np.zeros(200, np.float32)}
    with engines.session(spec, threads) as session:
        logits = session.logits(batch)
        found = step(session, batch, **fields)
        stored = step(session, batch, bias_starts=np.arange(201, dtype=np.int32), **bias, **fields)
    assert found.tokens.tolist() == stored.tokens.tolist()
    sampling = make_sampling(200, **fields)
    for row in range(200):
        assert choose(sampling, row, logits[row]).accepts(int(found.tokens[row])), row


@pytest.mark.parametrize("spec", MISTRALS, ids=lambda spec: spec.name)
def test_a_row_of_nan_harms_only_itself(spec: Spec, engines: EngineCache, tmp_path: Path) -> None:
    """One row of the embedding table is spoilt: who has that token fails, the others do not."""
    assert not spec.model.tie_word_embeddings
    poison = 5
    good = engines.get(spec)
    folder = tmp_path / "engine"
    shutil.copytree(good.folder, folder)
    table = next(t for t in good.manifest.tensors if t.name == "embedding.weight")
    element = np.dtype(np.float32 if table.format == "f32" else ml_dtypes.bfloat16)
    stride = table.bytes // table.shape[0]
    with (folder / WEIGHTS_FILE).open("r+b") as file:
        file.seek(table.offset + poison * stride)
        file.write(np.full(table.shape[1], np.nan, element).tobytes())
    ids = [random_ids(spec, 40, seed) for seed in range(3)]
    ids = [np.where(part == poison, 6, part).astype(np.int32) for part in ids]
    tables = [[0, 1], [2, 3], [4, 5]]
    clean = make_batch(ids, [0] * 3, tables, [39, 79, 119])
    spoilt = [part.copy() for part in ids]
    spoilt[1][20] = poison
    broken = make_batch(spoilt, [0] * 3, tables, [39, 79, 119])
    for threads in (1, 2):
        for fields in ({}, {"temperature": [0, 1, 1], "num_logprobs": 2}):
            with engines.session(spec, threads) as session:
                expected = step(session, clean, **fields).tokens.tolist()
            memory = good.manifest.kv.block_bytes * 8
            session = CpuSession(Engine(folder, good.manifest), threads, memory)
            with contextlib.closing(session):
                found = step(session, broken, **fields).tokens.tolist()
                assert found == [expected[0], -1, expected[2]]
                # the step after it, with the failed row's token still to be read
                session.launch(make_batch([[-1], [-2], [-3]], [40] * 3, tables))
                session.sample(make_sampling(3))
                after = session.wait().tokens.tolist()
                assert after[1] == -1
                assert min(after[0], after[2]) >= 0
                # its blocks are as good as new once they are written again
                assert step(session, clean, **fields).tokens.tolist() == expected
