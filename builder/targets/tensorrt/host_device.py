"""A device that is the host, and a plan that is the exported graph: what stands in for a GPU.

`runtime.session_tensorrt` runs on it unchanged: addresses are those of numpy arrays, kernels are
numpy functions over what lies there. It proves the graph and the session, never the compiled plan.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx

from ....runtime.cuda_contract import BLOCK_TOKENS, SAMPLE
from ....runtime.device import Bytes
from ....runtime.errors import StepFailedError
from ....runtime.manifest import ProfileFacts, TensorRTFacts
from ....runtime.session import Sampling
from ....runtime.session_tensorrt import ELEMENT_BYTES
from .host_sampling import sample_rows

_NUMPY: dict[int, npt.DTypeLike] = {
    onnx.TensorProto.FLOAT: np.float32,
    onnx.TensorProto.FLOAT16: np.float16,
    onnx.TensorProto.BFLOAT16: ml_dtypes.bfloat16,
    onnx.TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    onnx.TensorProto.INT8: np.int8,
    onnx.TensorProto.INT32: np.int32,
}

Feed = dict[str, npt.NDArray[Any]]
Evaluate = Callable[[Feed], Feed]
"""Runs the graph: inputs by name to outputs by name. Caches may be written in place."""


def view(address: int, dtype: npt.DTypeLike, shape: Sequence[int]) -> npt.NDArray[Any]:
    """Return the array that lies at an address."""
    count = int(np.prod(shape))
    size = count * np.dtype(dtype).itemsize
    if not size:
        return np.empty(shape, dtype)
    memory = (ctypes.c_uint8 * size).from_address(address)
    return np.ctypeslib.as_array(memory).view(dtype).reshape(shape)


class HostDevice:
    """Runs what is queued at once. Graphs are lists of what was queued while they were captured."""

    compute_capability = "8.9"

    def __init__(self, facts: TensorRTFacts, kv_dtype: str, memory: int = 1 << 30) -> None:
        """`memory` is how much the device says it has."""
        self._facts = facts
        self._kv_dtype = kv_dtype
        self._free = memory
        self._blocks: list[Bytes] = []
        self._captured: list[Callable[[], None]] | None = None
        self.launches: list[str] = []  # kernels, in order

    def free_memory(self) -> int:
        """Return what is left of the memory."""
        return self._free

    def allocate(self, nbytes: int, what: str) -> int:
        """Return the address of zeros."""
        self._blocks.append(np.zeros(max(nbytes, 1), np.uint8))
        self._free -= nbytes
        return self._blocks[-1].ctypes.data

    def allocate_host(self, nbytes: int) -> Bytes:
        """Return memory that is full of what must not be read."""
        return np.full(nbytes, 0xEE, np.uint8)

    def upload(self, target: int, source: Bytes) -> None:
        """Copy."""
        self._run(lambda: ctypes.memmove(target, source.ctypes.data, source.nbytes))

    def download(self, target: Bytes, source: int) -> None:
        """Copy."""
        self._run(lambda: ctypes.memmove(target.ctypes.data, source, target.nbytes))

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy."""
        self._run(lambda: ctypes.memmove(target, source, nbytes))

    def copy_rows(self, target: int, source: int, nbytes: int, rows: int, stride: int) -> None:
        """Copy row by row."""
        for row in range(rows):
            self.copy(target + row * stride, source + row * stride, nbytes)

    def has_kernel(self, kernel: str, variant: str) -> bool:
        """Whether it is one of those below."""
        return kernel in ("kv_store", "sample")

    def launch(
        self, kernel: str, variant: str, grid: tuple[int, int], arguments: Sequence[int]
    ) -> None:
        """Run a kernel's numpy form."""
        self.launches.append(f"{kernel} {variant}".strip())
        if kernel == "kv_store":
            width = self._facts.head_dim * ELEMENT_BYTES[self._kv_dtype] if variant == "kv" else 4
            self._run(lambda: kv_store(self._facts.num_kv_heads, width, grid, arguments))
        else:
            self._run(lambda: sample(grid, arguments))

    def record(self) -> float:
        """Return the time."""
        return time.perf_counter()

    def wait(self, event: Any) -> None:
        """Return: all is done."""

    def seconds_between(self, first: Any, second: Any) -> float:
        """Return the difference."""
        return second - first

    def begin_capture(self) -> None:
        """Note what comes."""
        self._captured = []

    def end_capture(self) -> list[Callable[[], None]]:
        """Return what came."""
        captured, self._captured = self._captured, None
        assert captured is not None, "no capture has begun"
        return captured

    def replay(self, graph: Any) -> None:
        """Run what was noted."""
        for work in graph:
            work()

    def close(self) -> None:
        """Forget the memory."""
        self._blocks.clear()

    def queue(self, work: Callable[[], None]) -> None:
        """Queue host work as if it were the device's."""
        self._run(work)

    def _run(self, work: Callable[[], Any]) -> None:
        if self._captured is None:
            work()
        else:
            self._captured.append(work)


def kv_store(heads: int, width: int, grid: Sequence[int], arguments: Sequence[int]) -> None:
    """Do what the kernel `kv_store` does, with heads of `width` bytes."""
    source, slots, cache, source_tokens, pool_blocks = arguments
    tokens, halves = grid[:2]
    new = view(source, np.uint8, (halves, source_tokens, heads, width))
    pages = view(cache, np.uint8, (halves, pool_blocks, heads, BLOCK_TOKENS, width))
    at = view(slots, np.int32, (tokens,))
    pages[:, at // BLOCK_TOKENS, :, at % BLOCK_TOKENS] = new[:, :tokens].swapaxes(0, 1)


def sample(grid: Sequence[int], arguments: Sequence[int]) -> None:
    """Do what the kernel `sample` does."""
    rows = grid[0]
    given = dict(zip((a.name for a in SAMPLE.arguments), arguments, strict=True))
    vocab, words, top = given["vocab"], given["mask_words"], given["top"]

    def array(name: str, dtype: npt.DTypeLike, count: int = rows) -> npt.NDArray[Any]:
        return view(given[name], dtype, (count,))

    histories = array("history_starts", np.int32, rows + 1)
    biases = array("bias_starts", np.int32, rows + 1)
    floats = ("temperature", "top_p", "min_p", "repetition_penalty")
    floats += ("presence_penalty", "frequency_penalty")
    sampling = Sampling(
        **{name: array(name, np.float32) for name in floats},
        **{n: array(n, np.int32) for n in ("top_k", "positions", "num_logprobs", "prompt_lengths")},
        seeds=array("seeds", np.uint64),
        history_starts=histories,
        history=array("history", np.int32, int(histories[-1])),
        bias_starts=biases,
        bias_ids=array("bias_ids", np.int32, int(biases[-1])),
        bias_values=array("bias_values", np.float32, int(biases[-1])),
        masks=view(given["masks"], np.uint32, (rows, words)) if given["masks"] else None,
    )
    tokens, logprobs, ids, values = sample_rows(
        sampling, view(given["logits"], np.float32, (rows, vocab)), top
    )
    array("tokens", np.int32)[:] = tokens
    array("logprobs", np.float32)[:] = logprobs
    if top:
        view(given["top_ids"], np.int32, (rows, top))[:] = ids
        view(given["top_logprobs"], np.float32, (rows, top))[:] = values


class GraphContext:
    """A plan's context over the exported ONNX model, evaluated on the host."""

    def __init__(
        self,
        model: Path,
        profiles: Sequence[ProfileFacts],
        device: HostDevice,
        evaluate: Evaluate,
    ) -> None:
        graph = onnx.load(model, load_external_data=False).graph
        self._dims = {
            value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in graph.input
        }
        self._dtypes = {
            value.name: _NUMPY[value.type.tensor_type.elem_type]
            for value in (*graph.input, *graph.output)
        }
        self._outputs = [value.name for value in graph.output]
        self._profiles = profiles
        self._device = device
        self._evaluate = evaluate
        self._profile = -1
        self._lasting = {
            name: tuple(int(dim) for dim in dims)
            for name, dims in self._dims.items()
            if all(isinstance(dim, int) for dim in dims)
        }
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self.used: list[int] = []  # the profile of every run

    def use_profile(self, index: int) -> None:
        """Choose a profile, and forget the shapes of another one."""
        if index != self._profile:
            self._profile, self._shapes = index, {}
            for name, shape in self._lasting.items():
                self.set_shape(name, shape)

    def set_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Check a shape against the graph and the profile, as TensorRT does, and set it."""
        if self._profile < 0:
            self._lasting[name] = shape
            return
        ranges = self._profiles[self._profile].dims
        for dim, size in zip(self._dims[name], shape, strict=True):
            low, high = (dim, dim) if isinstance(dim, int) else (ranges[dim][0], ranges[dim][2])
            if not low <= size <= high:
                raise StepFailedError(
                    f"profile {self._profile} takes {dim} from {low} to {high} in {name}, "
                    f"not {size}"
                )
        self._shapes[name] = shape

    def bind(self, name: str, address: int) -> None:
        """Set an address; it must be aligned as TensorRT wants it."""
        if address % 4:
            raise StepFailedError(f"the address of {name} is not aligned")
        self._addresses[name] = address

    def execute(self) -> None:
        """Queue a run with the shapes and addresses of now."""
        shapes, addresses = dict(self._shapes), dict(self._addresses)
        missing = [name for name in (*self._dims, *self._outputs) if name not in addresses]
        missing += [name for name in self._dims if name not in shapes]
        if missing:
            raise StepFailedError(f"{', '.join(missing)} has no address or no shape")
        self.used.append(self._profile)

        def work() -> None:
            feed = {n: view(addresses[n], self._dtypes[n], shapes[n]) for n in self._dims}
            for name, array in self._evaluate(feed).items():
                target = view(addresses[name], self._dtypes[name], array.shape)
                target[...] = array

        self._device.queue(work)

    def close(self) -> None:
        """Do nothing: the host frees what is not used."""


def onnxruntime_evaluate(model: Path, threads: int | None = None) -> Evaluate:
    """Return an evaluation by onnxruntime's CPU kernels: the gather form, f32 and f16."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # The extended level would multiply weights behind a DequantizeLinear with rounded activations.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    # Threads that spin between small ops take the processor from everybody else.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if threads is not None:
        options.intra_op_num_threads = threads
    session: Any = onnxruntime.InferenceSession(str(model), options, ["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]

    def evaluate(feed: Feed) -> Feed:
        return dict(zip(names, session.run(names, feed), strict=True))

    return evaluate


def reference_evaluate(model: Path) -> Evaluate:
    """Return an evaluation by ONNX's own reference, with ours of the custom ops: both forms."""
    from onnx.reference import ReferenceEvaluator

    from .onnx_ops import CUSTOM_OPS

    evaluator: Any = ReferenceEvaluator(str(model), new_ops=CUSTOM_OPS)
    names = [str(name) for name in evaluator.output_names]

    def evaluate(feed: Feed) -> Feed:
        return dict(zip(names, evaluator.run(names, feed), strict=True))

    return evaluate
