"""Engines with kernels: what a build stores beside the plan, and what it says where it cannot."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from enginewright.builder.build import BuildReport, build
from enginewright.builder.config import BuildConfig
from enginewright.builder.config_tensorrt import TensorRTConfig
from enginewright.builder.targets.tensorrt import kernels
from enginewright.converters import open_checkpoint
from enginewright.runtime.artifact import open_engine
from tests.support.fake_tensorrt_builder import LAUNCHES
from tests.support.golden import GOLDEN_FOLDER
from tests.support.gpu_machine import gpu_machine

pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is for x86-64 Linux only")


def build_golden(folder: Path) -> BuildReport:
    config = BuildConfig(
        target="tensorrt-rtx",
        weights="f16",
        kv_dtype="int8",
        max_batch_size=4,
        max_num_tokens=32,
        self_check=False,
        tensorrt=TensorRTConfig(compute_capabilities=("8.6", "8.9")),
    )
    with open_checkpoint(str(GOLDEN_FOLDER / "llama-tied")) as checkpoint:
        return build(checkpoint, config, folder)


needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="needs triton, 0.5 GB that no install brings by itself (docs/nvidia.md)",
)


@needs_triton
def test_an_engine_holds_what_its_session_launches(tmp_path: Path) -> None:
    report = build_golden(tmp_path / "engine")
    manifest = open_engine(report.folder, "full").manifest
    facts = manifest.target.tensorrt
    assert facts is not None
    held = {(one.compute_capability, one.name, one.variant): one for one in facts.kernels}
    wanted = {("sample", ""), ("kv_store", "kv"), ("kv_store", "scale")}
    assert set(held) == {(c, *kernel) for c in ("8.6", "8.9") for kernel in wanted}
    for (_, name, _), one in held.items():
        assert one.symbol == name
        assert (report.folder / one.file).read_bytes()[:4] == b"\x7fELF"
        assert one.file in manifest.files
    assert not [note for note in report.notes if "no GPU kernels" in note]


def test_without_triton_an_engine_is_made_and_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "has_triton", lambda: False)
    report = build_golden(tmp_path / "engine")
    facts = open_engine(report.folder, "full").manifest.target.tensorrt
    assert facts is not None
    assert facts.kernels == ()
    assert any("triton, which is missing; pip install" in note for note in report.notes)


@needs_triton
@pytest.mark.parametrize("kv_dtype", ["f16", "fp8", "int8"])
def test_plugins_carry_kernels_that_triton_compiled(kv_dtype: str, tmp_path: Path) -> None:
    """The full library's builder is a stand-in; its code for plugins and the PTX are real."""
    config = BuildConfig(
        target="tensorrt",
        weights="f16",
        kv_dtype=kv_dtype,
        max_batch_size=4,
        max_num_tokens=32,
        self_check=False,
        tensorrt=TensorRTConfig(attention="plugin", compute_capabilities=("8.9",)),
    )
    with gpu_machine(), open_checkpoint(str(GOLDEN_FOLDER / "llama-tied")) as checkpoint:
        build(checkpoint, config, tmp_path / "engine")
    assert {one["name"] for one in LAUNCHES} == {"kv_write_op", "paged_attention"}
    for one in LAUNCHES:
        declared = one["ptx"].partition(f".entry {one['name']}(")[2].partition(")")[0]
        arguments = len(one["inputs"]) + len(one["extras"]) + len(one["outputs"])
        assert declared.count(".param") == arguments
        assert ".target sm_89" in one["ptx"]
