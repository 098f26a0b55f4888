"""Randomness that is looked up instead of drawn in turn: a function of (seed, position, stream, token).

So what one row draws depends on nothing that happens in another, and a position may be drawn again. The
generator is Philox4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011, section 3.3).
Its counter is (token >> 2, position, stream, 0), its key the seed, low word first; a token takes word
``token & 3`` of the four.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sortition.sampling.numerics import Float32, log, log1p_of_parts

TARGET: Final = 0
"""Stream of what the model draws, also where it replaces a refused draft."""

DRAFT: Final = 1
"""Stream of the seeds that draft models draw with; see `derived`."""

COIN: Final = 2
"""Stream of the coins that accept or refuse drafts."""

MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
WEYL: Final = (0x9E3779B9, 0xBB67AE85)
ROUNDS: Final = 10

Word: TypeAlias = Any
"""Numbers of 64 bits, with a sign or without, in an array or a tensor."""
Seeds = TypeVar("Seeds", NDArray[np.int64], Tensor)
LOW: Final = 0xFFFFFFFF


def philox(counter: tuple[Word, Word, Word, Word], key: tuple[Word, Word]) -> tuple[Word, Word, Word, Word]:
    """Philox4x32-10: four words of 32 bits from four, under a key of two."""
    a, b, c, d = counter
    low, high = key
    for _ in range(ROUNDS):
        left, right = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, b = (right >> 32 & LOW) ^ b ^ low, right & LOW
        c, d = (left >> 32 & LOW) ^ d ^ high, left & LOW
        low, high = (low + WEYL[0]) & LOW, (high + WEYL[1]) & LOW
    return a, b, c, d


def words(seed: int, position: int, stream: int, tokens: NDArray[np.int64]) -> NDArray[np.uint32]:
    """32 random bits for each token.

    Args:
        seed: any integer of 64 bits, signed or not.
        position: tokens that were generated before, below 2^32.
        stream: one of the streams above.
        tokens: int64 [n], ids.
    """
    block = (tokens >> 2).astype(np.uint64)
    where, which, rest = (np.full_like(block, value) for value in (position, stream, 0))
    key = np.uint64(seed & 0xFFFFFFFF), np.uint64((seed >> 32) & 0xFFFFFFFF)
    four = np.stack(philox((block, where, which, rest), key))
    return np.asarray(np.take_along_axis(four, (tokens & 3)[None], axis=0)[0], np.uint32)


def gumbel(word: NDArray[np.uint32]) -> Float32:
    """Standard Gumbel noise -ln(-ln(1 - u)) with u = (word + 1/2) / 2^32, so at most 22.9 and never infinite.

    The upper tail is where u is near 0 and floats are dense: noise from 24 bits, or from u near 1, would
    starve tokens more than 16 below the best.
    """
    small = word < np.uint32(0x40000000)
    unit = np.float32(2.0**-32)
    u = (word.astype(np.float32) + np.float32(0.5)) * unit
    # 1 - u, exactly that of the bits; where u is small it would round to 1.
    rest = ((~word).astype(np.float32) + np.float32(0.5)) * unit
    near = log1p_of_parts(-np.where(small, u, np.float32(0.0)), np.zeros_like(u))
    exponential = -np.where(small, near, log(rest))
    return np.asarray(-log(exponential))


def derived(seeds: Seeds, positions: Seeds, candidate: int) -> Seeds:
    """Seeds whose noise has nothing to do with that of the seeds they come from.

    Args:
        seeds: int64 [n], an array or a tensor.
        positions: int64 [n], what else they are made of.
        candidate: each has seeds of its own.
    """
    nothing = seeds & 0
    counter = nothing + candidate, positions, nothing + DRAFT, nothing
    low, high, _, _ = philox(counter, (seeds & LOW, seeds >> 32 & LOW))
    made: Seeds = low | high << 32
    return made


def coin(seed: int, position: int, candidate: int) -> float:
    """A number strictly between 0 and 1, with 52 bits: an odd multiple of 2^-53, exact as a float64.

    So an event that has a chance happens with this chance to within 2^-53.

    Args:
        seed, position: as of `words`.
        candidate: its rank among those for the position.
    """
    high, low = words(seed, position, COIN, np.array([4 * candidate, 4 * candidate + 1])).tolist()
    return float((high << 20 | low >> 12) + 0.5) * 2.0**-52
