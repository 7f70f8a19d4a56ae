"""TensorRT's builder as a stand-in: a plan is a copy of the graph, for a machine of gpu_machine.

It reads an ONNX file as the parser does, looks up the plugins of its custom ops, and asks each of
them for every profile what a build asks: types, shapes, formats, kernel and launch.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import helper

from enginewright.runtime.manifest import ProfileFacts

from .fake_tensorrt import FakePlan, ILogger
from .fake_tensorrt_plugins import (
    DataType,
    PluginField,
    PluginFieldCollection,
    PluginFieldType,
    QuickPluginCreationRequest,
    TensorRTPhase,
    ask_plugin,
    get_plugin_registry,
)

LAUNCHES: list[dict[str, Any]] = []
"""What the plugins of the last build answered, with op, types and sizes of their inputs."""


class NetworkDefinitionCreationFlag(IntEnum):
    STRONGLY_TYPED = 1
    PREFER_AOT_PYTHON_PLUGINS = 3


class BuilderFlag(IntEnum):
    REFIT = 3
    VERSION_COMPATIBLE = 12
    STRIP_PLAN = 18


class PreviewFeature(IntEnum):
    ALIASED_PLUGIN_IO_10_03 = 1


class HardwareCompatibilityLevel(IntEnum):
    NONE = 0
    AMPERE_PLUS = 1
    SAME_COMPUTE_CAPABILITY = 2


class LayerType(IntEnum):
    PLUGIN_V3 = 1
    OTHER = 2
    ATTENTION_INPUT = 3


class _Tensor:
    def __init__(self, value: onnx.ValueInfoProto) -> None:
        self.name = value.name
        self.dtype = DataType(value.type.tensor_type.elem_type)
        self.names = [dim.dim_param for dim in value.type.tensor_type.shape.dim]
        self.shape = tuple(
            -1 if dim.dim_param else dim.dim_value for dim in value.type.tensor_type.shape.dim
        )

    def get_dimension_name(self, axis: int) -> str:
        return self.names[axis]


class INetworkDefinition:
    def __init__(self, flags: int) -> None:
        assert flags & 1 << NetworkDefinitionCreationFlag.STRONGLY_TYPED
        self.prefers_aot = bool(
            flags & 1 << NetworkDefinitionCreationFlag.PREFER_AOT_PYTHON_PLUGINS
        )
        self.path = Path()
        self.graph = onnx.GraphProto()
        self.plugins: list[tuple[onnx.NodeProto, Any]] = []

    @property
    def num_inputs(self) -> int:
        return len(self.graph.input)

    def get_input(self, index: int) -> _Tensor:
        return _Tensor(self.graph.input[index])

    @property
    def num_layers(self) -> int:
        return len(self.graph.node)

    def get_layer(self, index: int) -> Any:
        custom = bool(self.graph.node[index].domain)
        return SimpleNamespace(type=LayerType.PLUGIN_V3 if custom else LayerType.OTHER)


class OnnxParser:
    def __init__(self, network: INetworkDefinition, logger: ILogger) -> None:
        self._network = network
        self._logger = logger

    def parse_from_file(self, path: str) -> bool:
        network = self._network
        network.path = Path(path)
        network.graph.CopyFrom(onnx.load(path, load_external_data=False).graph)
        for node in network.graph.node:
            if not node.domain:
                continue
            attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
            namespace = attributes.get("plugin_namespace", b"").decode()
            creator = get_plugin_registry().get_creator(node.op_type, "1", namespace)
            if creator is None:
                self._logger.log(
                    ILogger.Severity.ERROR,
                    "Plugin not found, are the plugin name, version, and namespace correct?",
                )
                return False
            fields = [
                PluginField(one.name, _as(attributes[one.name], one.type), one.type)
                for one in creator.field_names
            ]
            request = QuickPluginCreationRequest.UNKNOWN
            if network.prefers_aot:
                request = QuickPluginCreationRequest.PREFER_AOT
            plugin = creator.create_plugin(
                node.op_type,
                namespace,
                PluginFieldCollection(fields),
                TensorRTPhase.BUILD,
                request,
            )
            network.plugins.append((node, plugin))
        return True


def _as(value: Any, kind: PluginFieldType) -> Any:
    return np.array([value], np.float64 if kind == PluginFieldType.FLOAT64 else np.int64)


class IOptimizationProfile:
    def __init__(self) -> None:
        self.shapes: dict[str, tuple[tuple[int, ...], ...]] = {}

    def set_shape(self, input: str, *ranges: tuple[int, ...]) -> None:
        self.shapes[input] = ranges


class IBuilderConfig:
    def __init__(self) -> None:
        self.flags: set[BuilderFlag] = set()
        self.features: set[PreviewFeature] = set()
        self.profiles: list[IOptimizationProfile] = []
        self.hardware_compatibility_level = HardwareCompatibilityLevel.NONE

    def set_flag(self, flag: BuilderFlag) -> None:
        self.flags.add(flag)

    def set_preview_feature(self, feature: PreviewFeature, enable: bool) -> None:
        self.features |= {feature} if enable else set()

    def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
        self.profiles.append(profile)
        return len(self.profiles) - 1


class Builder:
    def __init__(self, logger: ILogger) -> None:
        self._logger = logger

    def create_network(self, flags: int) -> INetworkDefinition:
        return INetworkDefinition(flags)

    def create_builder_config(self) -> IBuilderConfig:
        return IBuilderConfig()

    def create_optimization_profile(self) -> IOptimizationProfile:
        return IOptimizationProfile()

    def build_serialized_network(self, network: INetworkDefinition, config: IBuilderConfig) -> Any:
        LAUNCHES.clear()
        for profile in config.profiles:
            for node, plugin in network.plugins:
                answer = self._ask(network, profile, node, plugin)
                if answer is None:
                    return None
                if any(index >= 0 for index in answer["aliases"]):
                    assert PreviewFeature.ALIASED_PLUGIN_IO_10_03 in config.features
                LAUNCHES.append(answer)
        return msgspec.json.encode(_plan(network, config))

    def _ask(
        self, network: INetworkDefinition, profile: IOptimizationProfile, node: Any, plugin: Any
    ) -> dict[str, Any] | None:
        try:
            types, shapes = _inputs(network, profile, node)
            answer = ask_plugin(plugin, types, shapes)
        except Exception as error:  # as TensorRT, which makes a line of it
            self._logger.log(ILogger.Severity.ERROR, f"{node.op_type}: {error}")
            return None
        return answer | {"op": node.op_type, "inputs": list(zip(types, shapes, strict=True))}


def _inputs(network: INetworkDefinition, profile: IOptimizationProfile, node: Any) -> Any:
    """Return types and likely sizes of a custom op's inputs, and which sizes are known."""
    tensors = {value.name: _Tensor(value) for value in network.graph.input}
    outputs = {
        output: other.input[3 + at]  # written in place
        for other in network.graph.node
        if other.op_type.startswith("KvWrite")
        for at, output in enumerate(other.output)
    }
    attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    heads = attributes.get("num_heads", attributes["num_kv_heads"])
    [table] = [one for one in network.graph.initializer if one.name == "embedding.weight"]
    tokens = profile.shapes["ids"][1][0]
    types: list[DataType] = []
    shapes: list[tuple[tuple[int, bool], ...]] = []
    for name in node.input:
        tensor = tensors.get(str(outputs.get(name, name)))
        if tensor is None:  # an activation
            types.append(DataType(table.data_type))
            shapes.append(((tokens, False), (heads * attributes["head_dim"], True)))
            continue
        likely = profile.shapes.get(tensor.name, (tensor.shape,) * 3)[1]
        types.append(tensor.dtype)
        pairs = zip(likely, tensor.shape, strict=True)
        shapes.append(tuple((size, declared >= 0) for size, declared in pairs))
    return types, shapes


def _plan(network: INetworkDefinition, config: IBuilderConfig) -> FakePlan:
    """Copy the graph to where a session finds it; of a stripped plan the weights stay behind."""
    stripped = BuilderFlag.STRIP_PLAN in config.flags
    folder = Path(tempfile.mkdtemp(prefix="enginewright-fake-plan-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.copy(network.path, folder)
    if not stripped:
        for weight in network.graph.initializer:
            for entry in weight.external_data:
                if entry.key == "location" and not (folder / entry.value).exists():
                    shutil.copy(network.path.parent / entry.value, folder)
    profiles: list[ProfileFacts] = []
    for profile in config.profiles:
        dims: dict[str, tuple[int, int, int]] = {}
        for name, ranges in profile.shapes.items():
            tensor = next(_Tensor(v) for v in network.graph.input if v.name == name)
            for axis, dim in enumerate(tensor.names):
                if dim:
                    low, likely, high = (sizes[axis] for sizes in ranges)
                    dims[dim] = (low, likely, high)
        profiles.append(ProfileFacts(kind="context", dims=dims))
    return FakePlan(
        str(folder / network.path.name), tuple(profiles), bool(network.plugins), stripped
    )
