"""The safetensors container: header checked against the file, tensors read one at a time."""

from __future__ import annotations

import json
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from ..runtime.errors import CheckpointError, UnsupportedModelError
from .checkpoint import Tensor
from .mapped_file import MappedFile

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
FLOAT_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


def read_safetensors(file: MappedFile) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, unread, under its stored name.

    Raises CheckpointError when the header is damaged or the file shorter than it says, and
    UnsupportedModelError when a tensor is not F32, F16 or BF16.
    """
    header, start = _header(file)
    tensors: dict[str, Tensor] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, begin, end = _entry(file, name, entry)
        if start + end > file.size:
            raise CheckpointError(
                f"{file.path} is truncated: it has {file.size} bytes, but tensor {name} "
                f"ends at byte {start + end}; download or copy it again."
            )
        tensors[name] = _tensor(file, name, shape, dtype, start + begin, end - begin)
    return tensors


def _header(file: MappedFile) -> tuple[dict[str, Any], int]:
    """Read the header and the offset at which tensor data begins."""
    length = int.from_bytes(file.read(0, 8), "little")
    if file.size < 8 or length > min(MAX_HEADER_BYTES, file.size - 8):
        raise CheckpointError(
            f"{file.path} is not a whole safetensors file: its {file.size} bytes cannot hold "
            f"the header of {length} bytes it announces; download or copy it again."
        )
    try:
        header = json.loads(file.read(8, length))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file.path} has a header that is not JSON: {error}.") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{file.path} has a header that is not a JSON object of tensors.")
    return header, 8 + length


def _entry(file: MappedFile, name: str, entry: object) -> tuple[str, tuple[int, ...], int, int]:
    """(dtype, shape, begin, end) of one header entry, each checked."""
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]}:
            pass
        case _:
            raise CheckpointError(
                f"{file.path}: the header entry of tensor {name} is malformed; "
                "expected dtype, shape and two data_offsets."
            )
    if not all(type(size) is int and size >= 0 for size in shape) or not 0 <= begin <= end:
        raise CheckpointError(
            f"{file.path}: tensor {name} has shape {shape} and offsets [{begin}, {end}], "
            "which no tensor can have."
        )
    if dtype not in FLOAT_DTYPES:
        raise UnsupportedModelError(
            f"{file.path}: tensor {name} is stored as {dtype}, which is not supported; "
            f"supported are {', '.join(FLOAT_DTYPES)}."
        )
    needed = prod(shape) * FLOAT_DTYPES[dtype].itemsize
    if end - begin != needed:
        raise CheckpointError(
            f"{file.path}: tensor {name} takes {end - begin} bytes, but {dtype} of shape {shape} "
            f"needs {needed}."
        )
    return dtype, tuple(shape), begin, end


def _tensor(
    file: MappedFile, name: str, shape: tuple[int, ...], dtype: str, offset: int, count: int
) -> Tensor:
    def read() -> np.ndarray:
        return file.copy(offset, count).view(FLOAT_DTYPES[dtype])

    return Tensor(name, shape, dtype, read)
