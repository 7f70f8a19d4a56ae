"""Opening a GPU engine on a machine whose GPU is the host: CUDA's calls, the plan, and refusals."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from enginewright.runtime.artifact import ENGINE_FILE, Engine, open_engine, write_engine
from enginewright.runtime.errors import (
    EngineDamagedError,
    EngineError,
    IncompatibleMachineError,
    OutOfMemoryError,
    StepFailedError,
)
from enginewright.runtime.session import open_session
from tests.support.cpu_engine import make_batch
from tests.support.fake_cuda import GPU
from tests.support.generate import make_lanes, make_sampling, run_lanes
from tests.support.gpu_engine import GpuSpec, export_engine, open_stand_in
from tests.support.gpu_machine import gpu_machine

MEMORY = 1 << 24
PROMPTS = [np.arange(3 + seed, 40, dtype=np.int32) for seed in range(3)]


@pytest.fixture(autouse=True)
def machine() -> Iterator[None]:
    with gpu_machine():
        yield
    assert not GPU.device, "device memory was not given back"
    assert not GPU.host, "pinned memory was not given back"
    assert not GPU.handles, "a graph, an event or a module was not given back"


@pytest.fixture(params=["gather", "plugin"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    spec = GpuSpec("qwen3", kv_dtype="int8", attention=request.param)
    return export_engine(spec, tmp_path / "engine")


def change(engine: Engine, **facts: Any) -> Engine:
    """Return the engine with other facts of its target."""
    target = engine.manifest.target
    assert target.tensorrt is not None
    changed = msgspec.structs.replace(
        target, tensorrt=msgspec.structs.replace(target.tensorrt, **facts)
    )
    write_engine(engine.folder, msgspec.structs.replace(engine.manifest, target=changed))
    return open_engine(engine.folder)


def test_tokens_are_those_of_the_stand_in(engine: Engine) -> None:
    """Two steps are in flight, and generation is replayed from graphs."""
    answers: list[list[list[int]]] = []
    replays = GPU.replays
    for opened in (open_stand_in(engine), open_session(engine, threads=1, kv_cache_memory=MEMORY)):
        with contextlib.closing(opened) as session:
            lanes = make_lanes(PROMPTS, new_tokens=12, blocks=40)
            run_lanes(session, lanes, 8)
            answers.append([lane.tokens for lane in lanes])
    assert answers[0] == answers[1]
    assert GPU.replays - replays >= 8


def test_what_no_profile_takes_is_told_in_tensorrts_words(engine: Engine) -> None:
    with contextlib.closing(open_session(engine, kv_cache_memory=MEMORY)) as session:
        opened: Any = session
        plan = opened._context
        plan.use_profile(0)
        with pytest.raises(StepFailedError, match=r"k_cache\.0 .*: profile 0 takes"):
            plan.set_shape("k_cache.0", (1, 2, 32, 32))
        with pytest.raises(StepFailedError, match="profile 9: there is no profile 9"):
            plan.use_profile(9)


def test_blocks_are_copied_and_read_through_cuda(engine: Engine) -> None:
    with contextlib.closing(open_session(engine, kv_cache_memory=MEMORY)) as session:
        session.logits(make_batch([PROMPTS[0]], [0], [[4, 7]], [36]))
        session.copy_block(4, 9)
        block = session.read_block(4)
        assert session.read_block(9) == block
        assert any(block)
        session.write_block(3, block)
        assert session.read_block(3) == block


def test_closing_waits_for_what_runs(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = open_session(engine, kv_cache_memory=MEMORY)
    done: list[str] = []
    session.launch(make_batch([PROMPTS[0]], [0], [[4, 7]], [36]))
    session.sample(make_sampling(1))
    GPU.queue(lambda: done.append("the step"))
    close = session._context.close
    monkeypatch.setattr(session._context, "close", lambda: (done.append("its context"), close()))
    session.close()
    assert done == ["the step", "its context"]


def test_too_little_memory_is_told_and_all_is_given_back(engine: Engine) -> None:
    with pytest.raises(OutOfMemoryError, match="the KV cache wants"):
        open_session(engine, kv_cache_memory=1 << 40)


def test_a_machine_that_differs(engine: Engine) -> None:
    with pytest.raises(IncompatibleMachineError, match=r"8\.6 \(this host has 8\.9: build the"):
        open_session(change(engine, compute_capabilities=("8.6",)))
    with pytest.raises(IncompatibleMachineError, match=r"tensorrt 11\.5\.0\.1 \(this is 11\.4"):
        open_session(change(engine, compute_capabilities=("8.9",), version="11.5.0.1"))


def test_an_engine_without_its_kernels(engine: Engine) -> None:
    with pytest.raises(EngineError, match=r"holds no kernel sample.* for compute capability 8\.9"):
        open_session(change(engine, kernels=()))


def test_a_damaged_plan_and_a_damaged_kernel(engine: Engine) -> None:
    facts = engine.manifest.target.tensorrt
    assert facts is not None
    kernels = tuple(msgspec.structs.replace(one, symbol="other") for one in facts.kernels)
    with pytest.raises(EngineDamagedError, match=r"the kernel other of .* cannot be loaded"):
        open_session(change(engine, kernels=kernels))
    (engine.folder / ENGINE_FILE).write_bytes(b"nothing")
    with pytest.raises(EngineError, match=r"tensorrt cannot read .*: the plan is none"):
        open_session(change(engine, kernels=facts.kernels))
