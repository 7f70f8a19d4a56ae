"""What a CPU session says when it cannot be opened: options, machine, code, weights, memory."""

from __future__ import annotations

import _ctypes
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from enginewright.runtime import machine
from enginewright.runtime.artifact import Engine, open_engine
from enginewright.runtime.errors import (
    EngineDamagedError,
    EngineVersionError,
    IncompatibleMachineError,
    InputError,
    OutOfMemoryError,
)
from enginewright.runtime.session_cpu import CODE_FILE, WEIGHTS_FILE, CpuSession
from tests.support.cpu_engine import EngineCache, family_spec


@pytest.fixture
def engine(engines: EngineCache) -> Engine:
    """An engine that nobody changes."""
    return engines.get(family_spec("llama", "int8"))


def with_manifest(engine: Engine, **changes: Any) -> Engine:
    return Engine(engine.folder, msgspec.structs.replace(engine.manifest, **changes))


def copied(engine: Engine, folder: Path) -> Engine:
    shutil.copytree(engine.folder, folder)
    return Engine(folder, engine.manifest)


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 0},
        {"threads": 1025},
        {"threads": -1},
        {"max_batch_size": 0},
        {"max_batch_size": 513},
        {"max_num_tokens": 0},
        {"max_num_tokens": 1025},
    ],
    ids=str,
)
def test_options_out_of_range_are_named(engine: Engine, options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(InputError, match=f"{name} is {value}, expected 1 to "):
        CpuSession(engine, **options)


def test_a_missing_feature_is_one_sentence(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = msgspec.structs.replace(engine.manifest.target.needs, features=("avx9000", "magic"))
    target = msgspec.structs.replace(engine.manifest.target, needs=needs)
    with pytest.raises(IncompatibleMachineError) as caught:
        CpuSession(with_manifest(engine, target=target))
    assert (
        "lacks the processor feature avx9000, the processor feature magic; build it again"
        in str(caught.value)
    )
    bare = dataclasses.replace(machine.detect(), arch="riscv64")
    monkeypatch.setattr(machine, "detect", lambda: bare)
    with pytest.raises(IncompatibleMachineError, match=r"architecture .* \(this is riscv64\)"):
        CpuSession(engine)


def test_another_abi_is_refused(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enginewright.runtime.session_cpu.ABI_VERSION", 99)
    with pytest.raises(EngineVersionError, match="speaks 99; build the engine again"):
        CpuSession(engine)


def test_code_and_manifest_must_agree_about_a_block(engine: Engine) -> None:
    kv = msgspec.structs.replace(
        engine.manifest.kv, block_bytes=engine.manifest.kv.block_bytes + 64
    )
    with pytest.raises(EngineDamagedError, match=r"KV blocks of \d+ bytes and its manifest says"):
        CpuSession(with_manifest(engine, kv=kv))


@pytest.mark.parametrize("content", [b"", b"not an object file" * 300], ids=["empty", "rubbish"])
def test_code_that_cannot_be_loaded_is_refused(
    engine: Engine, tmp_path: Path, content: bytes
) -> None:
    broken = copied(engine, tmp_path / "engine")
    (broken.folder / CODE_FILE).write_bytes(content)
    with pytest.raises(EngineDamagedError, match=r"rank0\.engine cannot be loaded"):
        CpuSession(broken)


def test_a_shared_object_that_is_no_engine_is_refused(engine: Engine, tmp_path: Path) -> None:
    broken = copied(engine, tmp_path / "engine")
    shutil.copy(_ctypes.__file__, broken.folder / CODE_FILE)
    with pytest.raises(EngineDamagedError, match=r"rank0\.engine cannot be loaded"):
        CpuSession(broken)


def test_empty_weights_are_refused(engine: Engine, tmp_path: Path) -> None:
    broken = copied(engine, tmp_path / "engine")
    (broken.folder / WEIGHTS_FILE).write_bytes(b"")
    with pytest.raises(EngineDamagedError, match=r"rank0\.weights cannot be mapped"):
        CpuSession(broken, 1, 1 << 22)


def test_truncated_weights_are_refused_when_the_engine_is_opened(
    engine: Engine, tmp_path: Path
) -> None:
    broken = copied(engine, tmp_path / "engine")
    path = broken.folder / WEIGHTS_FILE
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(EngineDamagedError, match=r"rank0\.weights has 5000 bytes, expected"):
        open_engine(broken.folder)


def test_missing_weights_are_refused(engine: Engine, tmp_path: Path) -> None:
    broken = copied(engine, tmp_path / "engine")
    (broken.folder / WEIGHTS_FILE).unlink()
    with pytest.raises(EngineDamagedError, match=r"rank0\.weights cannot be mapped"):
        CpuSession(broken)


def test_a_budget_too_small_for_a_block_is_refused(engine: Engine) -> None:
    with pytest.raises(OutOfMemoryError, match="budget of 100 bytes"):
        CpuSession(engine, kv_cache_memory=100)
