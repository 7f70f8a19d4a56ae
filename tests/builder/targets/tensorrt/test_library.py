"""What each of the two libraries allows, and what the full one is told: nothing of it runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from enginewright.builder.config import BuildConfig
from enginewright.builder.config_tensorrt import TensorRTConfig
from enginewright.builder.targets.base import get_target
from enginewright.builder.targets.tensorrt.compile import compile_plan
from enginewright.builder.targets.tensorrt.library import Library, load_library
from enginewright.runtime.cuda import Probe
from enginewright.runtime.errors import BuildError, InputError
from enginewright.runtime.manifest import ProfileFacts


def config(target: str = "tensorrt-rtx", **fields: Any) -> BuildConfig:
    options = {name: fields.pop(name) for name in list(fields) if name in BuildConfig.__slots__}
    return BuildConfig(target=target, tensorrt=TensorRTConfig(**fields), **options)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"strip_plan": True}, "no --strip-plan: its builder strips weights only beside a GPU"),
        ({"version_compatible": True}, "no --version-compatible: the package has no lean runtime"),
        ({"hardware_compatible": "ampere_plus"}, "no --hardware-compatible: it compiles for the"),
        ({"timing_cache": "x"}, "no --timing-cache: it measures on the device"),
        ({"attention": "plugin"}, "takes no plugins"),
        ({"compute_capabilities": ("9.0",)}, "no target for compute capability 9.0; it has 7.5,"),
        ({"compute_capabilities": ("8.6",), "weights": "fp8"}, "8.6 has no fp8, which needs 8.9"),
        ({"compute_capabilities": ("7.5",), "weights": "bf16"}, "7.5 has no bf16, which needs 8.0"),
        ({"kv_dtype": "fp8"}, "fp8 KV cache cannot be gathered"),
    ],
)
def test_what_tensorrt_rtx_does_not_allow(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        get_target("tensorrt-rtx").describe(config(**fields))


def test_what_tensorrt_allows_and_rtx_does_not() -> None:
    wanted = config(
        "tensorrt",
        strip_plan=True,
        version_compatible=True,
        hardware_compatible="ampere_plus",
        timing_cache="x",
        compute_capabilities=("9.0",),
    )
    assert get_target("tensorrt").describe(wanted)["isa"] == "sm_90"


def test_the_default_devices_of_rtx() -> None:
    assert get_target("tensorrt-rtx").describe(config())["isa"] == "sm_86, sm_89, sm_120"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"compute_capabilities": ("89",)}, "'89' is not one"),
        ({"compute_capabilities": ("8.9", "8.9")}, "name one twice"),
        ({"attention": "paged"}, "attention is 'paged'; allowed are gather, plugin"),
        ({"compute_dtype": "f64"}, "compute_dtype is 'f64'; allowed are f32, f16, bf16"),
        ({"hardware_compatible": "all"}, "allowed are ampere_plus, same_compute_capability"),
    ],
)
def test_options_are_checked(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TensorRTConfig(**fields)


def test_a_cpu_takes_no_gpu_options() -> None:
    with pytest.raises(InputError, match="takes no option of a GPU build"):
        BuildConfig(tensorrt=TensorRTConfig())
    with pytest.raises(InputError, match="weights is 'f16'"):
        BuildConfig(weights="f16")


def test_a_config_goes_to_json_and_back() -> None:
    wanted = config(compute_capabilities=("8.9", "12.0"), multiple_profiles=True, weights="int4")
    fields = wanted.to_json()
    assert fields["tensorrt"]["compute_capabilities"] == ("8.9", "12.0")
    fields["tensorrt"]["compute_capabilities"] = ["8.9", "12.0"]  # as JSON gives it back
    assert BuildConfig.from_json(fields) == wanted
    fields["tensorrt"]["speed"] = 1
    with pytest.raises(InputError, match="unknown speed"):
        BuildConfig.from_json(fields)


def test_the_full_library_is_not_touched_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "enginewright.runtime.cuda.probe", lambda: Probe("there is no NVIDIA driver here")
    )
    with pytest.raises(BuildError, match="only beside a GPU, and there is no NVIDIA driver here"):
        load_library("tensorrt")


class FakeTensorRT:
    """As much of the module as the compilation calls; it notes what it is told."""

    __version__ = "11.4.0.106"

    def __init__(self, error: str = "") -> None:
        self.said: list[str] = []
        self.error = error
        fake = self

        class ILogger:
            Severity = SimpleNamespace(ERROR=1, WARNING=2)

        class Tensor:
            name, shape = "ids", (-1, 4)

            def get_dimension_name(self, axis: int) -> str:
                return ("tokens", "")[axis]

        class Network:
            num_layers, num_inputs = 0, 1

            def get_input(self, index: int) -> Tensor:
                return Tensor()

        class Profile:
            def set_shape(self, name: str, *shapes: tuple[int, ...]) -> None:
                fake.said.append(f"profile {name} {shapes}")

        class Settings:
            hardware_compatibility_level = None

            def set_flag(self, flag: str) -> None:
                fake.said.append(flag)

            def create_timing_cache(self, data: bytes) -> Any:
                fake.said.append(f"cache of {len(data)}")
                return None if data == b"foreign" else b"cache"

            def set_timing_cache(self, cache: bytes, ignore_mismatch: bool) -> bool:
                return True

            def get_timing_cache(self) -> Any:
                return SimpleNamespace(serialize=lambda: memoryview(b"measured"))

            def add_optimization_profile(self, profile: Profile) -> None:
                fake.said.append(f"level {self.hardware_compatibility_level}")

        class Builder:
            def __init__(self, logger: Any) -> None:
                self.logger = logger

            def create_network(self, flags: int) -> Network:
                fake.said.append(f"network {flags}")
                return Network()

            def create_builder_config(self) -> Settings:
                return Settings()

            def create_optimization_profile(self) -> Profile:
                return Profile()

            def build_serialized_network(self, network: Network, settings: Settings) -> bytes:
                if fake.error:
                    self.logger.log(1, fake.error)
                return b"plan"

        class OnnxParser:
            def __init__(self, network: Network, logger: Any) -> None:
                pass

            def parse_from_file(self, path: str) -> bool:
                return True

        self.ILogger, self.Builder, self.OnnxParser = ILogger, Builder, OnnxParser
        self.NetworkDefinitionCreationFlag = SimpleNamespace(STRONGLY_TYPED=1)
        self.BuilderFlag = SimpleNamespace(
            VERSION_COMPATIBLE="version compatible", STRIP_PLAN="strip", REFIT="refit"
        )
        self.HardwareCompatibilityLevel = SimpleNamespace(AMPERE_PLUS="ampere+")
        self.LayerType = SimpleNamespace()


def compile_fake(fake: FakeTensorRT, folder: Path, **fields: Any) -> Any:
    module: Any = fake
    library = Library("tensorrt", module, fake.__version__, "13")
    profiles = (ProfileFacts(kind="context", dims={"tokens": (1, 8, 16)}),)
    wanted = config("tensorrt", **fields)
    return compile_plan(library, folder / "m.onnx", profiles, wanted, folder / "plan")


def test_the_full_library_gets_its_flags(tmp_path: Path) -> None:
    fake, cache = FakeTensorRT(), tmp_path / "timings"
    made = compile_fake(
        fake,
        tmp_path,
        strip_plan=True,
        version_compatible=True,
        hardware_compatible="ampere_plus",
        timing_cache=str(cache),
    )
    assert fake.said == [
        "network 2",
        "version compatible",
        "strip",
        "refit",
        "cache of 0",
        "profile ids ((1, 4), (8, 4), (16, 4))",
        "level ampere+",
    ]
    assert (tmp_path / "plan").read_bytes() == b"plan"
    assert cache.read_bytes() == b"measured"
    assert made.cache_bytes == 8
    again = FakeTensorRT()
    compile_fake(again, tmp_path, timing_cache=str(cache))
    assert again.said[1] == "cache of 8"


def test_a_timing_cache_of_another_device_is_refused(tmp_path: Path) -> None:
    (tmp_path / "timings").write_bytes(b"foreign")
    with pytest.raises(BuildError, match="of another TensorRT or another device; remove it"):
        compile_fake(FakeTensorRT(), tmp_path, timing_cache=str(tmp_path / "timings"))


def test_an_error_line_ends_the_build_and_the_drivers_line_alone_does_not(tmp_path: Path) -> None:
    line = "In catchCudaError (cudaError 35: CUDA driver version is insufficient)"
    compile_fake(FakeTensorRT(error=line), tmp_path)
    with pytest.raises(BuildError, match=r"cannot compile the network: no kernel for y$"):
        compile_fake(FakeTensorRT(error=f"no kernel for y\n{line}"), tmp_path)
