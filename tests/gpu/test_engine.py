"""A built engine on the device: a conversation, generation by graphs, and the executor's tokens."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from enginewright.builder.build import build
from enginewright.builder.config import BuildConfig
from enginewright.builder.config_tensorrt import TensorRTConfig
from enginewright.builder.models.registry import build_network
from enginewright.builder.passes.pipeline import run_pipeline
from enginewright.builder.reference import Reference
from enginewright.converters import open_checkpoint
from enginewright.executor.config import ExecutorConfig
from enginewright.runtime.artifact import Engine, open_engine
from enginewright.runtime.cuda import Probe
from enginewright.runtime.session import open_session
from tests.support.conversation import conversation
from tests.support.executor_run import Run
from tests.support.golden import GOLDEN_FOLDER

PROMPTS = [[(i * 37 + j) % 200 + 5 for i in range(40)] for j in range(5)]


KINDS = (
    # target, weights, attention
    ("tensorrt-rtx", "f16", "gather"),
    ("tensorrt-rtx", "int8", "gather"),
    ("tensorrt", "f16", "gather"),
    ("tensorrt", "f16", "plugin"),
)


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def built(
    request: pytest.FixtureRequest, gpu: Probe, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Engine, Reference]:
    """An engine of a golden model, and the interpreter with its roundings."""
    target, weights, attention = request.param
    capability = gpu.devices[0].compute_capability
    if target == "tensorrt-rtx":
        capability = request.getfixturevalue("capability")
    elif importlib.util.find_spec("tensorrt") is None:
        pytest.skip("the full TensorRT is not installed")
    config = BuildConfig(
        target=target,
        weights=weights,
        max_batch_size=16,
        max_num_tokens=64,
        tensorrt=TensorRTConfig(compute_capabilities=(capability,), attention=attention),
    )
    with open_checkpoint(str(GOLDEN_FOLDER / "qwen3")) as checkpoint:
        folder = tmp_path_factory.mktemp("gpu") / "engine"
        build(checkpoint, config, folder)
        resolved = config.resolve(checkpoint.config)
        network = build_network(checkpoint.config, checkpoint.tensors, resolved.seq_len)
        reference = Reference(
            run_pipeline(network, resolved), resolved.kv_format, fake_quantize=True
        )
        for weight in network.weights():  # the checkpoint is closed when the tests read
            array = weight.load()
            weight._loader = lambda array=array: array  # pyright: ignore[reportPrivateUsage]
    engine = open_engine(folder)
    facts = engine.manifest.target.tensorrt
    if facts is None or not facts.kernels:
        pytest.skip("the engine holds no GPU kernels: triton was not installed where it was built")
    return engine, reference


@pytest.fixture
def session(built: tuple[Engine, Reference]) -> Iterator[Any]:
    with contextlib.closing(open_session(built[0], kv_cache_memory=1 << 26)) as opened:
        yield opened


def test_a_conversation(built: tuple[Engine, Reference], session: Any) -> None:
    for batch in conversation(built[0].manifest.vocab_size):
        found, wanted = session.logits(batch), built[1].step(batch)
        assert np.abs(found - wanted).max() < 0.3


@pytest.mark.parametrize("overlap", [False, True])
def test_the_executors_tokens_do_not_depend_on_overlap(session: Any, overlap: bool) -> None:
    run = Run(session, ExecutorConfig(overlap=overlap))
    first, again = run.answers(PROMPTS, 24), run.answers(PROMPTS, 24)
    assert [tokens for tokens, _ in first] == [tokens for tokens, _ in again]
