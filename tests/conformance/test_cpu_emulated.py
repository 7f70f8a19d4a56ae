"""Products of AArch64, run by an emulator where the machine is another one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import numpy as np
import pytest

from enginewright.builder.reference_ops import quantize
from enginewright.builder.targets.cpu.isa import LEVELS
from tests.support.cpu_kernels import FORMATS, GROUP, ROTATION, Kernels
from tests.support.emulated_kernels import EMULATOR, EmulatedKernels
from tests.support.product_twin import assert_close, random, seen_by_product

pytestmark = pytest.mark.skipif(
    shutil.which(EMULATOR) is None,
    reason=f"{EMULATOR} is not installed (Debian's package qemu-user has it)",
)
ARM_LEVELS = {level.name: level for level in LEVELS if level.arch == "aarch64"}
EVERY_FORMAT = pytest.mark.parametrize("format", FORMATS)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Kernels]]:
    """The kernels of each level of AArch64."""
    folder = tmp_path_factory.mktemp("emulated")
    made = {name: EmulatedKernels(level, folder) for name, level in ARM_LEVELS.items()}
    yield dict(made)
    for kernels in made.values():
        kernels.close()


@pytest.fixture(params=ARM_LEVELS)
def emulated(request: pytest.FixtureRequest, programs: dict[str, Kernels]) -> Kernels:
    """Each of them."""
    return programs[request.param]


@EVERY_FORMAT
@pytest.mark.parametrize(
    ("rows", "n", "k"),
    [(0, 5, 9), (1, 1, 1), (1, 33, 200), (4, 16, 64), (7, 50, 131), (22, 9, 300)],
)
def test_products(emulated: Kernels, format: str, rows: int, n: int, k: int) -> None:
    x, weight, bias = random(rows, k), random(n, k, seed=1), random(n, seed=2)
    residual = random(rows, n, seed=3)
    found = emulated.gemm(x, weight, format, bias=bias, residual=residual)
    seen_x, seen_weight = seen_by_product(emulated, x, weight, format)
    assert_close(found[:, :n], seen_x @ seen_weight.T + residual + bias, 1e-5)
    assert not found[:, n:].any()


@EVERY_FORMAT
def test_gated_products(emulated: Kernels, format: str) -> None:
    x, weight = random(6, 90), random(2 * 21, 90, seed=1)
    seen_x, seen_weight = seen_by_product(emulated, x, weight, format)
    gate, up = np.split(seen_x @ seen_weight.T, 2, axis=1)
    found = emulated.gemm(x, weight, format, swiglu=True)[:, :21]
    assert_close(found, gate / (1 + np.exp(-gate)) * up, 1e-5)


@EVERY_FORMAT
def test_a_row_has_the_same_bits_in_any_company(emulated: Kernels, format: str) -> None:
    x, weight = random(23, 300), random(37, 300, seed=1)
    everything = emulated.gemm(x, weight, format)
    for first, last in ((0, 1), (3, 5), (5, 8), (8, 12), (1, 23)):
        some = emulated.gemm(x[first:last], weight, format)
        np.testing.assert_array_equal(some.view(np.uint32), everything[first:last].view(np.uint32))


@pytest.mark.parametrize("format", ["int8", "uint4"])
def test_levels_agree_in_the_bits_of_integer_products(
    programs: dict[str, Kernels], format: str
) -> None:
    """Sums of integers are exact, and floats meet them in one order at every level."""
    x, weight = random(9, 320), random(40, 320, seed=1)
    first, *others = (kernels.gemm(x, weight, format) for kernels in programs.values())
    for other in others:
        np.testing.assert_array_equal(other.view(np.uint32), first.view(np.uint32))


@pytest.mark.parametrize("n", [1, 64, 130, 300])
def test_quantization(emulated: Kernels, n: int) -> None:
    x = random(5, n) * 30
    k = -(-n // GROUP) * GROUP
    expected = quantize(x, {"group": GROUP, "rotation": ROTATION})
    found = emulated.quantize(x)
    values = found[:, :k].view(np.int8).astype(int)
    scales = np.ascontiguousarray(found[:, k:]).view(np.float32)[:, : k // GROUP]
    np.testing.assert_allclose(scales, expected.scales, rtol=2e-7)
    assert np.abs(values - expected.values).max() <= 1
    some = emulated.quantize(x, first=1, last=3)
    np.testing.assert_array_equal(some[1:3], found[1:3])
    assert (some[[0, 3, 4]] == 0xA5).all()
