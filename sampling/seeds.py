"""Seeds: integers of 64 bits, with or without a sign."""

from __future__ import annotations

from typing import Any

from sortition.sampling.whole_numbers import whole


def checked_seed(value: Any) -> int:
    """A seed as an integer.

    Raises:
        TypeError: it is not whole.
        ValueError: it has more than 64 bits.
    """
    seed = whole("a seed", value)
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"a seed is an integer of 64 bits, not {seed}")
    return seed


def signed(seed: int) -> int:
    """The lowest 64 bits of a seed, as a number with a sign."""
    return (seed + 2**63) % 2**64 - 2**63
