"""The GGUF container: metadata and tensor table, every count checked against the file before use.

The `gguf` package's reader takes seconds for the token list of a small model and follows damaged
counts without bounds; its tables and dequantizers are used here, its reader is not.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from ..runtime.errors import CheckpointError, UnsupportedModelError
from .checkpoint import Tensor
from .mapped_file import MappedFile

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4
MAX_NESTING = 4
CHUNK_ELEMENTS = 1 << 16  # values dequantized at a time: they stay in the second-level cache

STRING, ARRAY = 8, 9
SCALARS: dict[int, str] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
SUPPORTED_TYPES = frozenset(
    "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K".split()
)


@dataclass(frozen=True, slots=True)
class GgufContents:
    """What a GGUF file holds: metadata as plain Python values, and its tensors, unread."""

    metadata: dict[str, Any]
    tensors: dict[str, Tensor]


def read_gguf(file: MappedFile) -> GgufContents:
    """Parse the header of a GGUF file (version 2 or 3, little-endian).

    Raises CheckpointError when the file is damaged or truncated, UnsupportedModelError on another
    version, byte order or tensor type.
    """
    if file.read(0, 4) != MAGIC:
        raise CheckpointError(f"{file.path} is not a GGUF file: it does not begin with GGUF.")
    cursor = _Cursor(file)
    version = cursor.number("<I")
    if version not in VERSIONS:
        raise UnsupportedModelError(
            f"{file.path} is GGUF version {version} (or of another byte order); "
            "supported are little-endian versions 2 and 3."
        )
    num_tensors, num_pairs = cursor.number("<Q"), cursor.number("<Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_pairs):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.number("<I"))
    entries = [cursor.tensor_entry() for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= 1 << 20:
        raise CheckpointError(
            f"{file.path}: general.alignment is {alignment!r}; expected 1 ... 2^20."
        )
    start = -(-cursor.offset // alignment) * alignment
    tensors: dict[str, Tensor] = {}
    for name, shape, type_id, offset in entries:
        if name in tensors:
            raise CheckpointError(f"{file.path} lists tensor {name} twice.")
        tensors[name] = _tensor(file, name, shape, type_id, start + offset)
    return GgufContents(metadata, tensors)


class _Cursor:
    """Reads little-endian values one after another, and never past the end."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.offset = len(MAGIC)

    def take(self, count: int) -> bytes:
        if count > self.file.size - self.offset:
            raise CheckpointError(
                f"{self.file.path} is truncated or damaged: its header asks for {count} bytes "
                f"at byte {self.offset}, but the file ends at {self.file.size}; "
                "download or copy it again."
            )
        data = self.file.read(self.offset, count)
        self.offset += count
        return data

    def number(self, code: str) -> int:
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def text(self) -> str:
        data = self.take(self.number("<Q"))
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(
                f"{self.file.path} is damaged: the text that ends at byte {self.offset} "
                "is not UTF-8; download or copy it again."
            ) from error

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == STRING:
            return self.text()
        if kind == ARRAY and depth < MAX_NESTING:
            item_kind, count = self.number("<I"), self.number("<Q")
            if item_kind in SCALARS:
                return self._scalars(item_kind, count).tolist()
            return [self.value(item_kind, depth + 1) for _ in range(count)]
        if kind in SCALARS:
            scalar = self._scalars(kind, 1)[0]
            # The shortest decimal of a float32: 1e-05, not 9.999999747378752e-06.
            return float(str(scalar)) if kind == 6 else scalar.item()
        raise CheckpointError(
            f"{self.file.path} is damaged: unknown metadata type {kind} before byte {self.offset}."
        )

    def _scalars(self, kind: int, count: int) -> np.ndarray:
        dtype = np.dtype(SCALARS[kind])
        return np.frombuffer(self.take(dtype.itemsize * count), dtype)

    def tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        """(name, shape in row-major order, type, offset from the start of the data)."""
        name = self.text()
        num_dims = self.number("<I")
        if num_dims > MAX_DIMS:
            raise CheckpointError(
                f"{self.file.path} is damaged: tensor {name} has {num_dims} dimensions."
            )
        dims = [self.number("<Q") for _ in range(num_dims)]
        return name, tuple(reversed(dims)), self.number("<I"), self.number("<Q")


def _tensor(
    file: MappedFile, name: str, shape: tuple[int, ...], type_id: int, offset: int
) -> Tensor:
    try:
        kind = GGMLQuantizationType(type_id)
    except ValueError:
        kind = None
    if kind is None or kind.name not in SUPPORTED_TYPES:
        raise UnsupportedModelError(
            f"{file.path}: tensor {name} has GGML type {kind.name if kind else type_id}, which is "
            f"not supported; supported are {', '.join(sorted(SUPPORTED_TYPES))}."
        )
    block, block_bytes = GGML_QUANT_SIZES[kind]
    columns = shape[-1] if shape else 1
    if columns % block:
        raise CheckpointError(
            f"{file.path}: tensor {name} has rows of {columns} values, which {kind.name} "
            f"cannot store in blocks of {block}."
        )
    rows, row_bytes = prod(shape[:-1]), columns // block * block_bytes
    if offset + rows * row_bytes > file.size:
        raise CheckpointError(
            f"{file.path} is truncated: it has {file.size} bytes, but tensor {name} ends at byte "
            f"{offset + rows * row_bytes}; download or copy it again."
        )
    return Tensor(name, shape, kind.name, _reader(file, kind, rows, columns, row_bytes, offset))


def _reader(
    file: MappedFile,
    kind: GGMLQuantizationType,
    rows: int,
    columns: int,
    row_bytes: int,
    offset: int,
) -> Callable[[], np.ndarray]:
    def read() -> np.ndarray:
        values = np.empty((rows, columns), np.float32)
        step = max(1, CHUNK_ELEMENTS // max(1, columns))
        for row in range(0, rows, step):
            count = min(step, rows - row)
            raw = file.copy(offset + row * row_bytes, count * row_bytes)
            with np.errstate(all="ignore"):  # a scale may be infinite; that is the file's affair
                values[row : row + count] = dequantize(raw, kind).reshape(count, columns)
        return values

    return read
