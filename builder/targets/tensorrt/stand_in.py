"""A session over the exported graph: the engine's own session code, with the host as device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ....runtime.artifact import Engine
from ....runtime.session_tensorrt import TensorRTSession
from .host_device import GraphContext, HostDevice, onnxruntime_evaluate, reference_evaluate

_MEMORY = 1 << 40  # of the host that stands in; pages are taken when they are written


def open_stand_in(
    engine: Engine,
    model: Path,
    kv_cache_memory: int | None = None,
    max_batch_size: int | None = None,
    max_num_tokens: int | None = None,
    **_: Any,
) -> TensorRTSession:
    """Open a session on the exported `model`; options for threads and huge pages have no meaning.

    onnxruntime runs the gather form, ONNX's reference evaluator the plugin form and bf16, for
    which onnxruntime has no kernels here.
    """
    facts = engine.manifest.target.tensorrt
    assert facts is not None, "not an engine for GPUs"
    device = HostDevice(facts, engine.manifest.kv.dtype, _MEMORY)
    slowly = facts.attention == "plugin" or facts.compute_dtype == "bf16"
    evaluate = reference_evaluate if slowly else onnxruntime_evaluate
    context = GraphContext(model, facts.profiles, device, evaluate(model))
    return TensorRTSession(engine, device, context, kv_cache_memory, max_batch_size, max_num_tokens)
