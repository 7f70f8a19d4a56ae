"""The number formats of the KV cache inside kernels: fp8 as bits, int8 by its scale.

fp8 is converted by integer arithmetic, since devices before compute capability 8.9 have no
instruction for it, and all devices shall read and write the same numbers.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fp8_to_f32(bits):
    """Return the numbers of e4m3 bits (int8 or uint8). Its exponent and mantissa fit float16's."""
    wide = bits.to(tl.int16)
    half = ((wide & 0x7F) << 7) | ((wide & 0x80) << 8)
    return half.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 256.0  # biases 15 and 7


@triton.jit
def f32_to_fp8(x):
    """Return e4m3 bits as int8, rounded half to even and saturated at 448."""
    bits = x.to(tl.int32, bitcast=True)
    size = tl.minimum(tl.abs(x), 448.0)
    magnitude = size.to(tl.int32, bitcast=True)
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2^-6 numbers are multiples of 2^-9, as those of float32 around 2^14 are.
    small = (size + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    packed = tl.where(size < 0.015625, small, normal)
    return (packed | ((bits >> 24) & 0x80)).to(tl.int8)


@triton.jit
def round_half_even(x):
    """Return the nearest whole number of x, |x| < 2^22: there, adding 1.5 * 2^23 rounds."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def finite(x, LARGEST: tl.constexpr):
    """Return f32 x with NaN as 0, and clipped to what the compute type holds.

    Hidden keys and values are multiplied by a weight of zero, and NaN would pass through.
    """
    x = tl.where(x == x, x, 0.0)
    return tl.minimum(tl.maximum(x, -LARGEST), LARGEST)


@triton.jit
def int8_scale(most):
    """Return max|x| / 127, exactly rounded."""
    return tl.div_rn(most, tl.full(most.shape, 127.0, tl.float32))


@triton.jit
def to_int8(x, scale):
    """Return x / scale rounded half to even, within +-127; zeros where the scale is 0."""
    divisor = tl.broadcast_to(tl.where(scale > 0, scale, 1.0), x.shape)
    q = round_half_even(tl.div_rn(x, divisor))
    return tl.minimum(tl.maximum(q, -127.0), 127.0).to(tl.int8)
