"""What a mask does to a row of logits on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortition.grammars.reader import Mask


def rule_out(row: NDArray[np.signedinteger[Any]], mask: Mask, infinity: int) -> None:
    """Make -inf of the logits of all tokens that a mask leaves out, in place.

    If none of the others is above -inf (somebody else ruled them all out), or one of them is NaN, the others
    become 0, so that one of them is drawn all the same.

    Args:
        row: the bits of the logits, as integers of the same size: NumPy has no bfloat16.
        mask: uint32 [ceil(len(row) / 32)], as of `Matcher.allowed`.
        infinity: the bits of infinity, by which kinds of floats of one size differ.
    """
    eligible = np.unpackbits(mask.view(np.uint8), count=len(row), bitorder="little").view(np.bool_)
    sign = -1 << 8 * row.itemsize - 1
    lowest = sign | infinity
    np.copyto(row, lowest, where=~eligible)
    # The bits of NaN, but for the sign, are those of infinity and more.
    if (row == lowest).all() or ((row & ~sign) > infinity).any():
        row[eligible] = 0
