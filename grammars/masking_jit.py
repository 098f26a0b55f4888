"""The loop of `masking.py` for numba: the same logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from sortition.grammars import masking

if TYPE_CHECKING:
    from sortition.grammars.reader import Mask


def _rule_out(row: Any, mask: Any, infinity: int) -> None:
    """`masking.rule_out`, word by word: without branches on bits, a word is a few instructions.

    Numba would go on in 64 bits after each operation, which takes half as long again.
    """
    sign = np.int64(-1) << (8 * row.itemsize - 1)
    lowest, highest, unsigned = np.int32(sign | infinity), np.int32(infinity), np.int32(~sign)
    alive = odd = False
    for word in range(len(row) // 32):
        bits, part = mask[word], row[word * 32 : word * 32 + 32]
        if bits == 0:
            part[:] = lowest
            continue
        above = over = np.int32(0)
        for place in range(32):
            kept = np.int32(-np.int32(bits >> np.uint32(place) & np.uint32(1)))
            value = np.int32(np.int32(np.int32(part[place]) & kept) | np.int32(lowest & np.int32(~kept)))
            part[place] = value
            above = np.int32(above | np.int32(value ^ lowest))
            # Negative for NaN.
            over = np.int32(over | np.int32(highest - np.int32(value & unsigned)))
        alive = alive or bool(above)
        odd = odd or bool(over < 0)
    for place in range(len(row) // 32 * 32, len(row)):
        if not mask[place >> 5] >> np.uint32(place & 31) & np.uint32(1):
            row[place] = lowest
        alive = alive or bool(row[place] != lowest)
        odd = odd or bool(np.int32(row[place]) & unsigned > highest)
    if odd or not alive:
        for place in range(len(row)):
            if mask[place >> 5] >> np.uint32(place & 31) & np.uint32(1):
                row[place] = 0


_NARROW, _WIDE = (numba.njit(cache=True, nogil=True)(_rule_out) for _ in range(2))
_LOOP_OF: Final = {np.dtype(np.int16): _NARROW, np.dtype(np.int32): _WIDE}


def rule_out(row: NDArray[np.signedinteger[Any]], mask: Mask, infinity: int) -> None:
    """`masking.rule_out`; logits of 64 bits, and those that do not lie side by side, are rare."""
    loop = _LOOP_OF.get(row.dtype) if row.flags.c_contiguous else None
    (loop or masking.rule_out)(row, mask, infinity)


REPLACES: Final[dict[Callable[..., Any], Callable[..., Any]]] = {masking.rule_out: rule_out}

_MASK: Final = types.Array(types.uint32, 1, "C", readonly=True)
LOOPS: Final[dict[Any, tuple[Any, ...]]] = {
    _NARROW: (types.int16[::1], _MASK, types.int64),
    _WIDE: (types.int32[::1], _MASK, types.int64),
}
