"""Compiling with TensorRT-RTX where there is no GPU: plans, manifests, layers, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enginewright.builder.build import BuildReport, build
from enginewright.builder.config import BuildConfig
from enginewright.builder.config_tensorrt import TensorRTConfig
from enginewright.builder.targets.tensorrt.compile import compile_plan
from enginewright.builder.targets.tensorrt.library import Library, load_library
from enginewright.builder.targets.tensorrt.onnx_graph import OnnxGraph
from enginewright.converters import open_checkpoint
from enginewright.runtime.artifact import open_engine
from enginewright.runtime.cuda import probe
from enginewright.runtime.errors import BuildError
from enginewright.runtime.manifest import ProfileFacts
from enginewright.runtime.tensorrt_plan import logger_of
from tests.support.golden import GOLDEN_FOLDER
from tests.support.gpu_engine import GpuSpec, export_engine, model_of

pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is for x86-64 Linux only")

FAMILIES = (
    # golden model, weights, compute capabilities, other options
    ("llama-tied", "int8", ("8.6", "8.9", "12.0"), {}),
    ("mistral", "f16", ("8.9",), {"kv_dtype": "int8"}),
    ("qwen2", "bf16", ("8.0",), {}),
    ("qwen3", "f32", ("12.0",), {"max_num_tokens": 300, "gpu": {"multiple_profiles": True}}),
)


def build_golden(
    name: str, folder: Path, weights: str, capabilities: tuple[str, ...], **options: Any
) -> BuildReport:
    config = BuildConfig(
        target="tensorrt-rtx",
        weights=weights,
        max_batch_size=16,
        max_num_tokens=options.pop("max_num_tokens", 32),
        tensorrt=TensorRTConfig(compute_capabilities=capabilities, **options.pop("gpu", {})),
        **options,
    )
    with open_checkpoint(str(GOLDEN_FOLDER / name)) as checkpoint:
        return build(checkpoint, config, folder)


@pytest.mark.parametrize(("name", "weights", "capabilities", "options"), FAMILIES)
def test_every_family_becomes_a_plan(
    name: str,
    weights: str,
    capabilities: tuple[str, ...],
    options: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = build_golden(name, tmp_path / "engine", weights, capabilities, **options)
    manifest = open_engine(report.folder, "full").manifest
    facts = manifest.target.tensorrt
    assert facts is not None
    assert (facts.library, facts.version, facts.cuda) == ("tensorrt-rtx", "1.7.1.116", "13")
    assert facts.compute_capabilities == capabilities
    layers, kv = manifest.tactics["layers"], manifest.kv
    assert layers["ATTENTION_INPUT"] == layers["ATTENTION_OUTPUT"] == kv.num_layers
    assert layers["ROTARY_EMBEDDING"] == 2 * kv.num_layers
    assert ("DEQUANTIZE" in layers) == (weights == "int8")
    kinds = [profile.kind for profile in facts.profiles]
    per_kind = 2 if name == "qwen3" else 1
    assert kinds == ["context"] * per_kind + ["generation"] * per_kind
    size = manifest.files["rank0.engine"].bytes
    assert size > 100_000
    assert sorted(path.name for path in report.folder.iterdir()) == [
        "engine.json",
        "rank0.engine",
        "tokenizer",
    ]
    assert manifest.self_check is not None
    assert manifest.self_check.passed
    with capsys.disabled():
        seconds = manifest.times["compile"]
        print(f"\n{name} {weights} for {', '.join(capabilities)}: {seconds:.1f} s, {size} bytes")


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library("tensorrt-rtx")


def compile_product(
    library: Library,
    folder: Path,
    *,
    k: int = 8,
    dtype: str = "f32",
    tokens: tuple[int, int, int] = (1, 8, 16),
    capability: str = "8.9",
    **gpu: Any,
) -> None:
    """Compile x[tokens, 8] @ w[k, 4]."""
    with OnnxGraph(folder / "m.onnx", folder / "m.data", "enginewright") as graph:
        x = graph.input("x", "f32", ("tokens", 8))
        w = graph.weight(
            "w", dtype, (k, 4), np.zeros((k, 4), np.float16 if dtype == "f16" else "f4")
        )
        graph.output(graph.op("MatMul", [x, w], "y"), "out", "f32", ("tokens", 4))
        graph.save("product", check=False)
    config = BuildConfig(
        target="tensorrt-rtx",
        tensorrt=TensorRTConfig(compute_capabilities=(capability,), **gpu),
    )
    profiles = (ProfileFacts(kind="context", dims={"tokens": tokens}),)
    compile_plan(library, folder / "m.onnx", profiles, config, folder / "plan")


def test_a_small_graph_compiles(library: Library, tmp_path: Path) -> None:
    compile_product(library, tmp_path)
    assert (tmp_path / "plan").stat().st_size > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": 9}, r"(?i)dimension|matrixmultiply|incompatible|must be equal"),
        ({"dtype": "f16"}, r"(?i)type"),
        ({"tokens": (4, 2, 1)}, r"(?i)profile|min|opt"),
    ],
    ids=["shapes", "types", "profile"],
)
def test_a_wrong_graph_gives_the_librarys_message(
    library: Library, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(BuildError, match=message) as caught:
        compile_product(library, tmp_path, **changes)
    assert "cudaError 35" not in str(caught.value)
    assert "tensorrt-rtx 1.7.1.116" in str(caught.value)
    assert not (tmp_path / "plan").exists()
    print(caught.value)


def test_an_error_line_fails_a_build_that_gave_a_plan(library: Library, tmp_path: Path) -> None:
    """TensorRT logs errors and goes on: a mask beside a causal kind is ignored, for one."""

    real = library.module.Builder

    class Builder:
        def __init__(self, logger: Any) -> None:
            self._inner = real(logger)
            self._logger = logger

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def build_serialized_network(self, *arguments: Any) -> Any:
            self._logger.log(library.module.ILogger.Severity.ERROR, "ignored the mask\n")
            self._logger.log(library.module.ILogger.Severity.ERROR, "x (cudaError 35: y)")
            return self._inner.build_serialized_network(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library.module, "Builder", Builder)
        with pytest.raises(BuildError, match=r"cannot compile the network: ignored the mask$"):
            compile_product(library, tmp_path)


@pytest.mark.parametrize(
    ("gpu", "message"),
    [
        ({"strip_plan": True}, "CUDA_SUCCESS"),  # there is no driver
        ({"version_compatible": True}, "libnvinfer_lean"),
        ({"attention": "plugin"}, r"there is no tensorrt_rtx\.plugin"),
    ],
    ids=["weights", "versions", "plugins"],
)
def test_what_is_refused_before_a_build_would_fail_in_it(
    library: Library, tmp_path: Path, gpu: dict[str, Any], message: str
) -> None:
    """The sentences of `check_options` are true of this version of the library."""
    if gpu.get("strip_plan") and not probe().reason:
        pytest.skip("there is a driver here, beside which weights can be stripped")
    with pytest.raises(BuildError, match=message):
        compile_product(library, tmp_path, **gpu)


def test_the_library_compiles_for_no_other_devices_than_are_named(library: Library) -> None:
    trt: Any = library.module
    settings = trt.Builder(logger_of(trt)).create_builder_config()
    settings.hardware_compatibility_level = trt.HardwareCompatibilityLevel.AMPERE_PLUS
    assert settings.hardware_compatibility_level == trt.HardwareCompatibilityLevel.NONE


def test_the_plugin_form_lacks_nothing_but_its_plugins(library: Library, tmp_path: Path) -> None:
    """The library's own parser reads the graph, and looks for plugins under their names."""
    trt: Any = library.module
    engine = export_engine(GpuSpec("qwen3", attention="plugin", kv_dtype="int8"), tmp_path / "e")
    logger = logger_of(trt)
    network = trt.Builder(logger).create_network(
        1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    )
    parser = trt.OnnxParser(network, logger)
    assert not parser.parse_from_file(str(model_of(engine.folder)))
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    assert {error.node_operator() for error in errors} == {
        "KvWriteWithScales",
        "PagedAttentionWithScales",
    }
    assert all("Plugin not found" in error.desc() for error in errors)
    logger.clear()
