"""Builds with the full TensorRT: its builder is a stand-in, its code for plugins is NVIDIA's own.

What is built is opened on the same machine, whose GPU is the host, and gives the reference's
logits: both forms of attention, and plans that were stripped of their weights.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enginewright.builder.build import BuildReport, build
from enginewright.builder.config import BuildConfig
from enginewright.builder.config_tensorrt import TensorRTConfig
from enginewright.builder.models.registry import build_network
from enginewright.builder.passes.pipeline import run_pipeline
from enginewright.builder.reference import Reference
from enginewright.builder.targets.tensorrt import kernels, plugins
from enginewright.builder.targets.tensorrt.library import load_library
from enginewright.converters import open_checkpoint
from enginewright.runtime.artifact import WEIGHTS_FILE, open_engine
from enginewright.runtime.errors import BuildError, EngineError
from enginewright.runtime.open_tensorrt import MODEL_FILE
from enginewright.runtime.session import open_session
from tests.support import fake_kernels
from tests.support.conversation import conversation
from tests.support.fake_tensorrt_builder import LAUNCHES
from tests.support.golden import GOLDEN_FOLDER
from tests.support.gpu_machine import gpu_machine

if importlib.util.find_spec("tensorrt_bindings") is None:
    pytest.skip("TensorRT's bindings are for x86-64 Linux only", allow_module_level=True)

MODEL = GOLDEN_FOLDER / "qwen3"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with a GPU and the full library; kernels are not compiled."""
    monkeypatch.setattr(kernels, "has_triton", lambda: True)
    monkeypatch.setattr(plugins, "has_triton", lambda: True)
    monkeypatch.setattr(kernels, "compile_kernels", fake_kernels.compile_kernels)
    monkeypatch.setattr(plugins, "compile_kernels", fake_kernels.compile_kernels)
    with gpu_machine():
        yield


def make_config(kv_dtype: str | None = None, **gpu: Any) -> BuildConfig:
    gpu = {"compute_capabilities": ("8.9",), "compute_dtype": "f32"} | gpu
    return BuildConfig(
        target="tensorrt",
        weights="f32",
        kv_dtype=kv_dtype,
        max_batch_size=16,
        max_num_tokens=64,
        tensorrt=TensorRTConfig(**gpu),
    )


def build_golden(folder: Path, config: BuildConfig) -> BuildReport:
    with open_checkpoint(str(MODEL)) as checkpoint:
        return build(checkpoint, config, folder)


def largest_error(folder: Path, config: BuildConfig) -> float:
    """Return the largest difference of an engine's logits from the interpreter's."""
    worst = 0.0
    engine = open_engine(folder, "full")
    with open_checkpoint(str(MODEL)) as checkpoint:
        resolved = config.resolve(checkpoint.config)
        network = build_network(checkpoint.config, checkpoint.tensors, resolved.seq_len)
        network = run_pipeline(network, resolved)
        reference = Reference(network, resolved.kv_format, fake_quantize=True, rotate_keys=False)
        with contextlib.closing(open_session(engine, kv_cache_memory=1 << 24)) as session:
            for batch in conversation(checkpoint.config.vocab_size):
                error = np.abs(session.logits(batch) - reference.step(batch)).max()
                worst = max(worst, float(error))
    return worst


@pytest.mark.parametrize("kv_dtype", [None, "int8"])
@pytest.mark.parametrize("attention", ["gather", "plugin"])
def test_an_engine_is_built_and_runs(attention: str, kv_dtype: str | None, tmp_path: Path) -> None:
    config = make_config(kv_dtype, attention=attention)
    report = build_golden(tmp_path / "engine", config)
    manifest = open_engine(report.folder).manifest
    assert manifest.self_check is not None
    assert manifest.self_check.passed
    layers = manifest.tactics["layers"].get("PLUGIN_V3", 0)
    assert layers == (2 * manifest.kv.num_layers if attention == "plugin" else 0)
    assert largest_error(report.folder, config) < (1e-4 if kv_dtype is None else 0.05)


@pytest.mark.parametrize("kv_dtype", ["f32", "int8"])
def test_plugins_are_what_tensorrt_is_told(kv_dtype: str, tmp_path: Path) -> None:
    """Types, sizes, aliases and launches come out of NVIDIA's own classes as they went in."""
    config = make_config(kv_dtype, attention="plugin")
    build_golden(tmp_path / "engine", config)
    manifest = open_engine(tmp_path / "engine").manifest
    suffix = "WithScales" if kv_dtype == "int8" else ""
    profiles = 2
    counts = {
        op: sum(one["op"] == op + suffix for one in LAUNCHES)
        for op in ("KvWrite", "PagedAttention")
    }
    assert set(counts.values()) == {profiles * manifest.kv.num_layers}
    for one in LAUNCHES:
        sizes = [tuple(size for size, _ in shape) for _, shape in one["inputs"]]
        arguments = len(one["inputs"]) + len(one["extras"]) + len(one["outputs"])
        assert one["ptx"].count(".param .u64") == arguments
        tokens = sizes[0][0]
        if one["op"].startswith("KvWrite"):
            assert one["aliases"] == list(range(3, len(sizes)))
            assert (
                one["outputs"]
                == [(dtype, size) for (dtype, _), size in zip(one["inputs"], sizes, strict=True)][
                    3:
                ]
            )
            assert (one["name"], one["extras"]) == ("kv_write_op", [])
            assert one["launch"]["grid_x"] == tokens
        else:
            assert one["aliases"] == [-1]
            assert one["outputs"] == [(one["inputs"][0][0], sizes[0])]
            seqs, blocks = sizes[3]
            assert (one["name"], one["extras"]) == ("paged_attention", [seqs, blocks])
            assert tokens // 64 + seqs <= one["launch"]["grid_x"] <= tokens + seqs
        assert one["launch"]["grid_y"] == sizes[-1][1]
        assert one["launch"]["block_x"] % 32 == 0


def test_a_kernel_that_does_not_compile_ends_the_build_in_its_own_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise BuildError("the kernel kv_write for compute capability 8.9 does not compile: no")

    monkeypatch.setattr(plugins, "compile_kernels", fail)
    with pytest.raises(BuildError, match=r"^the kernel kv_write .* does not compile: no$"):
        build_golden(tmp_path / "engine", make_config(attention="plugin"))


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        ({"compute_capabilities": ("7.5",)}, "compiled for one device among 8.0, 8.6.* for 7.5"),
        ({"compute_capabilities": ("8.6", "8.9")}, "this build is for 8.6, 8.9; give one of them"),
    ],
)
def test_plugins_are_for_one_device(gpu: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=words):
        build_golden(tmp_path / "engine", make_config(attention="plugin", **gpu))


@pytest.mark.parametrize(
    ("gpu", "architecture"),
    [
        ({"compute_capabilities": ()}, "8.9"),  # of this machine
        ({"hardware_compatible": "ampere_plus"}, "8.0"),
    ],
)
def test_the_device_that_plugins_are_compiled_for(
    gpu: dict[str, Any], architecture: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted: list[str] = []

    def note(variants: Any, capabilities: list[str], *rest: Any, **options: Any) -> Any:
        wanted.extend(capabilities)
        return fake_kernels.compile_kernels(variants, capabilities, *rest, **options)

    monkeypatch.setattr(plugins, "compile_kernels", note)
    build_golden(tmp_path / "engine", make_config(attention="plugin", **gpu))
    assert wanted == [architecture] * 2  # each kernel once, for all layers and profiles


def test_without_plugins_or_triton_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    rtx = pytest.importorskip("tensorrt_rtx")
    library = load_library("tensorrt-rtx")
    assert library.module is rtx
    with pytest.raises(
        BuildError, match=r"no plugins .* \(there is no tensorrt_rtx\.plugin\), which"
    ):
        plugins.register_plugins(library, make_config(attention="plugin"))
    monkeypatch.setattr(plugins, "has_triton", lambda: False)
    with pytest.raises(BuildError, match="triton, which is missing: pip install"):
        plugins.register_plugins(load_library("tensorrt"), make_config(attention="plugin"))


def test_a_stripped_plan_gets_its_weights_when_it_is_opened(tmp_path: Path) -> None:
    config = make_config(strip_plan=True, version_compatible=True)
    folder = build_golden(tmp_path / "engine", config).folder
    manifest = open_engine(folder).manifest
    facts = manifest.target.tensorrt
    assert facts is not None
    assert (facts.stripped, facts.version_compatible) == (True, True)
    assert {MODEL_FILE, WEIGHTS_FILE} <= set(manifest.files)
    assert largest_error(folder, config) < 1e-4


def test_a_stripped_plan_without_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build_golden(tmp_path / "engine", make_config(strip_plan=True)).folder
    monkeypatch.setattr("enginewright.runtime.open_tensorrt.MODEL_FILE", "elsewhere.onnx")
    with pytest.raises(EngineError, match=r"the weights of .*elsewhere\.onnx cannot be put into"):
        open_session(open_engine(folder))
