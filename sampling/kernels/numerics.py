"""`numerics` and `noise` for kernels: the same operations on vectors of any shape.

Nothing here is fused, approximate or a sum of floats. Masses are int64, and are rounded from the bits of
their float32, so that no kernel needs float64 for each token.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from sortition.sampling import numerics

LOG2_E = tl.constexpr(float(numerics.LOG2_E))
LN_2_HIGH = tl.constexpr(float(numerics.LN_2_HIGH))
LN_2_LOW = tl.constexpr(float(numerics.LN_2_LOW))
SQRT_HALF = tl.constexpr(float(numerics.SQRT_HALF))
LOWEST = tl.constexpr(float(numerics.LOWEST))
EXP_0, EXP_1, EXP_2, EXP_3, EXP_4, EXP_5 = (tl.constexpr(float(c)) for c in numerics.EXP)
LOG_0, LOG_1, LOG_2, LOG_3, LOG_4, LOG_5, LOG_6, LOG_7, LOG_8 = (tl.constexpr(float(c)) for c in numerics.LOG)

FURTHEST = tl.constexpr(-3.4028234663852886e38)
"""The least d."""

OUT = tl.constexpr(float("-inf"))
UNIT = tl.constexpr(2.0**-32)
NEAR = tl.constexpr(0x40000000)
ALL_ONES = tl.constexpr(0xFFFFFFFF)

INTEGER_AT = tl.constexpr(127 + 23 - numerics.MASS_BITS)
"""The exponent, as float32 stores it, of a number whose last bit is a mass of 1."""

MASS_ONE = tl.constexpr(2.0**numerics.MASS_BITS)


@triton.jit
def exp(x):
    """`numerics.exp`."""
    x = tl.maximum(x, LOWEST)
    y = x * LOG2_E + 0.5
    # The floor, which would flush denormals: a conversion rounds towards zero.
    n = y.to(tl.int32)
    n = n - (n.to(tl.float32) > y).to(tl.int32)
    of_two = n.to(tl.float32)
    r = x - of_two * LN_2_HIGH
    r = r - of_two * LN_2_LOW
    y = r * EXP_0 + EXP_1
    y = y * r + EXP_2
    y = y * r + EXP_3
    y = y * r + EXP_4
    y = y * r + EXP_5
    y = y * (r * r) + r
    y = y + 1.0
    bits = y.to(tl.int32, bitcast=True) + (n << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def log(x):
    """`numerics.log`."""
    bits = x.to(tl.int32, bitcast=True)
    e = (bits >> 23) - 126
    m = ((bits & 0x007FFFFF) | 0x3F000000).to(tl.float32, bitcast=True)
    small = m < SQRT_HALF
    e = e - small.to(tl.int32)
    f = tl.where(small, m + m, m) - 1.0
    return log1p_of_parts(f, e.to(tl.float32))


@triton.jit
def log1p_of_parts(f, e):
    """`numerics.log1p_of_parts`."""
    z = f * f
    y = f * LOG_0 + LOG_1
    y = y * f + LOG_2
    y = y * f + LOG_3
    y = y * f + LOG_4
    y = y * f + LOG_5
    y = y * f + LOG_6
    y = y * f + LOG_7
    y = y * f + LOG_8
    y = y * f
    y = y * z
    y = y + e * LN_2_LOW
    y = y - z * 0.5
    y = f + y
    return y + e * LN_2_HIGH


@triton.jit
def mass(d):
    """`numerics.mass`, int64."""
    return rounded(exp(d))


@triton.jit
def mass_times(d):
    """`numerics.mass_times`, int64."""
    d = tl.maximum(d, LOWEST)
    return -rounded(exp(d) * d)


@triton.jit
def rounded(x):
    """|x| in units of mass, int64: the nearest integer, the even one of two; for |x| of 1 at most."""
    bits = x.to(tl.int32, bitcast=True)
    significand = (bits & 0x007FFFFF) | 0x00800000
    left = ((bits >> 23) & 0xFF) - INTEGER_AT
    whole = significand.to(tl.int64) << tl.maximum(left, 0).to(tl.int64)
    # Beyond 25 places nothing is left but zeros.
    right = tl.minimum(tl.maximum(-left, 1), 25)
    odd = (significand >> right) & 1
    part = (significand + (1 << (right - 1)) - 1 + odd) >> right
    return tl.where(left >= 0, whole, part.to(tl.int64))


@triton.jit
def log_of(x):
    """`numerics.log_of` of float64."""
    bits = x.to(tl.int64, bitcast=True)
    e = (bits >> 52) - 1022
    m = ((bits & 0x000FFFFFFFFFFFFF) | 0x3FE0000000000000).to(tl.float64, bitcast=True)
    small = m < 0.70710678118654752
    m = tl.where(small, m + m, m)
    e = e - small.to(tl.int64)
    f = (m - 1.0) / (m + 1.0)
    z = f * f
    y = z * 0.0
    for k in tl.static_range(11):
        y = y * z + 1.0 / (2 * (10 - k) + 1)
    return 2.0 * f * y + e.to(tl.float64) * 0.69314718055994531


@triton.jit
def log_total(total):
    """`reference.Law._log_total` of a mass, float64."""
    return log_of(total.to(tl.float64)) - log_of(tl.full([], MASS_ONE, tl.float64))


@triton.jit
def words_of(tokens, seed, position, stream):
    """`noise.words` of these tokens, uint32.

    Args:
        tokens: int32.
        seed: int64, one number.
        position, stream: uint32, one number each.
    """
    block = (tokens >> 2).to(tl.uint32)
    nothing = tl.zeros_like(block)
    a, b, c, d = tl.philox(seed, block, nothing + position, nothing + stream, nothing)
    word = tokens & 3
    return tl.where(word < 2, tl.where(word == 0, a, b), tl.where(word == 2, c, d))


@triton.jit
def words_from(first, seed, position, stream, COUNT: tl.constexpr):
    """`noise.words` of `COUNT` tokens from a multiple of four on, all words of a block at once."""
    block = ((first >> 2) + tl.arange(0, COUNT // 4)).to(tl.uint32)
    nothing = tl.zeros_like(block)
    a, b, c, d = tl.philox(seed, block, nothing + position, nothing + stream, nothing)
    return tl.interleave(tl.interleave(a, c), tl.interleave(b, d))


@triton.jit
def gumbel(word):
    """`noise.gumbel` of uint32."""
    small = word < NEAR
    u = (word.to(tl.float32) + 0.5) * UNIT
    rest = ((word ^ ALL_ONES).to(tl.float32) + 0.5) * UNIT
    near = log1p_of_parts(-tl.where(small, u, 0.0), tl.zeros_like(u))
    return -log(-tl.where(small, near, log(rest)))


@triton.jit
def ordered(x):
    """The bits of a float32 as an int32 that is ordered as numbers are."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def unordered(key):
    """The float32 that `ordered` made a key of."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def shifted(values, top):
    """`reference.shifted` of values above -inf; a zero has no sign afterwards."""
    return tl.maximum(values - top, FURTHEST) + 0.0


@triton.jit
def tempered(d, temperature):
    """`reference.Law.tempered` of d; a zero has no sign afterwards."""
    return tl.maximum(tl.div_rn(d, temperature), FURTHEST) + 0.0


@triton.jit
def counted(words):
    """How many bits of each uint32 are set, int32: sums of ever wider neighbours."""
    words = words - ((words >> 1) & 0x55555555)
    words = (words & 0x33333333) + ((words >> 2) & 0x33333333)
    words = (words + (words >> 4)) & 0x0F0F0F0F
    return ((words * 0x01010101) >> 24).to(tl.int32)
