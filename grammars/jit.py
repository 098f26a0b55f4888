"""What the compiled loops have in common.

Never imported on the way to a first table: `accelerate.py` loads it with the loops. Numba's cache looks at
the file of each loop alone: after a change here, touch those files.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

FIRST: Final = np.uint64(0x9E3779B97F4A7C15)
"""What hashes begin with."""

FACTOR: Final = np.uint64(0x9FB21C651E98DF25)
SHIFT: Final = np.uint64(28)

FEW: Final = 24
"""Values that are sorted by insertion."""

# Passing some forty arrays from function to function takes more time than what the functions do: the median
# of real schemas takes 6.3 ms that way, and 2.5 ms in one piece.
inlined: Final = numba.njit(nogil=True, forceinline=True)


@intrinsic
def borrowed(_: Any, value: Any) -> Any:
    """The same array, or arrays of a tuple, of which numba counts no references.

    In loops this small, counting takes most of the time. Whoever calls with them holds them.
    """

    def without_owners(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _without_owner(context, builder, signature.args[0], arguments[0])

    return value(value), without_owners


def _without_owner(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    if isinstance(kind, types.BaseTuple):
        for index, part in enumerate(kind):
            inner = _without_owner(context, builder, part, builder.extract_value(value, index))
            value = builder.insert_value(value, inner, index)
    if isinstance(kind, types.Array):
        view = context.make_array(kind)(context, builder, value)
        view.meminfo = cgutils.get_null_value(view.meminfo.type)
        value = view._getvalue()
    return value


@intrinsic
def pointer(_: Any, address: Any) -> Any:
    """A number as the address that it is."""

    def as_pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.voidptr(address), as_pointer


@inlined
def mixed(code: Any, item: Any) -> Any:
    """A hash with one more number of 32 bits in it."""
    code = (code ^ np.uint64(np.uint32(item))) * FACTOR
    return code ^ (code >> SHIFT)


@inlined
def mixed_pair(code: Any, one: Any, other: Any) -> Any:
    """A hash with two more numbers of 32 bits in it, in half the time of one after the other."""
    code = (code ^ (np.uint64(np.uint32(one)) << np.uint64(32) | np.uint64(np.uint32(other)))) * FACTOR
    return code ^ (code >> np.uint64(32))


@numba.njit(nogil=True)
def sort(values: Any, count: int) -> None:
    """Sort the first values in place; numba's own sort takes longer to begin than to sort a few."""
    if count > FEW:
        values[:count].sort()
        return
    for index in range(1, count):
        value = values[index]
        place = index
        while place and values[place - 1] > value:
            values[place] = values[place - 1]
            place -= 1
        values[place] = value
