"""The TensorRT session on the stand-in: sampling, overlap, padding, graphs, profiles and limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enginewright.builder.targets.tensorrt.host_device import HostDevice
from enginewright.runtime import open_tensorrt
from enginewright.runtime.artifact import Engine
from enginewright.runtime.cuda import Probe
from enginewright.runtime.errors import (
    IncompatibleMachineError,
    InputError,
    OutOfMemoryError,
    StepFailedError,
)
from enginewright.runtime.session import StepResult, open_session
from enginewright.runtime.session_tensorrt import TensorRTSession
from tests.support.cpu_engine import make_batch
from tests.support.generate import make_lanes, make_sampling, run_lanes
from tests.support.gpu_engine import GpuSpec, export_engine, open_stand_in, stand_in
from tests.support.sampling_twin import choose, log_softmax
from tests.support.tiny import ArrayTensor

SPECS = {
    "gather": GpuSpec(),
    "int8": GpuSpec("qwen2", kv_dtype="int8"),
    "plugin": GpuSpec(attention="plugin"),
    "profiles": GpuSpec(multiple_profiles=True, max_num_tokens=300),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Engine]:
    folder = tmp_path_factory.mktemp("gpu")
    return {name: export_engine(spec, folder / name) for name, spec in SPECS.items()}


@pytest.fixture(params=["gather", "int8", "plugin"])
def session(request: pytest.FixtureRequest, exported: dict[str, Engine]) -> Iterator[Any]:
    with stand_in(exported[request.param]) as opened:
        yield opened


def ids(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 160, count).astype(np.int32)


def host(session: TensorRTSession) -> HostDevice:
    device = session._device  # pyright: ignore[reportPrivateUsage]
    assert isinstance(device, HostDevice)
    return device


def profiles_used(session: TensorRTSession) -> list[int]:
    context: Any = session._context  # pyright: ignore[reportPrivateUsage]
    return context.used


def test_the_limits(exported: dict[str, Engine]) -> None:
    with stand_in(exported["gather"], max_batch_size=3, max_num_tokens=20) as session:
        limits = session.limits
        assert (limits.max_batch_size, limits.max_num_tokens, limits.max_seq_len) == (3, 20, 256)
        assert (limits.num_blocks, limits.block_tokens, limits.vocab_size) == (40, 32, 160)
        with pytest.raises(StepFailedError, match="refused a step of 21 tokens"):
            session.logits(make_batch([ids(21)], [0], [[0]], [0]))
    with pytest.raises(InputError, match="max_batch_size is 17, expected 1 to 16"):
        open_stand_in(exported["gather"], max_batch_size=17)


def test_sampling_is_the_twins(session: TensorRTSession) -> None:
    batch = make_batch([ids(9), ids(4, 1)], [0, 0], [[3], [5]], [8, 10, 12])
    logits = session.logits(batch)
    mask = np.full((3, 5), 0x5A5A5A5A, np.uint32)
    sampling = make_sampling(
        3,
        temperature=[0, 0.8, 1.3],
        top_k=[0, 5, 0],
        top_p=[1, 0.9, 0.7],
        min_p=[0, 0.01, 0],
        repetition_penalty=[1, 1.3, 1],
        presence_penalty=0.5,
        frequency_penalty=0.25,
        seeds=[1, 2, 3],
        positions=[9, 3, 4],
        num_logprobs=[2, -1, 4],
        history_starts=np.array([0, 3, 5, 5], np.int32),
        history=np.array([1, 2, 2, 7, 9], np.int32),
        prompt_lengths=[1, 1, 0],
        bias_starts=np.array([0, 0, 1, 2], np.int32),
        bias_ids=np.array([4, 8], np.int32),
        bias_values=np.array([2.5, -3], np.float32),
        masks=mask,
    )
    session.launch(batch)
    session.sample(sampling)
    result = session.wait()
    shares = log_softmax(logits)
    for row in range(3):
        assert choose(sampling, row, logits[row]).accepts(int(result.tokens[row]))
    assert np.isnan(result.logprobs[1])
    assert result.logprobs[0] == pytest.approx(shares[0][result.tokens[0]], abs=1e-5)
    assert result.top_ids.shape == (3, 4)
    best = np.argsort(-shares[2], kind="stable")[:4]
    assert result.top_ids[2].tolist() == best.tolist()
    np.testing.assert_allclose(result.top_logprobs[2], shares[2][best], atol=1e-5)
    assert result.top_ids[0].tolist()[2:] == [-1, -1]
    assert result.step_seconds > 0


def greedy(session: TensorRTSession, batch: Any) -> StepResult:
    session.launch(batch)
    session.sample(make_sampling(len(batch.logit_rows)))
    return session.wait()


def test_a_token_of_the_step_before_needs_no_host(session: TensorRTSession) -> None:
    prompts = [ids(7), ids(5, 1)]
    tables = [[2], [9]]
    first = greedy(session, make_batch(prompts, [0, 0], tables, [6, 11]))
    known = make_batch([first.tokens[1:], first.tokens[:1]], [5, 7], [[9], [2]])
    expected = session.logits(known)
    session.launch(make_batch(prompts, [0, 0], tables, [6, 11]))
    session.sample(make_sampling(2))
    waits = make_batch([[-2], [-1]], [5, 7], [[9], [2]])  # rows 1 and 0 of the step in flight
    session.launch(waits)
    session.sample(make_sampling(2, num_logprobs=0))
    assert session.wait().tokens.tolist() == first.tokens.tolist()
    assert session.wait().tokens.tolist() == expected.argmax(axis=1).tolist()


def test_two_steps_in_flight_and_no_third(session: TensorRTSession) -> None:
    batch = make_batch([ids(3)], [0], [[0]], [2])
    for _ in range(2):
        session.launch(batch)
        session.sample(make_sampling(1))
    with pytest.raises(StepFailedError, match="2 steps in flight"):
        session.launch(batch)
    with pytest.raises(StepFailedError, match="while a step is in flight"):
        session.logits(batch)
    first, second = session.wait(), session.wait()
    assert first.tokens.tolist() == second.tokens.tolist()
    with pytest.raises(StepFailedError, match="no step to wait for"):
        session.wait()


def test_a_copied_block_serves_another_sequence(session: TensorRTSession) -> None:
    prompt = ids(40)
    session.logits(make_batch([prompt], [0], [[4, 7]], [39]))
    expected = session.logits(make_batch([prompt[:1]], [40], [[4, 7]]))
    session.copy_block(4, 20)
    session.copy_block(7, 21)
    session.logits(make_batch([ids(40, 3)], [0], [[4, 7]], [39]))  # the originals are written over
    found = session.logits(make_batch([prompt[:1]], [40], [[20, 21]]))
    np.testing.assert_allclose(found, expected, atol=1e-4)
    with pytest.raises(IndexError):
        session.copy_block(40, 0)


def test_padding_leaves_every_block_alone(session: TensorRTSession) -> None:
    prompts = [ids(20, seed) for seed in range(3)]
    for at, prompt in enumerate(prompts):
        session.logits(make_batch([prompt], [0], [[at]], [19]))
    alone = [session.logits(make_batch([prompts[at][:1]], [20], [[at]])) for at in range(3)]
    # Three sequences are computed as four; the fourth works on a block of no sequence.
    together = session.logits(make_batch([p[:1] for p in prompts], [20] * 3, [[0], [1], [2]]))
    again = session.logits(make_batch([p[:1] for p in prompts], [20] * 3, [[0], [1], [2]]))
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-4)
    np.testing.assert_allclose(again, together, atol=1e-4)


def test_generation_is_captured_once_and_replayed(session: TensorRTSession) -> None:
    prompts = [ids(6, seed) for seed in range(3)]
    lanes = make_lanes(prompts, new_tokens=12, blocks=40)
    run_lanes(session, lanes, 8)
    before = len(profiles_used(session))
    graphs: Any = session._graphs  # pyright: ignore[reportPrivateUsage]
    assert {key: graph is not None for key, graph in graphs.items()} == {(4, 1): True}
    # The first token of an answer comes with its prompt; of the eleven steps behind it the first
    # is run, the second is captured and replayed, and all others are replayed.
    again = make_lanes(prompts, new_tokens=12, blocks=40, placement=1)
    run_lanes(session, again, 8)
    assert [lane.tokens for lane in again] == [lane.tokens for lane in lanes]
    prompts_only = 1 if len(profiles_used(session)) - before == 1 else 3  # a run each if gathered
    assert len(profiles_used(session)) - before == prompts_only
    assert before == prompts_only + 2
    assert host(session).launches.count("sample") == 24


def test_profiles_are_chosen_by_size(exported: dict[str, Engine]) -> None:
    with stand_in(exported["profiles"], blocks=60) as session:
        session.logits(make_batch([ids(250)], [0], [list(range(8))], [249]))
        session.logits(make_batch([ids(1)], [250], [list(range(8))]))
        tables = [[at] for at in range(9)]
        session.logits(make_batch([ids(1)] * 9, [3] * 9, tables))
        assert profiles_used(session) == [0, 2, 3]


@dataclass(frozen=True)
class BrokenSpec(GpuSpec):
    """A model whose token 5 is no number."""

    def tensors(self) -> dict[str, ArrayTensor]:
        tensors = super().tensors()
        tensors["embedding.weight"].array[5] = np.nan
        return tensors


@pytest.mark.parametrize("attention", ["gather", "plugin"])
def test_a_broken_sequence_does_not_reach_the_next_user_of_its_block(
    attention: str, tmp_path: Path
) -> None:
    """Hidden keys are multiplied by zero, so no page may hold what is no number."""
    spec = BrokenSpec(changes=(("tie_word_embeddings", False),), attention=attention)
    with stand_in(export_engine(spec, tmp_path / "engine")) as session:
        healthy = np.array([9, 3, 8], np.int32)
        expected = session.logits(make_batch([healthy], [0], [[4]]))
        assert np.isfinite(expected).all()
        broken = np.full(32, 5, np.int32)
        assert not np.isfinite(session.logits(make_batch([broken], [0], [[3]], [31]))).any()
        session.launch(make_batch([broken[:1]], [31], [[3]]))
        session.sample(make_sampling(1))
        assert session.wait().tokens.tolist() == [-1]
        session.logits(make_batch([healthy[:2]], [0], [[3]]))
        found = session.logits(make_batch([healthy[2:]], [2], [[3]]))
        np.testing.assert_allclose(found[0], expected[2], atol=1e-4)


def test_memory_that_is_not_there_is_told_with_the_plans_numbers(
    exported: dict[str, Engine],
) -> None:
    engine = exported["gather"]
    facts = engine.manifest.target.tensorrt
    assert facts is not None
    device = HostDevice(facts, "f32", memory=2_000_000)
    closed: list[str] = []
    device.close = lambda: closed.append("device")  # type: ignore[method-assign]

    class Context:
        def close(self) -> None:
            closed.append("context")

    with pytest.raises(OutOfMemoryError, match=r"a block of 32 tokens takes \d+.* a plan of \d+ "):
        TensorRTSession(engine, device, Context(), kv_cache_memory=1 << 30)  # type: ignore[arg-type]
    assert closed == ["context", "device"]


def test_closing_twice_is_fine(exported: dict[str, Engine]) -> None:
    session = open_stand_in(exported["gather"])
    session.close()
    session.close()


def test_an_engine_for_gpus_is_refused_where_none_is(
    exported: dict[str, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_tensorrt, "probe", lambda: Probe("there is no NVIDIA driver here"))
    with pytest.raises(IncompatibleMachineError, match="it needs an NVIDIA GPU"):
        open_session(exported["gather"], threads=2, huge_pages=False)
