"""Exponentials, logarithms and sums that have the same bits on every machine: their definition, in numpy.

The exp and log of libraries differ from each other in the last bit (numpy and torch in 220,000 of a million
float32 logarithms), and sums of floats depend on their order. So a draw is made of operations that IEEE 754
rounds correctly everywhere (+, -, *, /, sqrt, conversions, comparisons; none of them fused), and of sums of
integers. Every backend repeats these operations one for one.

`exp` and `log` follow the reduction and the polynomials of Cephes' `expf` and `logf` (S. L. Moshier, 1992).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

LOG2_E: Final = np.float32(1.44269504088896341)
LN_2_HIGH: Final = np.float32(0.693359375)
LN_2_LOW: Final = np.float32(-2.12194440e-4)
SQRT_HALF: Final = np.float32(0.707106781186547524)

LOWEST: Final = np.float32(-87.0)
"""The least argument of `exp`: what lies below has no mass, and the result there is still a normal number."""

EXP: Final = tuple(
    np.float32(c)
    for c in (
        *(1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3),
        *(4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1),
    )
)
"""Of (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2, the highest power first."""

LOG: Final = tuple(
    np.float32(c)
    for c in (
        *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
        *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
    )
)
"""Of (ln(1 + f) - f + f^2 / 2) / f^3 for sqrt(1/2) <= 1 + f <= sqrt(2), the highest power first."""

MASS_BITS: Final = 34
"""A token as likely as the likeliest has the mass 2^34, an integer.

So the mass of up to `WIDEST` tokens stays below 2^53: it is exact as a float64, too, in any order of its
terms. Less than one part in 2^35 counts as nothing.
"""

SHARE_SLACK: Final = 2.0**-19
"""How far from a share or a probability s a cut counts as being at it, in units of s (1 - s).

Logits that are float32 logarithms know probabilities to 5 parts in 10^7, and so do sums of them; without
slack, 0.5 + 0.3 of a law that was written as probabilities would reach 0.8 or not by chance.
"""

WIDEST: Final = 1 << 19
"""Tokens of a row, at most; the largest vocabularies in use have 262,144."""


def exp(x: Float32) -> Float32:
    """e^x to 1 part in 10^7, for x in [-inf, 0]; below `LOWEST` as at `LOWEST`."""
    x = np.maximum(x, LOWEST)
    n = np.floor(x * LOG2_E + np.float32(0.5))
    r = x - n * LN_2_HIGH
    r = r - n * LN_2_LOW
    y = np.full_like(r, EXP[0])
    for coefficient in EXP[1:]:
        y = y * r + coefficient
    y = y * (r * r) + r
    y = y + np.float32(1.0)
    # Times 2^n, by its exponent: y is in [0.7, 1.5] and n at least -126, so this stays a normal number.
    return np.asarray(np.asarray(y).view(np.int32) + (n.astype(np.int32) << 23)).view(np.float32)


def log(x: Float32) -> Float32:
    """ln(x) to 1 part in 10^7, for positive normal numbers."""
    bits = np.asarray(x, np.float32).view(np.int32)
    e = (bits >> 23) - 126
    m = ((bits & 0x007FFFFF) | 0x3F000000).view(np.float32)
    small = m < SQRT_HALF
    e = e - small
    f = np.where(small, m + m, m) - np.float32(1.0)
    return log1p_of_parts(f, e.astype(np.float32))


def log1p_of_parts(f: Float32, e: Float32) -> Float32:
    """ln((1 + f) 2^e), for sqrt(1/2) <= 1 + f <= sqrt(2)."""
    z = f * f
    y = np.full_like(f, LOG[0])
    for coefficient in LOG[1:]:
        y = y * f + coefficient
    y = y * f
    y = y * z
    y = y + e * LN_2_LOW
    y = y - np.float32(0.5) * z
    y = f + y
    return np.asarray(y + e * LN_2_HIGH)


def mass(d: Float32) -> Float64:
    """How likely tokens are, in units of 2^-34 of the likeliest: integers, as float64.

    Args:
        d: logits less the greatest one, in [-inf, 0].
    """
    return np.rint(exp(d).astype(np.float64) * 2.0**MASS_BITS)


def mass_times(d: Float32) -> Float64:
    """Each mass times its d: integers, as float64; their sum over the sum of masses is the mean of d."""
    d = np.maximum(d, LOWEST)
    return np.rint((exp(d) * d).astype(np.float64) * 2.0**MASS_BITS)


def aimed(share: float, more: bool) -> float:
    """The share of the mass at which the given one counts as reached, or as exceeded."""
    slack = SHARE_SLACK * share * (1.0 - share)
    return share + slack if more else share - slack


def min_p_cut(min_p: float) -> np.float32:
    """ln(min_p), which d is at least; with the same slack as shares of the mass, and none at 1."""
    return np.float32(math.log(min_p) - SHARE_SLACK * max(0.0, 1.0 - min_p))


def log_of(x: float) -> float:
    """ln(x) for one positive float64, to 1 part in 10^15: 2 artanh((m - 1) / (m + 1)) + e ln(2)."""
    m, e = math.frexp(x)
    if m < 0.70710678118654752:
        m, e = m + m, e - 1
    f = (m - 1.0) / (m + 1.0)
    z = f * f
    y = 0.0
    for k in range(10, -1, -1):
        y = y * z + 1.0 / (2 * k + 1)
    return 2.0 * f * y + e * 0.69314718055994531
