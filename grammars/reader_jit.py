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


@numba.njit(cache=True, nogil=True)
def _survivors(
    conditional_start: Any,
    conditional: Any,
    row_of_state: Any,
    survives: Any,
    certain: Any,
    rank: Any,
    first_entry: Any,
    action: Any,
    rules: Any,
    guards: Any,
    returns: Any,
    depth_limit: int,
    words: int,
    state: Any,
    count: Any,
    stack: Any,
) -> Any:
    """Apply every conditional class, as `Reader.admits` does. The stack has its top first."""
    bits = certain[row_of_state[state], :words].copy()
    most, depth = 0, len(stack)
    spans = np.empty((depth + 2, 2), np.int64)
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
    return bits, spans[: most + 1]


def survivors(read: Reader, state: int, count: int, stack: int) -> tuple[Mask, list[Span]]:
    """`reader.survivors`."""
    if read.conditional_start[state] == read.conditional_start[state + 1]:
        return read.certain[read.row_of_state[state], : read.words], [(0, ENDLESS)]
    bits, spans = _survivors(
        read.conditional_start,
        read.conditional,
        read.row_of_state,
        read.survives,
        read.certain,
        read.rank,
        read.first_entry,
        read.action,
        read.rules,
        read.guards,
        read.returns,
        read.depth_limit,
        read.words,
        state,
        count,
        np.frombuffer(stack.to_bytes(depth_of(stack) * (FRAME_BITS // 8), "little"), np.int64),
    )
    return bits, spans.tolist()


@numba.njit(cache=True, nogil=True)
def _tokens_of(
    bits: Any,
    near_bits: Any,
    near: Any,
    classes: int,
    class_start: Any,
    class_word: Any,
    class_bits: Any,
    eligible: Any,
) -> Any:
    """`reader.tokens_of`."""
    wanted = differing = np.int64(0)
    for number in range(np.uint64(1), np.uint64(classes)):
        size = np.int64(class_start[number + np.uint64(1)] - class_start[number])
        at, bit = number >> np.uint64(5), np.uint32(number & np.uint64(31))
        wanted += size * np.int64(bits[at] >> bit & np.uint32(1))
        differing += size * np.int64((bits[at] ^ near_bits[at]) >> bit & np.uint32(1))
    others = class_start[classes] - class_start[1] - wanted
    if differing < min(wanted, others):
        changed, mask = bits ^ near_bits, near.copy()
    elif others < wanted:
        changed, mask = ~bits, eligible.copy()
    else:
        changed, mask = bits.copy(), np.zeros_like(eligible)
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
    return mask, min(wanted, others, differing)


def tokens_of(read: Reader, bits: Mask, near_bits: Mask, near: Mask) -> tuple[Mask, int]:
    """`reader.tokens_of`."""
    found: tuple[Mask, int] = _tokens_of(
        bits,
        near_bits,
        near,
        read.token_classes,
        read.class_start,
        read.class_word,
        read.class_bits,
        read.eligible,
    )
    return found


REPLACES: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    reader.grouped: grouped,
    reader.survivors: survivors,
    reader.tokens_of: tokens_of,
}


def _read_only(kind: Any, dimensions: int) -> Any:
    """Arrays of tables cannot be written to; numba takes others there, too."""
    return types.Array(kind, dimensions, "C", readonly=True)


_NARROW = _read_only(types.int32, 1)
_TABLE = _read_only(types.int32, 2)
_WORDS = _read_only(types.uint32, 2)
_MASK = types.uint32[::1]
LOOPS: Final[dict[Any, tuple[Any, ...]]] = {
    _grouped: (_NARROW, types.int64),
    _survivors: (
        _NARROW,
        _NARROW,
        _NARROW,
        _WORDS,
        _WORDS,
        _TABLE,
        _NARROW,
        _NARROW,
        _TABLE,
        _TABLE,
        _TABLE,
        types.int64,
        types.int64,
        types.int64,
        types.int64,
        _read_only(types.int64, 1),
    ),
    _tokens_of: (
        _read_only(types.uint32, 1),
        _read_only(types.uint32, 1),
        _read_only(types.uint32, 1),
        types.int64,
        _NARROW,
        _MASK,
        _MASK,
        _MASK,
    ),
}
