"""CPU sessions at work: limits, refused batches, closing, idling, several at once."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from enginewright.runtime import numa
from enginewright.runtime.artifact import Engine
from enginewright.runtime.errors import (
    StepFailedError,
)
from enginewright.runtime.numa import NumaMode
from enginewright.runtime.session import open_session
from enginewright.runtime.session_cpu import WEIGHTS_FILE, CpuSession
from tests.support.cpu_engine import EngineCache, family_spec, make_batch, random_ids
from tests.support.generate import make_lanes, make_sampling, run_lanes

SPEC, OTHER = family_spec("llama", "int8"), family_spec("llama", "f32")
BLOCKS = 20


@pytest.fixture
def engine(engines: EngineCache) -> Engine:
    """An engine that nobody changes."""
    return engines.get(SPEC)


@pytest.fixture
def session(engines: EngineCache) -> Iterator[CpuSession]:
    """An open session of two threads."""
    with engines.session(SPEC, 2, BLOCKS) as session:
        yield session


def copied(engine: Engine, folder: Path) -> Engine:
    shutil.copytree(engine.folder, folder)
    return Engine(folder, engine.manifest)


def test_the_limits_are_those_of_the_engine(engine: Engine) -> None:
    with contextlib.closing(open_session(engine, kv_cache_memory=1 << 24)) as session:
        built = engine.manifest.limits
        assert session.limits.max_batch_size == built.max_batch_size
        assert session.limits.max_num_tokens == built.max_num_tokens
        assert session.limits.max_seq_len == built.max_seq_len
        assert session.limits.num_blocks == (1 << 24) // engine.manifest.kv.block_bytes
        assert session.limits.block_tokens == 32
        assert session.limits.vocab_size == SPEC.model.vocab_size


@pytest.mark.parametrize("mode", ["replicate", "interleave", None])
def test_two_memory_nodes_give_the_same_bits(
    mode: NumaMode | None,
    engine: Engine,
    session: CpuSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both "nodes" are this machine's only one, with the first and with the last of its cores."""
    cores = sorted(os.sched_getaffinity(0))
    for number, core in ((0, cores[0]), (1, cores[-1])):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}/cpulist").write_text(f"{core}\n")
    monkeypatch.setattr(numa, "_NODES", tmp_path)
    before = set(os.listdir("/proc/self/task"))
    other = CpuSession(engine, 2, engine.manifest.kv.block_bytes * BLOCKS, numa=mode)
    own = set(os.listdir("/proc/self/task")) - before
    used: dict[int, int] = {}
    use_weights = other._library.ew_use_weights

    def record(engine: int, thread: int, address: int) -> int:
        used[thread] = address
        return use_weights(engine, thread, address)

    with contextlib.closing(other):
        other.settle()
        monkeypatch.setattr(other._library, "ew_use_weights", record)
        for length in (1, 200):
            batch = make_batch([random_ids(SPEC, length)], [0], [np.arange(8)])
            expected, found = session.logits(batch), other.logits(batch)
            assert (expected.view(np.uint32) == found.view(np.uint32)).all()
        assert len(set(used.values())) == (1 if mode == "interleave" else 2)
        assert set(used) == {0, 1}
        # The mapped file is no longer read, and neither copy is left out: without both all differs.
        ctypes.memset(other._weights._source, 0, engine.manifest.files[WEIGHTS_FILE].bytes)
        assert (other.logits(batch).view(np.uint32) == expected.view(np.uint32)).all()
        for address in set(used.values()):
            ctypes.memset(address, 0, engine.manifest.files[WEIGHTS_FILE].bytes)
        assert (other.logits(batch) != expected).any()
        kept = sorted(min(os.sched_getaffinity(int(task))) for task in own if is_kept(int(task)))
        assert kept == [cores[0], cores[-1]]
    assert os.sched_getaffinity(0) == set(cores)


def is_kept(task: int) -> bool:
    """Whether a thread lives and is not free to run on all cores of this process."""
    try:
        return len(os.sched_getaffinity(task)) == 1
    except ProcessLookupError:
        return False


def test_smaller_limits_take_less_memory(engine: Engine) -> None:
    small = CpuSession(engine, 1, 1 << 22, max_batch_size=2, max_num_tokens=40)
    large = CpuSession(engine, 1, 1 << 22)
    assert small.limits.max_batch_size == 2
    assert small.limits.max_num_tokens == 40
    assert small.working_bytes < large.working_bytes
    for session in (small, large):
        session.close()


def test_fewer_tokens_than_sequences_are_raised_to_one_each(engine: Engine) -> None:
    with contextlib.closing(CpuSession(engine, 1, 1 << 22, 8, 3)) as session:
        assert session.limits.max_num_tokens == 8


def test_batches_beyond_the_limits_are_refused_and_the_session_lives(engine: Engine) -> None:
    ids = random_ids(SPEC, 60)
    with contextlib.closing(CpuSession(engine, 1, 1 << 24, 4, 40)) as session:
        fine = make_batch([ids[:20]], [0], [[0]], [19])
        expected = session.logits(fine)
        too_many_tokens = make_batch([ids], [0], [[0, 1]], [59])
        too_many_rows = make_batch([ids[:20]], [0], [[0]], range(5))
        too_many_sequences = make_batch(
            [ids[i : i + 1] for i in range(5)], [0] * 5, [[i] for i in range(5)], [0]
        )
        nothing = make_batch([np.zeros(0, np.int32)], [0], [[0]], [])
        for batch in (too_many_tokens, too_many_rows, too_many_sequences, nothing):
            with pytest.raises(StepFailedError, match="refused a step of"):
                session.launch(batch)
            np.testing.assert_array_equal(session.logits(fine), expected)


def test_a_third_step_in_flight_is_refused(session: CpuSession) -> None:
    batch = make_batch([[1, 2, 3]], [0], [[0]], [2])
    for _ in range(2):
        session.launch(batch)
        session.sample(make_sampling(1))
    with pytest.raises(StepFailedError, match="two steps in flight"):
        session.launch(batch)
    assert session.wait().tokens.tolist() == session.wait().tokens.tolist()


def test_there_must_be_a_sampled_step_to_wait_for(session: CpuSession) -> None:
    with pytest.raises(StepFailedError, match="no step to wait for"):
        session.wait()
    session.launch(make_batch([[1, 2, 3]], [0], [[0]], [2]))
    with pytest.raises(StepFailedError, match="never sampled"):
        session.wait()
    session.sample(make_sampling(1))
    assert session.wait().step_seconds > 0


def test_logits_that_the_host_samples_give_the_bits_of_the_step(session: CpuSession) -> None:
    ids = random_ids(SPEC, 20)
    batch = make_batch([ids], [0], [[0]], list(range(20)))
    sampling = make_sampling(
        20,
        temperature=[0, 0.8] * 10,
        top_k=[0, 5, 0, 0] * 5,
        seeds=list(range(20)),
        positions=list(range(1, 21)),
        num_logprobs=[-1, -1, 3, 0] * 5,
        bias_starts=np.array([0] * 20 + [1], np.int32),
        bias_ids=np.array([7], np.int32),
        bias_values=np.array([-np.inf], np.float32),
    )
    session.launch(batch)
    session.sample(sampling)
    expected = session.wait()
    session.launch(batch)
    session.sample(None)
    logits = session.wait().logits
    assert logits is not None
    np.testing.assert_array_equal(logits, session.logits(batch))
    found = session.sample_logits(logits, sampling)
    for name in ("tokens", "logprobs", "top_ids", "top_logprobs"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    logits[:, 11] = 1e9
    assert (session.sample_logits(logits, sampling).tokens == 11).all()
    logits[3] = -np.inf
    assert session.sample_logits(logits, sampling).tokens[3] == -1


def test_logits_are_not_sampled_while_a_step_is_in_flight(session: CpuSession) -> None:
    logits = np.zeros((1, session.limits.vocab_size), np.float32)
    session.launch(make_batch([[1, 2, 3]], [0], [[0]], [2]))
    with pytest.raises(StepFailedError, match="while a step is in flight"):
        session.sample_logits(logits, make_sampling(1))
    session.sample(make_sampling(1))
    session.wait()
    assert session.sample_logits(logits, make_sampling(1)).tokens.tolist() == [0]


def test_a_copied_block_serves_another_sequence(session: CpuSession) -> None:
    ids = random_ids(SPEC, 33)
    expected = session.logits(make_batch([ids], [0], [[3, 4]], [32]))
    session.copy_block(3, 9)
    found = session.logits(make_batch([ids[32:]], [32], [[9, 10]]))
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(IndexError, match=f"block {BLOCKS} of {BLOCKS}"):
        session.copy_block(0, BLOCKS)


def test_arrays_may_be_let_go_while_a_step_is_in_flight(session: CpuSession) -> None:
    ids = random_ids(SPEC, 200)
    expected = session.logits(make_batch([ids], [0], [range(7)], [199])).argmax()
    for _ in range(5):
        session.launch(make_batch([ids], [0], [range(7)], [199]))
        session.sample(make_sampling(1))
        rubbish = [np.full(n, -7, np.int32) for n in range(1, 400)]
        assert session.wait().tokens.tolist() == [expected]
        del rubbish


def test_closing_twice_does_no_harm(engine: Engine) -> None:
    session = CpuSession(engine, 2, 1 << 22)
    session.close()
    session.close()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("steps", ["launched", "sampled", "sampled launched", "sampled sampled"])
def test_closing_with_steps_in_flight_ends_them(engine: Engine, threads: int, steps: str) -> None:
    session = CpuSession(engine, threads, 1 << 22)
    for step in steps.split():
        session.launch(make_batch([random_ids(SPEC, 100)], [0], [[0, 1, 2, 3]], [99]))
        if step == "sampled":
            session.sample(make_sampling(1))
    session.close()


@pytest.mark.parametrize("worked", [False, True])
def test_an_idle_session_uses_no_processor(session: CpuSession, worked: bool) -> None:
    if worked:
        session.logits(make_batch([random_ids(SPEC, 100)], [0], [range(4)], [99]))
        time.sleep(0.05)
    begin = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - begin < 0.1


def test_engines_in_one_process_do_not_meet(engines: EngineCache) -> None:
    """Two sessions of one engine and one of another, steps of all three in flight at once."""
    specs = [SPEC, SPEC, OTHER]
    prompts = [random_ids(spec, 40 + i, seed=i) for i, spec in enumerate(specs)]
    batches = [make_batch([prompt], [0], [[5, 2]], [len(prompt) - 1]) for prompt in prompts]
    expected: list[int] = []
    for spec, batch in zip(specs, batches, strict=True):
        with engines.session(spec, 2, BLOCKS) as session:
            expected.append(int(session.logits(batch).argmax()))
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(engines.session(spec, 2, BLOCKS)) for spec in specs]
        for _ in range(3):
            for session, batch in zip(opened, batches, strict=True):
                session.launch(batch)
                session.sample(make_sampling(1))
            assert [int(session.wait().tokens[0]) for session in opened] == expected


def test_a_copy_of_an_engine_gives_what_the_engine_gives(engine: Engine, tmp_path: Path) -> None:
    ids = random_ids(SPEC, 20)
    found = []
    for at in (engine, copied(engine, tmp_path / "engine")):
        with contextlib.closing(CpuSession(at, 1, 1 << 22)) as session:
            lanes = make_lanes([ids], blocks=4)
            run_lanes(session, lanes, 64)
            found.append(lanes[0].trace)
    assert found[0] == found[1]
