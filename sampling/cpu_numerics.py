"""`numerics` and `noise` for numba: the same operations on one number at a time, in loops that vectorise.

Masses are int64 here: an integer is added to 2^52 and read back from the bits of the sum, which rounds as
`numpy.rint` does and needs no conversion that only some processors have for vectors. Their sums are those of
the reference's floats, which hold the same integers.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numba
import numpy as np

from sortition.sampling import noise, numerics
from sortition.sampling.numerics import EXP, LN_2_HIGH, LN_2_LOW, LOG, LOG2_E, LOWEST, SQRT_HALF

compiled: Final = numba.njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""No fast-math: every operation is rounded as IEEE 754 says, and none are fused."""

inlined: Final = numba.njit(nogil=True, error_model="numpy", inline="always")
"""For what loops call on each number: with a call inside, no loop is vectorised."""

ZERO: Final = np.float32(0.0)
HALF: Final = np.float32(0.5)
ONE: Final = np.float32(1.0)
UNIT: Final = np.float32(2.0**-32)

MASS_ONE: Final = 2.0**numerics.MASS_BITS
ROUNDER: Final = 1.5 * 2.0**52
"""Added to a float64 below 2^51, it leaves the nearest integer in the low bits."""
ROUNDER_BITS: Final = int(np.float64(ROUNDER).view(np.int64))

LOW: Final = np.uint64(0xFFFFFFFF)
HIGH: Final = np.uint64(32)
LEFT: Final = np.uint64(noise.MULTIPLIERS[0])
RIGHT: Final = np.uint64(noise.MULTIPLIERS[1])
WEYL_LOW: Final = np.uint64(noise.WEYL[0])
WEYL_HIGH: Final = np.uint64(noise.WEYL[1])
NEAR: Final = np.uint32(0x40000000)
ALL_ONES: Final = np.uint32(0xFFFFFFFF)


def entry(loop: Any) -> Any:
    """Compile a loop that Python calls; numba keeps it on disk if it finds a place where it may write."""
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(loop)
    except RuntimeError:
        return numba.njit(**options)(loop)


@inlined
def exp(x: Any) -> Any:
    """`numerics.exp`."""
    x = x if x > LOWEST else LOWEST
    y = x * LOG2_E + HALF
    # The floor: a conversion rounds towards zero.
    n = np.int32(y)
    n = np.int32(n - np.int32(np.float32(n) > y))
    of_two = np.float32(n)
    r = x - of_two * LN_2_HIGH
    r = r - of_two * LN_2_LOW
    y = EXP[0] * r + EXP[1]
    y = y * r + EXP[2]
    y = y * r + EXP[3]
    y = y * r + EXP[4]
    y = y * r + EXP[5]
    y = y * (r * r) + r
    y = y + ONE
    bits = np.float32(y).view(np.int32)
    return np.int32(bits + np.int32(n << np.int32(23))).view(np.float32)


@inlined
def log(x: Any) -> Any:
    """`numerics.log`."""
    bits = np.float32(x).view(np.int32)
    e = np.int32((bits >> np.int32(23)) - np.int32(126))
    m = np.int32((bits & np.int32(0x007FFFFF)) | np.int32(0x3F000000)).view(np.float32)
    small = m < SQRT_HALF
    e = np.int32(e - np.int32(small))
    f = (m + m if small else m) - ONE
    return log1p_of_parts(f, np.float32(e))


@inlined
def log1p_of_parts(f: Any, e: Any) -> Any:
    """`numerics.log1p_of_parts`."""
    z = f * f
    y = LOG[0] * f + LOG[1]
    y = y * f + LOG[2]
    y = y * f + LOG[3]
    y = y * f + LOG[4]
    y = y * f + LOG[5]
    y = y * f + LOG[6]
    y = y * f + LOG[7]
    y = y * f + LOG[8]
    y = y * f
    y = y * z
    y = y + e * LN_2_LOW
    y = y - HALF * z
    y = f + y
    return y + e * LN_2_HIGH


@compiled
def log_of(x: float) -> float:
    """`numerics.log_of`."""
    m, e = math.frexp(x)
    if m < 0.70710678118654752:
        m, e = m + m, e - 1
    f = (m - 1.0) / (m + 1.0)
    z = f * f
    y = 0.0
    for k in range(10, -1, -1):
        y = y * z + 1.0 / (2 * k + 1)
    return 2.0 * f * y + e * 0.69314718055994531


@inlined
def rounded(x: float) -> Any:
    """The nearest integer, the even one of two, for float64 below 2^51."""
    return np.float64(x + ROUNDER).view(np.int64) - ROUNDER_BITS


@compiled
def exponentials(d: Any, count: int, into: Any) -> int:
    """`exp` of the first d, float32; returns the sum of their masses."""
    for i in range(count):
        into[i] = exp(d[i])
    total = 0
    for i in range(count):
        total += rounded(np.float64(into[i]) * MASS_ONE)
    return total


@inlined
def mass_times(d: Any) -> int:
    """`numerics.mass_times`."""
    d = d if d > LOWEST else LOWEST
    return rounded(np.float64(exp(d) * d) * MASS_ONE)


@inlined
def philox(block: Any, position: Any, stream: Any, low: Any, high: Any) -> Any:
    """`noise.philox` of the counter (block, position, stream, 0); all of it uint64."""
    a, b, c, d = block, position, stream, np.uint64(0)
    for _ in range(noise.ROUNDS):
        # The masks say that the factors have 32 bits, for which processors have vectors.
        left, right = (a & LOW) * LEFT, (c & LOW) * RIGHT
        a, b, c, d = (right >> HIGH) ^ b ^ low, right & LOW, (left >> HIGH) ^ d ^ high, left & LOW
        low, high = (low + WEYL_LOW) & LOW, (high + WEYL_HIGH) & LOW
    return a, b, c, d


@inlined
def words_between(first: int, count: int, position: Any, stream: Any, seed: Any, into: Any) -> None:
    """The words of all tokens of so many blocks of four, the first of them and its kin at the front."""
    low, high = seed & LOW, seed >> HIGH
    for i in range(count):
        a, b, c, d = philox(np.uint64(first + i), position, stream, low, high)
        into[4 * i] = a
        into[4 * i + 1] = b
        into[4 * i + 2] = c
        into[4 * i + 3] = d


@compiled
def words_of(tokens: Any, count: int, position: Any, stream: Any, seed: Any, quads: Any, into: Any) -> None:
    """`noise.words` of ascending ids, uint32.

    Args:
        quads: uint32, room for four words a token.
    """
    first = tokens[0] >> 2
    blocks = (tokens[count - 1] >> 2) - first + 1
    if blocks <= count:
        words_between(first, blocks, position, stream, seed, quads)
        for i in range(count):
            into[i] = quads[tokens[i] - 4 * first]
        return
    low, high = seed & LOW, seed >> HIGH
    for i in range(count):
        a, b, c, d = philox(np.uint64(tokens[i] >> 2), position, stream, low, high)
        word = tokens[i] & 3
        into[i] = (a if word == 0 else b) if word < 2 else (c if word == 2 else d)


@inlined
def gumbel(word: Any) -> Any:
    """`noise.gumbel`."""
    if word < NEAR:
        exponential = -log1p_of_parts(-((np.float32(word) + HALF) * UNIT), ZERO)
    else:
        exponential = -log((np.float32(np.uint32(ALL_ONES - word)) + HALF) * UNIT)
    return -log(exponential)
