"""The loops of `reader.py` for numba: the same masks.

Never imported on the way to a first mask: `accelerate.py` loads it in the background.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from sortition.grammars import reader
from sortition.grammars.jit import inlined, pointer
from sortition.grammars.machine import ENDLESS
from sortition.grammars.reader import (
    COUNT_BITS,
    EFFECT,
    FRAME_BITS,
    GUARD,
    HEIGHT,
    OTHERWISE,
    TARGET,
    depth_of,
)

if TYPE_CHECKING:
    from sortition.grammars.reader import Mask, Reader, Span

_ALL: Final = np.uint32(0xFFFFFFFF)
"""A word with all bits set."""

# Numba does not check whether unsigned numbers count from the end, which is a quarter of the time of loops
# over a thousand classes.


@intrinsic
def _ones(typing: Any, word: Any) -> Any:
    """How many bits of a word are set."""
    return word(word), lambda context, builder, signature, words: builder.ctpop(words[0])


@numba.njit(cache=True, nogil=True)
def _grouped(token_class: Any, classes: int) -> Any:
    """`reader.grouped`: a counting sort of what each word holds.

    Most tokens are of one class, whose bits are found without a branch for each.
    """
    often = np.zeros(classes, np.int32)
    for token in range(0, len(token_class), 64):
        often[token_class[token]] += 1
    usual = often.argmax()
    unit = np.empty(len(token_class), np.int32)
    word = np.empty(len(token_class), np.uint32)
    bits = np.empty(len(token_class), np.uint32)
    starts = np.zeros(classes + 1, np.int32)
    last = np.full(classes, -1, np.int32)
    found = 0
    for first in range(0, len(token_class), 32):
        tokens = token_class[first : first + 32]
        usually = np.uint32(0)
        for token in range(len(tokens)):
            usually |= np.uint32(tokens[token] == usual) << np.uint32(token)
        begin = found
        if usually:
            unit[found], word[found], bits[found] = usual, first >> 5, usually
            found += 1
        others = ~usually & np.uint32(_ALL >> np.uint32(32 - len(tokens)))
        while others:
            below = ~others & (others - np.uint32(1))
            number = tokens[np.int64(_ones(below))]
            if last[number] < begin:
                last[number], unit[found], word[found], bits[found] = found, number, first >> 5, 0
                found += 1
            bits[last[number]] |= below + np.uint32(1)
            others &= others - np.uint32(1)
    for number in unit[:found]:
        starts[number + 1] += 1
    for number in range(classes):
        starts[number + 1] += starts[number]
    place = starts[:-1].copy()
    class_word, class_bits = np.empty(found, np.uint32), np.empty(found, np.uint32)
    for number in range(found):
        at = place[unit[number]]
        class_word[at], class_bits[at] = word[number], bits[number]
        place[unit[number]] += 1
    return starts, class_word, class_bits


def grouped(
    token_class: NDArray[np.uint16] | NDArray[np.int32], classes: int
) -> tuple[NDArray[np.int32], Mask, Mask]:
    """`reader.grouped`."""
    found: tuple[NDArray[np.int32], Mask, Mask] = _grouped(token_class.astype(np.int32, copy=False), classes)
    return found


@numba.njit(cache=True, nogil=True)
def _said(
    row_of_state: Any, survives: Any, rank: Any, first_entry: Any, action: Any, state: Any, unit: Any
) -> Any:
    """The action of a state and a class, -1 if the class does not survive."""
    row, word = np.uint64(row_of_state[state]), np.uint64(unit >> 5)
    bit = np.uint32(1) << np.uint32(unit & 31)
    if survives[row, word] & bit == 0:
        return -1
    below = np.uint32(survives[row, word] & (bit - np.uint32(1)))
    return np.int64(action[np.uint64(first_entry[state] + rank[row, word] + np.int64(_ones(below)))])


def _whereabouts(read: Reader) -> NDArray[np.int64]:
    """Where the arrays of a reader lie: int64 [arrays, 3], each with its address, rows and columns.

    Numba looks at every array that it is given, for a third of a microsecond each: in all more than what the
    loops take, which are given this one instead. The reader holds the arrays for as long as it does this.
    """
    if read.whereabouts is None:
        places = []
        for name, kind in _ARRAYS.items():
            array = getattr(read, name)
            if array.dtype != kind or not array.flags.c_contiguous:
                raise TypeError(f"{name} is {array.dtype}, not {np.dtype(kind)} in rows one after the other")
            columns = array.shape[1] if array.ndim == 2 else 1
            places.append((array.__array_interface__["data"][0], len(array), columns))
        read.whereabouts = np.array(places, np.int64)
    return read.whereabouts


_ARRAYS: Final[dict[str, type]] = {
    **dict.fromkeys(("conditional_start", "conditional", "row_of_state", "first_entry", "action"), np.int32),
    **dict.fromkeys(("class_start", "rank", "rules", "guards", "returns"), np.int32),
    **dict.fromkeys(("class_word", "class_bits", "eligible", "survives", "certain"), np.uint32),
}
"""The arrays that loops read, by their names in `Reader`."""

_CONDITIONAL_START, _CONDITIONAL, _ROW_OF_STATE, _FIRST_ENTRY, _ACTION = range(5)
_CLASS_START, _RANK, _RULES, _GUARDS, _RETURNS = range(5, 10)
_CLASS_WORD, _CLASS_BITS, _ELIGIBLE, _SURVIVES, _CERTAIN = range(10, 15)


@inlined
def _numbers(where: Any, array: int) -> Any:
    """An array of signed numbers."""
    return numba.carray(pointer(where[array, 0]), where[array, 1], np.int32)


@inlined
def _rows(where: Any, array: int) -> Any:
    """A table of signed numbers."""
    return numba.carray(pointer(where[array, 0]), (where[array, 1], where[array, 2]), np.int32)


@inlined
def _words(where: Any, array: int) -> Any:
    """An array of bits."""
    return numba.carray(pointer(where[array, 0]), where[array, 1], np.uint32)


@inlined
def _bits(where: Any, array: int) -> Any:
    """Rows of bits."""
    return numba.carray(pointer(where[array, 0]), (where[array, 1], where[array, 2]), np.uint32)


@numba.njit(cache=True, nogil=True)
def _survivors(
    where: Any,
    depth_limit: int,
    state: Any,
    count: Any,
    stack: Any,
    bits: Any,
    wanted_spans: Any,
) -> Any:
    """Apply every conditional class, as `Reader.admits` does, and say how many frames had to be seen.

    The stack has its top first. The bits are filled in, and the spans if there is room for any.
    """
    row_of_state, first_entry, action = (
        _numbers(where, _ROW_OF_STATE),
        _numbers(where, _FIRST_ENTRY),
        _numbers(where, _ACTION),
    )
    survives, rank, rules = _bits(where, _SURVIVES), _rows(where, _RANK), _rows(where, _RULES)
    guards, returns = _rows(where, _GUARDS), _rows(where, _RETURNS)
    conditional_start, conditional = _numbers(where, _CONDITIONAL_START), _numbers(where, _CONDITIONAL)
    bits[:] = _bits(where, _CERTAIN)[row_of_state[state], : len(bits)]
    most, depth = 0, len(stack)
    spans = wanted_spans if len(wanted_spans) else np.empty((depth + 2, 2), np.int64)
    spans[:, 0], spans[:, 1] = 0, ENDLESS
    # What became of the classes that began with an action: many share one.
    known, survived = np.zeros((2, (len(rules) + 31) // 32), np.uint32)
    for number in range(np.uint64(conditional_start[state]), np.uint64(conditional_start[state + 1])):
        unit = np.int64(conditional[number])
        begun = _said(row_of_state, survives, rank, first_entry, action, state, unit)
        place, bit = np.uint64(begun >> 5), np.uint32(1) << np.uint32(begun & 31)
        if not known[place] & bit:
            known[place] |= bit
            rule, counted, seen = begun, count, 0
            while rule >= 0:
                guard = rules[rule, GUARD]
                low, after = np.int64(guards[guard, 0]), np.int64(guards[guard, 1]) + 1
                for edge in (low, after):
                    if edge <= counted:
                        spans[seen, 0] = max(spans[seen, 0], edge)
                    else:
                        spans[seen, 1] = min(spans[seen, 1], edge - 1)
                if not low <= counted < after:
                    rule = np.int64(rules[rule, OTHERWISE])
                elif rules[rule, EFFECT] >= 0:
                    if depth - seen + rules[rule, HEIGHT] <= depth_limit:
                        survived[place] |= bit
                    break
                else:
                    seen += 1
                    if seen > depth:
                        break
                    top = stack[seen - 1]
                    at = np.int64(returns[~rules[rule, EFFECT], (top >> COUNT_BITS) - 1])
                    if at < 0:
                        break
                    counted = top & ((1 << COUNT_BITS) - 1)
                    remainder = rules[rule, TARGET]
                    rule = _said(row_of_state, survives, rank, first_entry, action, at, remainder)
            most = max(most, seen)
        if survived[place] & bit:
            bits[np.uint64(unit >> 5)] |= np.uint32(1) << np.uint32(unit & 31)
    return most


_NOTHING: Final = np.empty(0, np.int64)
_NO_SPANS: Final = np.empty((0, 2), np.int64)


def survivors(read: Reader, state: int, count: int, stack: int) -> tuple[Mask, list[Span]]:
    """`reader.survivors`."""
    if read.conditional_start[state] == read.conditional_start[state + 1]:
        return read.certain[read.row_of_state[state], : read.words], [(0, ENDLESS)]
    depth = depth_of(stack)
    frames = (
        np.frombuffer(stack.to_bytes(depth * (FRAME_BITS // 8), "little"), np.int64) if depth else _NOTHING
    )
    bits = np.empty(read.words, np.uint32)
    # Where nothing counts, all counts are alike.
    spans = np.empty((depth + 2, 2), np.int64) if read.counts else _NO_SPANS
    most = _survivors(_whereabouts(read), read.depth_limit, state, count, frames, bits, spans)
    return bits, spans[: most + 1].tolist() if read.counts else [(0, ENDLESS)] * (most + 1)


@numba.njit(cache=True, nogil=True)
def _tokens_of(where: Any, bits: Any, near_bits: Any, near: Any, classes: int, mask: Any) -> Any:
    """`reader.tokens_of`, which fills the mask in."""
    class_start, class_word = _numbers(where, _CLASS_START), _words(where, _CLASS_WORD)
    class_bits = _words(where, _CLASS_BITS)
    wanted = differing = np.int64(0)
    for number in range(np.uint64(1), np.uint64(classes)):
        size = np.int64(class_start[number + np.uint64(1)] - class_start[number])
        at, bit = number >> np.uint64(5), np.uint32(number & np.uint64(31))
        wanted += size * np.int64(bits[at] >> bit & np.uint32(1))
        differing += size * np.int64((bits[at] ^ near_bits[at]) >> bit & np.uint32(1))
    others = class_start[classes] - class_start[1] - wanted
    if differing < min(wanted, others):
        changed = bits ^ near_bits
        mask[:] = near
    elif others < wanted:
        changed = ~bits
        mask[:] = _words(where, _ELIGIBLE)
    else:
        changed = bits.copy()
        mask[:] = 0
    # Class 0 is in no mask, and nor are classes of remainders alone.
    changed[0] &= ~np.uint32(1)
    changed[-1] &= np.uint32(_ALL >> np.uint32(-classes & 31))
    for word in range(len(changed)):
        left = changed[word]
        while left:
            unit = np.uint64(32 * word + np.int64(_ones(~left & (left - np.uint32(1)))))
            for place in range(np.uint64(class_start[unit]), np.uint64(class_start[unit + np.uint64(1)])):
                mask[class_word[place]] ^= class_bits[place]
            left &= left - np.uint32(1)
    return min(wanted, others, differing)


def tokens_of(read: Reader, bits: Mask, near_bits: Mask, near: Mask) -> tuple[Mask, int]:
    """`reader.tokens_of`."""
    mask = np.empty(len(near), np.uint32)
    return mask, _tokens_of(_whereabouts(read), bits, near_bits, near, read.token_classes, mask)


REPLACES: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    reader.grouped: grouped,
    reader.survivors: survivors,
    reader.tokens_of: tokens_of,
}


def _read_only(kind: Any, dimensions: int) -> Any:
    """Arrays of tables cannot be written to; numba takes others there, too."""
    return types.Array(kind, dimensions, "C", readonly=True)


_NARROW = _read_only(types.int32, 1)
_WHERE = types.int64[:, ::1]
_MASK = types.uint32[::1]
LOOPS: Final[dict[Any, tuple[Any, ...]]] = {
    _grouped: (_NARROW, types.int64),
    _survivors: (
        _WHERE,
        types.int64,
        types.int64,
        types.int64,
        _read_only(types.int64, 1),
        _MASK,
        types.int64[:, ::1],
    ),
    _tokens_of: (_WHERE, *[_read_only(types.uint32, 1)] * 3, types.int64, _MASK),
}
