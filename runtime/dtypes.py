"""The element types of a network's values, and how large they are."""

from __future__ import annotations

from enum import Enum

import ml_dtypes
import numpy as np


class DType(Enum):
    """Element type of a value.

    The last three are not plain arrays: `BATCH` stands for the facts of a step (positions, block
    tables, wanted rows), `KV` orders a KV cache write before the attention that reads it, and `Q8`
    is a row of int8 with one f32 scale a group of elements along its last axis.
    """

    F32 = "f32"
    BF16 = "bf16"
    I32 = "i32"
    I8 = "i8"
    I4 = "i4"
    BATCH = "batch"
    KV = "kv"
    Q8 = "q8"

    @property
    def bits(self) -> int:
        """Bits of one element; 0 for the opaque types, 8 for Q8 (its scales are apart)."""
        return _BITS[self]

    @property
    def is_opaque(self) -> bool:
        """Whether values of this type have no elements of their own."""
        return self in (DType.BATCH, DType.KV)

    @property
    def numpy(self) -> np.dtype:
        """The numpy type of an array of these; raises ValueError where there is none."""
        if self not in _NUMPY:
            raise ValueError(f"dtype {self.value} has no numpy equivalent")
        return _NUMPY[self]

    def nbytes(self, elements: int) -> int:
        """Bytes that `elements` of this type take, without scales; I4 packs two in a byte."""
        return (elements * self.bits + 7) // 8


_BITS = {
    DType.F32: 32,
    DType.BF16: 16,
    DType.I32: 32,
    DType.I8: 8,
    DType.I4: 4,
    DType.BATCH: 0,
    DType.KV: 0,
    DType.Q8: 8,
}

_NUMPY = {
    DType.F32: np.dtype(np.float32),
    DType.BF16: np.dtype(ml_dtypes.bfloat16),
    DType.I32: np.dtype(np.int32),
    DType.I8: np.dtype(np.int8),
}
