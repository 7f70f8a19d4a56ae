"""The build: checkpoint and configuration in, engine folder out. The only orchestration."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ..runtime import machine
from ..runtime.artifact import TOKENIZER_FOLDER, open_engine, write_engine, write_manifest
from ..runtime.engine_writer import EngineWriter
from ..runtime.errors import BuildError
from ..runtime.manifest import (
    FileFacts,
    Limits,
    Manifest,
    Producer,
    Quantization,
    SelfCheckFigures,
    Source,
    TargetFacts,
)
from ..runtime.version import VERSION
from .config import BuildConfig
from .layers import TensorSource
from .model_config import ModelConfig
from .models.registry import build_network
from .network import Network
from .passes.pipeline import run_pipeline
from .progress import BuildObserver, Progress
from .self_check import self_check
from .targets.base import Reuse, TargetResult, get_target


class CheckpointSource(Protocol):
    """What a build reads: an opened checkpoint, whatever its origin."""

    config: ModelConfig
    source: str

    @property
    def tensors(self) -> Mapping[str, TensorSource]:
        """Every tensor, lazily, under its canonical name."""
        ...

    @property
    def files(self) -> Mapping[str, str]:
        """The sha256 of each file of the checkpoint."""
        ...

    @property
    def size_bytes(self) -> int:
        """Bytes of the checkpoint's files."""
        ...

    def write_tokenizer(self, folder: Path) -> None:
        """Write tokenizer.json and what belongs to it into a folder."""
        ...


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a build made, and what a person should know about it."""

    folder: Path
    manifest: Manifest
    notes: tuple[str, ...]  # sentences: a check that was skipped, a warning of the target


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How a build goes about its work; none of it changes the engine."""

    name: str | None = None  # of the model, for people and for the server; None: the output's name
    overwrite: bool = False  # replace an engine that stands at the output
    keep_going: bool = False  # keep an engine whose self-check failed
    dump_passes: Path | None = None  # folder for the printed network after every pass
    cache: Path | None = None  # folder for what builds leave for each other; None: reuse nothing


def build(
    checkpoint: CheckpointSource,
    config: BuildConfig,
    output: Path,
    observer: BuildObserver | None = None,
    options: BuildOptions | None = None,
) -> BuildReport:
    """Build an engine at `output`, whole or not at all, and check it against the reference.

    Raises BuildError, InputError or CheckpointError; on any error, and on Ctrl-C, nothing is left.
    """
    options = options or BuildOptions()
    config = config.resolve(checkpoint.config)
    progress = Progress(observer)
    target = get_target(config.target)
    target.describe(config)  # refuses what it cannot compile before anything is read
    with EngineWriter(output, options.overwrite) as writer:
        with progress.phase("network"):
            network = build_network(
                checkpoint.config, checkpoint.tensors, config.seq_len, embeds=config.embeds
            )
        with progress.phase("passes"):
            run_pipeline(
                network,
                config,
                dump_dir=options.dump_passes,
                observer=lambda name, modified, seconds: progress.advance(1, name),
            )
        reuse = Reuse(
            lambda: _identity(checkpoint),
            writer.output if options.cache and writer.output.exists() else None,
            options.cache,
        )
        result = target.compile(network, config, writer.folder, progress, reuse)
        with progress.phase("tokenizer"):
            (writer.folder / TOKENIZER_FOLDER).mkdir()
            checkpoint.write_tokenizer(writer.folder / TOKENIZER_FOLDER)
        with progress.phase("hash"):
            name = options.name or writer.output.name
            manifest = _manifest(checkpoint, config, network, result, name)
            manifest = write_engine(writer.folder, manifest)
        notes = list(result.notes)
        if config.tactics is not None and result.tune is not None:
            missing = machine.missing(result.needs)
            if missing:
                notes.append(
                    f"tactics are the cost model's: this machine lacks {', '.join(missing)}"
                )
            else:
                with progress.phase("tactics"):
                    engine = open_engine(writer.folder)
                    tuned = result.tune(engine, config.tactics, options.cache, progress)
                manifest = msgspec.structs.replace(manifest, tactics=tuned)
                write_manifest(writer.folder, manifest)
        figures = None
        skip = _why_not_checked(config, result)
        if skip:
            notes.append(skip)
        else:
            with progress.phase("self-check"):
                plain = build_network(checkpoint.config, checkpoint.tensors, config.seq_len)
                opener = None if isinstance(result.opener, str) else result.opener
                figures = self_check(open_engine(writer.folder), plain, progress, opener)
            notes += _judge(figures, options.keep_going)
        if result.scratch is not None:
            shutil.rmtree(result.scratch, ignore_errors=True)
        manifest = msgspec.structs.replace(
            manifest,
            self_check=figures,
            times={phase: round(seconds, 4) for phase, seconds in progress.times.items()},
            peak_memory_bytes=progress.peak_memory_bytes,
        )
        write_manifest(writer.folder, manifest)
        writer.commit()
    return BuildReport(writer.output, manifest, tuple(notes))


def user_cache() -> Path:
    """Return where the builds of this user leave things for each other."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "enginewright"


def _identity(checkpoint: CheckpointSource) -> str:
    facts = [_as_dict(checkpoint.config), dict(checkpoint.files)]
    return hashlib.sha256(msgspec.json.encode(facts, order="deterministic")).hexdigest()


def _manifest(
    checkpoint: CheckpointSource,
    config: BuildConfig,
    network: Network,
    result: TargetResult,
    name: str,
) -> Manifest:
    files: dict[str, FileFacts] = {}
    return Manifest(
        producer=Producer(name="enginewright", version=VERSION),
        name=name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        model=_as_dict(checkpoint.config),
        build=config.to_json(),
        target=TargetFacts(
            name=config.target,
            isa=result.isa,
            needs=result.needs,
            abi=result.abi,
            tensorrt=result.tensorrt,
        ),
        limits=Limits(
            max_batch_size=config.max_batch_size,
            max_num_tokens=config.max_num_tokens,
            max_seq_len=config.seq_len,
        ),
        kv=result.kv,
        tensors=tuple(result.tensors),
        tactics=result.tactics,
        files=files,
        recipes=result.recipes,
        source=Source(
            name=checkpoint.source,
            files=dict(checkpoint.files),
            parameters=sum(math.prod(t.shape) for t in checkpoint.tensors.values()),
            bytes=checkpoint.size_bytes,
        ),
        quantization=_quantization(config, network),
        self_check=None,
        times={},
        peak_memory_bytes=0,
    )


def _quantization(config: BuildConfig, network: Network) -> Quantization:
    groups = {node.attrs["group"] for node in network.nodes if "group" in node.attrs}
    return Quantization(
        weights=config.weights,
        head="none" if config.embeds else config.head_format,
        activations=f"int8 in groups of {min(groups)}" if groups else config.compute_dtype,
        kv=config.kv_format,
    )


def _as_dict(model: ModelConfig) -> dict[str, Any]:
    """Return the config as JSON gives it back: tuples are lists."""
    return msgspec.json.decode(msgspec.json.encode(dataclasses.asdict(model)))


def _why_not_checked(config: BuildConfig, result: TargetResult) -> str | None:
    if not config.self_check:
        return "the self-check was skipped, as asked: nothing is known about this engine's accuracy"
    if isinstance(result.opener, str):
        return result.opener
    missing = machine.missing(result.needs) if result.opener is None else []
    if missing:
        return (
            f"the self-check was skipped: this machine lacks {', '.join(missing)}, which the "
            "engine needs"
        )
    return None


def _judge(figures: SelfCheckFigures, keep_going: bool) -> list[str]:
    """Raise BuildError for an engine that is wrong, or return a warning if it is to be kept."""
    if figures.passed:
        return []
    found = (
        f"the self-check failed: mean KL {figures.mean_kl:.3g} over {figures.positions} tokens, "
        f"expected at most {figures.kl_limit:.3g}"
    )
    if keep_going:
        return [f"{found}; the engine was kept, as asked"]
    raise BuildError(
        f"{found}; no engine was written: choose a wider format with --quant, or keep it with "
        "--keep-going"
    )
