"""The build's orchestration, with a target and a session that stand in for compiled code."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enginewright.builder import build as build_module
from enginewright.builder import self_check as self_check_module
from enginewright.builder.build import BuildOptions, build
from enginewright.builder.config import BuildConfig
from enginewright.builder.model_config import ModelConfig
from enginewright.builder.models.registry import build_network
from enginewright.builder.network import Network
from enginewright.builder.progress import Progress
from enginewright.builder.reference import Reference
from enginewright.builder.targets.base import Reuse, TargetResult
from enginewright.runtime.artifact import Engine, open_engine
from enginewright.runtime.errors import BuildError, InputError
from enginewright.runtime.manifest import KvFacts, Needs
from enginewright.runtime.session import Batch, Float32Array

from ..support.tiny import ArrayTensor, as_tensors, make_tiny_config, make_tiny_weights


class TinyCheckpoint:
    """A checkpoint in memory."""

    def __init__(self) -> None:
        self.config: ModelConfig = make_tiny_config("llama")
        self.source = "tiny"
        self.tensors: dict[str, ArrayTensor] = as_tensors(make_tiny_weights(self.config))
        self.files = {"model.safetensors": "0" * 64}
        self.size_bytes = 1234

    def write_tokenizer(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "generation_config.json").write_text("{}")


class FakeTarget:
    """Writes two files and says that any machine can run them, or what it is told to do."""

    name = "cpu"

    def __init__(
        self, features: tuple[str, ...] = (), during: Callable[[Path], None] | None = None
    ) -> None:
        self.features = features
        self.during = during

    def describe(self, config: BuildConfig) -> dict[str, Any]:
        return {"isa": "portable", "features": [], "os": "", "machine": ""}

    def compile(
        self,
        network: Network,
        config: BuildConfig,
        folder: Path,
        progress: Progress,
        reuse: Reuse | None = None,
    ) -> TargetResult:
        self.reuse = reuse
        with progress.phase("compile", 1):
            (folder / "rank0.engine").write_bytes(b"code")
            (folder / "rank0.weights").write_bytes(b"weights")
            if self.during:
                self.during(folder)
            progress.advance()
        return TargetResult(
            files={"rank0.engine": "engine", "rank0.weights": "weights"},
            kv=KvFacts(dtype="f32", block_tokens=32, block_bytes=4096, num_layers=3),
            tensors=[],
            tactics={},
            needs=Needs(features=self.features, os="", machine=""),
            isa="portable",
            abi=1,
            notes=["a note of the target"],
        )


class FakeSession:
    """Computes with the reference, and errs by `error` on every logit of one token."""

    def __init__(self, checkpoint: TinyCheckpoint, error: float) -> None:
        network = build_network(checkpoint.config, checkpoint.tensors, 256)
        self._reference = Reference(network)
        self._error = error
        self.steps: list[Batch] = []
        self.closed = False

    def logits(self, batch: Batch) -> Float32Array:
        self.steps.append(batch)
        logits = self._reference.step(batch)
        logits[:, 7] += np.float32(self._error)
        return logits

    def close(self) -> None:
        self.closed = True


def test_what_earlier_builds_have_left_is_offered_to_the_target(
    checkpoint: TinyCheckpoint, use: Callable[..., FakeSession], tmp_path: Path
) -> None:
    target = FakeTarget()
    use(target)
    output, cache = tmp_path / "engine", tmp_path / "cache"
    sources = []
    for options, engine in (
        (BuildOptions(cache=cache), None),
        (BuildOptions(cache=cache, overwrite=True), output),
        (BuildOptions(overwrite=True), None),
    ):
        build(checkpoint, BuildConfig(weights="f32"), output, options=options)
        assert target.reuse is not None
        assert (target.reuse.engine, target.reuse.cache) == (engine, options.cache)
        sources.append(target.reuse.source())
    checkpoint.files = {"model.safetensors": "1" * 64}
    assert sources[0] == sources[1] == sources[2] != target.reuse.source()


@pytest.fixture
def checkpoint() -> TinyCheckpoint:
    return TinyCheckpoint()


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, checkpoint: TinyCheckpoint) -> Callable[..., FakeSession]:
    def install(target: FakeTarget | None = None, error: float = 0.0) -> FakeSession:
        session = FakeSession(checkpoint, error)
        chosen = target or FakeTarget()

        def missing(needs: Needs) -> list[str]:
            return list(needs.features)

        def open_session(engine: Engine, **options: Any) -> FakeSession:
            assert options["kv_cache_memory"] > 0
            return session

        monkeypatch.setattr(build_module, "get_target", lambda name: chosen)
        monkeypatch.setattr(build_module.machine, "missing", missing)
        monkeypatch.setattr(self_check_module, "open_session", open_session)
        return session

    return install


F32 = BuildConfig(weights="f32")


def test_a_build_makes_an_engine_that_opens(
    tmp_path: Path, checkpoint: TinyCheckpoint, use: Callable[..., FakeSession]
) -> None:
    session = use()
    report = build(checkpoint, F32, tmp_path / "tiny")
    manifest = open_engine(tmp_path / "tiny", "full").manifest
    assert manifest == report.manifest
    assert manifest.name == "tiny"
    assert manifest.model["vocab_size"] == checkpoint.config.vocab_size
    assert BuildConfig.from_json(manifest.build) == F32.resolve(checkpoint.config)
    assert manifest.source.parameters == sum(t.array.size for t in checkpoint.tensors.values())
    assert {"network", "passes", "compile", "hash", "self-check"} <= set(manifest.times)
    assert manifest.self_check is not None
    assert manifest.self_check.passed
    assert manifest.self_check.greedy_agreement == 1.0
    assert manifest.self_check.positions == 64
    assert "a note of the target" in report.notes
    assert session.closed
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_the_self_check_chunks_and_mixes_its_prompts(
    tmp_path: Path, checkpoint: TinyCheckpoint, use: Callable[..., FakeSession]
) -> None:
    session = use()
    build(checkpoint, F32, tmp_path / "tiny")
    assert any(len(batch.past_tokens) > 1 for batch in session.steps)
    assert any(batch.past_tokens.any() for batch in session.steps)


def test_a_wrong_engine_fails_the_build(
    tmp_path: Path, checkpoint: TinyCheckpoint, use: Callable[..., FakeSession]
) -> None:
    use(error=100.0)
    with pytest.raises(BuildError, match=r"self-check failed: mean KL .* at most 1e-06"):
        build(checkpoint, F32, tmp_path / "tiny")
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_engine_is_kept_when_asked(
    tmp_path: Path, checkpoint: TinyCheckpoint, use: Callable[..., FakeSession]
) -> None:
    use(error=100.0)
    report = build(checkpoint, F32, tmp_path / "tiny", options=BuildOptions(keep_going=True))
    assert report.manifest.self_check is not None
    assert not report.manifest.self_check.passed
    assert any("kept, as asked" in note for note in report.notes)


def test_logits_that_are_not_finite_fail_the_build(
    tmp_path: Path, checkpoint: TinyCheckpoint, use: Callable[..., FakeSession]
) -> None:
    use(error=float("nan"))
    with pytest.raises(BuildError, match="not finite"):
        build(checkpoint, F32, tmp_path / "tiny", options=BuildOptions(keep_going=True))


@pytest.mark.parametrize("reason", ["asked", "another machine"])
def test_a_check_that_cannot_run_is_said(
    tmp_path: Path, checkpoint: TinyCheckpoint, use: Callable[..., FakeSession], reason: str
) -> None:
    session = use(FakeTarget(("warp_drive",) if reason == "another machine" else ()))
    config = BuildConfig(weights="f32", self_check=reason != "asked")
    report = build(checkpoint, config, tmp_path / "tiny")
    assert report.manifest.self_check is None
    assert session.steps == []
    expected = "lacks warp_drive" if reason == "another machine" else "as asked"
    assert any(expected in note for note in report.notes)


@pytest.mark.parametrize("error", [KeyboardInterrupt, BuildError("no compiler"), OSError("full")])
def test_a_build_that_stops_leaves_nothing(
    tmp_path: Path,
    checkpoint: TinyCheckpoint,
    use: Callable[..., FakeSession],
    error: type[BaseException] | BaseException,
) -> None:
    def stop(folder: Path) -> None:
        raise error

    use(FakeTarget(during=stop))
    with pytest.raises((KeyboardInterrupt, BuildError, OSError)):
        build(checkpoint, F32, tmp_path / "a" / "tiny")
    assert list(tmp_path.iterdir()) == []


def test_two_builds_at_once_give_one_whole_engine(
    tmp_path: Path, checkpoint: TinyCheckpoint, use: Callable[..., FakeSession]
) -> None:
    def build_another(folder: Path) -> None:
        use()
        build(checkpoint, F32, tmp_path / "tiny", options=BuildOptions(name="inner"))

    use(FakeTarget(during=build_another))
    with pytest.raises(InputError, match="already holds an engine"):
        build(checkpoint, F32, tmp_path / "tiny", options=BuildOptions(name="outer"))
    assert open_engine(tmp_path / "tiny", "full").manifest.name == "inner"
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_the_manifest_is_json_with_the_version_first(
    tmp_path: Path, checkpoint: TinyCheckpoint, use: Callable[..., FakeSession]
) -> None:
    use()
    build(checkpoint, F32, tmp_path / "tiny", options=BuildOptions(name="named"))
    raw = json.loads((tmp_path / "tiny" / "engine.json").read_text())
    assert next(iter(raw)) == "schema_version"
    assert raw["name"] == "named"


def test_passes_are_dumped_when_asked(
    tmp_path: Path, checkpoint: TinyCheckpoint, use: Callable[..., FakeSession]
) -> None:
    use()
    dumps = tmp_path / "dumps"
    build(checkpoint, F32, tmp_path / "tiny", options=BuildOptions(dump_passes=dumps))
    assert list(dumps.glob("*.txt"))
