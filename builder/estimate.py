"""What a build would take and make, computed from shapes alone, before anything is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from .config import BuildConfig
from .gpu_workspace import workspace_bytes
from .model_config import ModelConfig
from .quantize.formats import FORMATS, QuantFormat

_KV_SCALE_BYTES = 4  # one f32 a head of a token, in an int8 KV cache
_PROCESS_BYTES = 200_000_000  # libraries, the compiler's share and the self-check's activations
_GPU_PROCESS_BYTES = 700_000_000  # TensorRT's library, which takes the weights several times over
_LINEARS = (".q.weight", ".k.weight", ".v.weight", ".o.weight")
_LINEARS += (".gate.weight", ".up.weight", ".down.weight")


class Shaped(Protocol):
    """A tensor of which only the shape is wanted."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of its axes."""
        ...


@dataclass(frozen=True, slots=True)
class BuildEstimate:
    """Sizes in bytes of the engine to come, and of the memory that building and serving take."""

    parameters: int
    weights: int  # of the engine on disk, and mapped while serving
    kv_per_token: int
    kv_per_sequence: int  # one sequence of max_seq_len
    kv_full: int  # max_batch_size such sequences; a smaller pool works too
    build_peak: int  # memory of the build, beyond the checkpoint's own mapped pages
    workspace: int  # device memory that a GPU's step takes beside weights and cache; 0: a CPU


def estimate(
    model: ModelConfig, tensors: Mapping[str, Shaped], config: BuildConfig
) -> BuildEstimate:
    """Estimate a build; padding is left out."""
    max_seq_len = config.resolve(model).seq_len
    weights = 0
    largest = 0
    for name, tensor in tensors.items():
        if config.embeds and name == "head.weight":
            continue
        largest = max(largest, 4 * math.prod(tensor.shape))
        form = _format(name, model, config)
        weights += _stored_bytes(tensor.shape, form, config)
        if config.for_gpu and name == "embedding.weight" and model.tie_word_embeddings:
            head = FORMATS[config.head_format]  # a GPU's head is stored transposed, on its own
            weights += _stored_bytes(tensor.shape, head, config)
    weights += 4 * max_seq_len * model.head_dim  # the rotary table
    values = 2 * model.num_layers * model.num_kv_heads * model.head_dim
    scales = 2 * model.num_layers * model.num_kv_heads * _KV_SCALE_BYTES
    kv_per_token = values * FORMATS[config.kv_format].bits // 8
    if config.kv_format == "int8":
        kv_per_token += scales
    return BuildEstimate(
        parameters=sum(math.prod(tensor.shape) for tensor in tensors.values()),
        weights=weights,
        kv_per_token=kv_per_token,
        kv_per_sequence=kv_per_token * max_seq_len,
        kv_full=kv_per_token * max_seq_len * config.max_batch_size,
        build_peak=_GPU_PROCESS_BYTES + 4 * weights
        if config.for_gpu
        else _PROCESS_BYTES + 3 * largest,
        workspace=workspace_bytes(model, config.resolve(model)) if config.for_gpu else 0,
    )


def _format(name: str, model: ModelConfig, config: BuildConfig) -> QuantFormat:
    form = "f32"
    is_table = name == "embedding.weight"
    if config.for_gpu:
        form = config.compute_dtype
        if name == "head.weight":
            form = config.head_format
        elif name.endswith(_LINEARS):
            form = config.weights
    elif name == "head.weight" or (is_table and model.tie_word_embeddings and not config.embeds):
        form = config.head_format
    elif is_table:
        form = "f32" if config.weights == "f32" else "bf16"
    elif name.endswith(_LINEARS):
        form = config.weight_format
    return FORMATS[form]


def _stored_bytes(shape: tuple[int, ...], form: QuantFormat, config: BuildConfig) -> int:
    return form.bytes(math.prod(shape), config.group_of(form, shape[-1]) or shape[-1])
