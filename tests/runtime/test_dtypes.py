"""Sizes and numpy types of the element types."""

import numpy as np
import pytest

from enginewright.runtime.dtypes import DType


@pytest.mark.parametrize(
    ("dtype", "elements", "size"),
    [
        (DType.F32, 3, 12),
        (DType.BF16, 3, 6),
        (DType.I32, 3, 12),
        (DType.I8, 3, 3),
        (DType.I4, 3, 2),
        (DType.Q8, 3, 3),
        (DType.BATCH, 3, 0),
        (DType.KV, 3, 0),
    ],
)
def test_bytes_of_elements(dtype: DType, elements: int, size: int) -> None:
    assert dtype.nbytes(elements) == size
    assert dtype.is_opaque == (size == 0)


def test_numpy_types_have_the_same_size() -> None:
    for dtype in (DType.F32, DType.BF16, DType.I32, DType.I8):
        assert np.zeros(5, dtype.numpy).nbytes == dtype.nbytes(5)


@pytest.mark.parametrize("dtype", [DType.I4, DType.Q8, DType.BATCH, DType.KV])
def test_what_numpy_lacks_is_said(dtype: DType) -> None:
    with pytest.raises(ValueError, match=f"{dtype.value} has no numpy equivalent"):
        _ = dtype.numpy
