"""Opening a GPU engine: the machine is asked first, then the device, then TensorRT."""

from __future__ import annotations

from .artifact import Engine
from .cuda import CudaDevice, probe
from .errors import EngineError, IncompatibleMachineError
from .gpu_check import differences
from .manifest import TensorRTFacts
from .session_tensorrt import TensorRTSession
from .tensorrt_plan import TensorRTPlan

MODEL_FILE = "rank0.onnx"
"""The model that the weights of a stripped plan come from; its data lie in the weights file."""


def open_tensorrt_session(
    engine: Engine,
    kv_cache_memory: int | None = None,
    max_batch_size: int | None = None,
    max_num_tokens: int | None = None,
) -> TensorRTSession:
    """Open an engine on this machine's first GPU.

    Raises IncompatibleMachineError with all that is missing, EngineError or OutOfMemoryError.
    """
    facts = engine.manifest.target.tensorrt
    assert facts is not None, "not an engine for GPUs"
    lacks = differences(facts, probe())
    if lacks:
        raise IncompatibleMachineError(
            f"{engine.folder} cannot run here: it needs {', and '.join(lacks)}"
        )
    device = CudaDevice(engine.folder, facts.kernels)
    try:
        _check_kernels(engine, facts, device)
        model = engine.folder / MODEL_FILE
        plan = TensorRTPlan(engine.engine_path, model, facts, int(device.stream))
    except BaseException:
        device.close()
        raise
    return TensorRTSession(engine, device, plan, kv_cache_memory, max_batch_size, max_num_tokens)


def _check_kernels(engine: Engine, facts: TensorRTFacts, device: CudaDevice) -> None:
    """Raise EngineError for a kernel that the session launches and the engine lacks."""
    wanted = [("sample", "")]
    if facts.attention == "gather":
        wanted.append(("kv_store", "kv"))
        if engine.manifest.kv.dtype == "int8":
            wanted.append(("kv_store", "scale"))
    lacks = [name for name, variant in wanted if not device.has_kernel(name, variant)]
    if lacks:
        raise EngineError(
            f"{engine.folder} holds no kernel {', '.join(dict.fromkeys(lacks))} for compute "
            f"capability {device.compute_capability}; build it again with an enginewright that "
            "has GPU kernels"
        )
