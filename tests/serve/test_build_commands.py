"""The commands that make and read engines: what they print, and how they end."""

import dataclasses
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from enginewright import converters
from enginewright.builder import build as build_module
from enginewright.builder.build import BuildOptions, BuildReport
from enginewright.builder.config import BuildConfig
from enginewright.builder.config_tensorrt import TensorRTConfig
from enginewright.builder.targets import base
from enginewright.runtime import machine
from enginewright.runtime.cuda import GpuDevice, Probe
from enginewright.runtime.cuda_contract import CONTRACT_VERSION
from enginewright.runtime.errors import (
    EngineDamagedError,
    EngineError,
    EngineVersionError,
    IncompatibleMachineError,
    InputError,
)
from enginewright.runtime.manifest import Needs, TargetFacts
from enginewright.serve.commands import build, check, inspect

from ..support.engines import GPU_FACTS, make_engine, make_manifest
from ..support.tiny import as_tensors, make_tiny_config, make_tiny_weights


def run(command: click.Command, *arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def missing(*features: str) -> Callable[[object], list[str]]:
    return lambda needs: list(features)


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    make_engine(tmp_path / "engine")
    return tmp_path / "engine"


def test_inspect_prints_what_the_engine_is(engine: Path) -> None:
    result = run(inspect.command, engine)
    assert result.exit_code == 0, result.output
    for text in ("tiny", "portable", "weights int8", "mean KL 0.002", "rank0.weights", "4.1 kB"):
        assert text in result.output
    assert "embedding.weight" not in result.output
    assert "embedding.weight" in run(inspect.command, engine, "--tensors").output


def test_inspect_shows_how_products_and_steps_are_cut(engine: Path) -> None:
    result = run(inspect.command, engine, "--tactics")
    assert result.exit_code == 0, result.output
    for text in ("cost model", "tiles of 96 tokens", "head 64x32 int8_64", "6p"):
        assert text in result.output


def test_inspect_json_is_the_manifest(engine: Path) -> None:
    result = run(inspect.command, engine, "--json")
    assert json.loads(result.output) == json.loads((engine / "engine.json").read_text())


def test_inspect_shows_brackets_as_they_are(tmp_path: Path) -> None:
    make_engine(tmp_path / "engine", name="[bold]x[/nothing]")
    assert "[bold]x[/nothing]" in run(inspect.command, tmp_path / "engine").output


def test_inspect_describes_a_damaged_engine_and_fails(engine: Path) -> None:
    (engine / "rank0.weights").unlink()
    result = run(inspect.command, engine)
    assert "portable" in result.output
    assert isinstance(result.exception, EngineDamagedError)


def test_check_says_that_an_engine_can_run(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "missing", missing())
    assert "can run on this machine" in run(check.command, engine).output
    assert "every byte" in run(check.command, engine, "--full").output


def test_check_names_what_the_machine_lacks(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "missing", missing("avx512_vnni", "avx512_bf16"))
    result = run(check.command, engine)
    assert isinstance(result.exception, IncompatibleMachineError)
    assert "avx512_vnni, avx512_bf16" in str(result.exception)


def test_check_tells_damage_from_age_from_nothing(engine: Path, tmp_path: Path) -> None:
    assert isinstance(run(check.command, tmp_path / "no").exception, EngineError)
    path = engine / "engine.json"
    raw = json.loads(path.read_text())
    path.write_text(json.dumps({**raw, "schema_version": 99}))
    assert isinstance(run(check.command, engine).exception, EngineVersionError)
    path.write_text(json.dumps({**raw, "target": {**raw["target"], "abi": 99}}))
    assert isinstance(run(check.command, engine).exception, EngineVersionError)
    path.write_text(json.dumps({**raw, "limits": {}}))
    assert isinstance(run(check.command, engine).exception, EngineDamagedError)


@dataclasses.dataclass
class OpenedCheckpoint:
    """What the build command gets from the converters."""

    config: Any
    tensors: Any
    size_bytes: int = 1_000_000

    def __enter__(self) -> "OpenedCheckpoint":
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is open."""


class DescribedTarget:
    """A target that only says what it would need."""

    def describe(self, config: BuildConfig) -> dict[str, Any]:
        return {"isa": "portable", "features": [], "os": "linux", "machine": "x86_64"}


class Builder:
    """Stands in for builder.build.build and notes what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
        config = make_tiny_config("llama")
        opened = OpenedCheckpoint(config, as_tensors(make_tiny_weights(config)))
        self.config: BuildConfig | None = None
        self.options: BuildOptions | None = None
        self._action = action
        monkeypatch.setattr(converters, "open_checkpoint", lambda name: opened)
        monkeypatch.setattr(build_module, "build", self._build)
        monkeypatch.setattr(base, "get_target", lambda name: DescribedTarget())

    def _build(
        self,
        source: object,
        config: BuildConfig,
        output: Path,
        observer: Any,
        options: BuildOptions,
    ) -> BuildReport:
        self.config, self.options = config, options
        observer.phase_started("compile", 2)
        observer.phase_advanced("compile", 1, "note")
        self._action()
        observer.phase_ended("compile", 1.5, 123_000_000)
        return BuildReport(output, make_manifest(), ("a note [with brackets]",))


def nothing() -> None:
    """A build that goes well."""


def test_build_passes_its_options_on_and_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = Builder(monkeypatch, nothing)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    flags = ["--quant", "bf16", "--max-batch-size", "3", "--no-self-check", "--keep-going"]
    result = run(build.command, "model", "-o", tmp_path / "e", "--name", "n", "--overwrite", *flags)
    assert result.exit_code == 0, result.output
    assert builder.config == BuildConfig(weights="bf16", max_batch_size=3, self_check=False)
    assert builder.options == BuildOptions("n", True, True, None, tmp_path / "enginewright")
    run(build.command, "model", "-o", tmp_path / "f", "--no-cache")
    assert builder.options == BuildOptions(cache=None)
    for text in (
        "compile",
        "1.5 s",
        "123 MB",
        "mean KL 0.002",
        "greedy agreement 98.0%",
        "a note [with brackets]",
        f"Next: enginewright serve {tmp_path / 'e'}",
    ):
        assert text in result.output


def interrupt() -> None:
    raise KeyboardInterrupt


def terminate() -> None:
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("action", [interrupt, terminate])
def test_an_interrupted_build_exits_with_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    Builder(monkeypatch, action)
    result = run(build.command, "model", "-o", tmp_path / "e")
    assert result.exit_code == 130
    assert "nothing was left behind" in result.output
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_dry_run_prints_sizes_and_builds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = Builder(monkeypatch, nothing)
    result = run(build.command, "model", "-o", tmp_path / "e", "--dry-run", "--max-seq-len", "64")
    assert result.exit_code == 0, result.output
    for text in (
        "engine's weights",
        "KV cache, a token",
        "memory of the build",
        "Nothing was built",
    ):
        assert text in result.output
    assert builder.config is None
    assert list(tmp_path.iterdir()) == []


def test_a_taken_output_is_refused_before_the_checkpoint_is_read(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = Builder(monkeypatch, nothing)
    result = run(build.command, "model", "-o", engine)
    assert isinstance(result.exception, InputError)
    assert builder.config is None


def gpu_engine(folder: Path) -> Path:
    """Write an engine whose manifest is that of a GPU's; its plan is a few bytes."""
    target = TargetFacts(
        name="tensorrt-rtx",
        isa="sm_86, sm_89",
        needs=Needs(features=(), os="linux", machine=machine.detect().arch),
        abi=CONTRACT_VERSION,
        tensorrt=GPU_FACTS,
    )
    make_engine(folder, target=target)
    return folder


def test_inspect_says_which_gpu_an_engine_needs(tmp_path: Path) -> None:
    output = run(inspect.command, gpu_engine(tmp_path / "engine")).output
    assert "tensorrt-rtx 1.7.1.116, CUDA 13, compute capability 8.6 or 8.9" in output


def test_check_compares_a_gpu_engine_with_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = gpu_engine(tmp_path / "engine")
    monkeypatch.setattr(check, "probe", lambda: Probe("there is no NVIDIA driver here"))
    result = run(check.command, engine)
    assert isinstance(result.exception, IncompatibleMachineError)
    assert "it needs an NVIDIA GPU (there is no NVIDIA driver here)" in str(result.exception)
    device = GpuDevice("RTX 4090", "8.9", 24 << 30)
    monkeypatch.setattr(check, "probe", lambda: Probe("", "13.0", (device,)))
    monkeypatch.setattr(check, "differences", lambda facts, probe: [])
    result = run(check.command, engine)
    assert result.exit_code == 0, result.exception
    assert "device: RTX 4090, compute capability 8.9" in result.output


def test_a_build_for_a_gpu_takes_its_options_and_prints_the_devices_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_target = base.get_target
    builder = Builder(monkeypatch, nothing)
    monkeypatch.setattr(base, "get_target", get_target)
    flags = ["--target", "tensorrt-rtx", "--compute-capability", "8.9, 12.0", "--quant", "int4"]
    flags += ["--multiple-profiles"]
    result = run(build.command, "model", "-o", tmp_path / "e", *flags)
    assert result.exit_code == 0, result.exception
    assert builder.config == BuildConfig(
        target="tensorrt-rtx",
        weights="int4",
        tensorrt=TensorRTConfig(compute_capabilities=("8.9", "12.0"), multiple_profiles=True),
    )
    for text in ("sm_89, sm_120", "workspace of a step", "memory of the device"):
        assert text in result.output
    result = run(build.command, "model", "-o", tmp_path / "e", *flags, "--strip-plan")
    assert isinstance(result.exception, InputError)
