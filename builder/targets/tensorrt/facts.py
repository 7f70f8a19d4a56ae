"""What a TensorRT engine says about itself: KV layout, profiles, and the memory of a step."""

from __future__ import annotations

from ....runtime.cuda_contract import BLOCK_TOKENS
from ....runtime.manifest import KvFacts, TensorRTFacts
from ....runtime.session_tensorrt import ELEMENT_BYTES
from ...config import BuildConfig
from ...gpu_workspace import workspace_bytes
from ...network import Network
from .library import Library
from .onnx_export import attention_shape
from .profiles import make_profiles, max_blocks


def kv_facts(network: Network, config: BuildConfig) -> KvFacts:
    """Return the layout of the KV cache: keys and values of all layers, and scales for int8."""
    heads, width = attention_shape(network)
    layers = sum(node.op == "attention" for node in network.nodes)
    return KvFacts(
        dtype=config.kv_format,
        block_tokens=BLOCK_TOKENS,
        block_bytes=2 * layers * heads * BLOCK_TOKENS * head_bytes(config.kv_format, width),
        num_layers=layers,
    )


def head_bytes(kv_dtype: str, head_dim: int) -> int:
    """Return the bytes of one head of one token, its scale included."""
    return head_dim * ELEMENT_BYTES[kv_dtype] + (4 if kv_dtype == "int8" else 0)


def engine_facts(network: Network, config: BuildConfig, library: Library) -> TensorRTFacts:
    """Return the facts of an engine that `library` compiled."""
    heads, width = attention_shape(network)
    gpu = config.gpu
    return TensorRTFacts(
        library=library.name,
        version=library.version,
        cuda=library.cuda,
        compute_capabilities=library.compute_capabilities(config),
        newer_devices=library.runs_on_newer_devices(config),
        version_compatible=gpu.version_compatible,
        stripped=gpu.strip_plan,
        attention="gather" if gpu.attention == "gather" else "plugin",
        compute_dtype=config.compute_dtype,
        num_kv_heads=heads,
        head_dim=width,
        max_blocks=max_blocks(config),
        workspace_bytes=workspace_bytes(network.config, config),
        profiles=make_profiles(config),
        kernels=(),
    )
