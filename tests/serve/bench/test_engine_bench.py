"""`bench engine` on a tiny engine: what it runs, and what it says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from enginewright.runtime.errors import InputError
from enginewright.runtime.manifest import TensorFacts
from enginewright.serve.bench.engine import DECODE, PREFILL, EngineBench, EngineCase
from enginewright.serve.bench.profile import kernel_times
from enginewright.serve.commands.bench import command
from tests.support.cpu_engine import EngineCache, Spec

SPEC = Spec("llama", "int8", "generic")


def test_names_and_blocks() -> None:
    assert EngineCase(PREFILL, 512, 0, 1).name == "pp512"
    assert EngineCase(DECODE, 64, 1024, 8).name == "tg64 @ d1024"
    assert EngineCase(DECODE, 1, 32, 3).blocks(32) == 6


@pytest.mark.parametrize(
    ("case", "steps"),
    [
        (EngineCase(PREFILL, 40, 0, 1), 1),
        (EngineCase(PREFILL, 600, 10, 3), 2),  # 1800 tokens in steps of 1024
        (EngineCase(DECODE, 5, 33, 4), 5),
    ],
)
def test_steps(engines: EngineCache, case: EngineCase, steps: int) -> None:
    with engines.session(SPEC) as session:
        result = EngineBench(session).run(case, 2)
    assert result.steps == 2 * steps
    assert len(result.rates) == 2
    assert all(rate > 0 for rate in result.rates)


def test_the_command(engines: EngineCache) -> None:
    folder = str(engines.get(SPEC).folder)
    options = ["-p", "16", "-n", "4", "-b", "1,2", "-r", "2", "--kv-cache-memory", "4MB"]
    done = CliRunner().invoke(command, ["engine", folder, *options])
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.output.splitlines()[1:]] == ["pp16"] * 2 + ["tg4"] * 2
    done = CliRunner().invoke(command, ["engine", folder, *options, "--json", "--profile"])
    figures = json.loads(done.output)
    assert figures["weights"] == "int8"
    assert [result["test"] for result in figures["results"]] == ["pp16", "pp16", "tg4", "tg4"]
    kernels = figures["results"][2]["kernels"]
    assert sum(kernel["share"] for kernel in kernels) == pytest.approx(1.0)
    assert any(kernel["gigabytes_per_second"] for kernel in kernels)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-p", "999999"], "tokens a sequence"),
        (["-b", "5000"], "sequences of a step"),
        (["-p", "1400", "-b", "64", "--kv-cache-memory", "1MB"], "KV blocks"),
    ],
)
def test_what_does_not_fit(engines: EngineCache, options: list[str], words: str) -> None:
    done = CliRunner().invoke(command, ["engine", str(engines.get(SPEC).folder), *options])
    assert isinstance(done.exception, InputError)
    assert words in str(done.exception)


def test_profiles_by_hand() -> None:
    def tensor(name: str, shape: tuple[int, ...], size: int) -> TensorFacts:
        return TensorFacts(
            name=name, shape=shape, format="int8", file="rank0.weights", offset=0, bytes=size
        )

    tensors = [tensor("a", (4, 8), 10**9), tensor("b", (4, 8), 10**9), tensor("c", (2, 8), 5)]
    slots = [("wait", 1.0, 2), ("linear 4x8", 4.0, 4), ("linear 4x8", 2.0, 4), ("norm", 0.0, 0)]
    linear, wait = kernel_times(slots, tensors, steps=3, threads=2)
    assert (linear.name, linear.seconds, linear.calls) == ("linear 4x8", 3.0, 8)
    assert linear.gigabytes_per_second == pytest.approx(2.0)  # 2 GB a step, 3 steps, 3 s
    assert linear.share == pytest.approx(3 / 3.5)
    assert (wait.name, wait.gigabytes_per_second) == ("wait", None)


def test_no_engine(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["engine", str(tmp_path)])
    assert done.exit_code != 0
