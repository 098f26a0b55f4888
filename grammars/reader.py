"""Reader: what one table says on the host, for all its matchers, and the masks that it has said before."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import count as numbers
from struct import Struct
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from sortition.grammars import accelerate
from sortition.grammars.machine import ENDLESS
from sortition.grammars.table import Table

CACHED_MASKS: Final = 2048
"""Masks kept per table; 16 KiB each for 128k tokens, so 32 MiB."""

SHARED_MASKS: Final = 16_384
"""Masks kept in all, 256 MiB for 128k tokens: where many tables are alive, each keeps its share."""

FEWEST_MASKS: Final = 64
"""Masks that every table may keep."""

CACHED_BYTES: Final = 20 << 20
"""Of places (state, room, top of the stack) whose mask is known, per table."""

PLACE_BYTES: Final = 160
"""That a place takes, but for the bits of its classes."""

CACHED_ACTIONS: Final = 1 << 14
"""Pairs of a state and a class whose action is known, per table: few, as they are cleared at once."""

CACHED_SPANS: Final = 1 << 14
"""Places whose spans of counts are known, per table: few, as they are cleared at once."""

FAR: Final = 1024
"""A mask that takes so many changes of words, some microseconds, is what others may be made from."""

FRAME_BITS: Final = 64
COUNT_BITS: Final = 32
_FRAME: Final = (1 << FRAME_BITS) - 1
_COUNT: Final = (1 << COUNT_BITS) - 1
_SITE: Final = _FRAME ^ _COUNT

TARGET, EFFECT, HEIGHT, GUARD, OTHERWISE = range(5)
"""The columns of `Reader.rules`."""

_ACTION: Final = Struct("5i")
"""A row of them: all of it is read in the time of two single numbers."""

Action: TypeAlias = tuple[int, ...]
"""A row of `Reader.rules`."""

REFUSED: Final[Action] = (-1, -1, 0, -1, -1)
"""What stands for no action: its guard never holds."""

Mask: TypeAlias = NDArray[np.uint32]


Place: TypeAlias = tuple[int, int, int, bool]
"""Where a text is: state, count, stack, and whether it has ended.

The stack is one number, of `FRAME_BITS` for every call site, the top the lowest: its number plus 1, and in
the lowest `COUNT_BITS` the count of the frame below it. Tuples that a long text keeps would have the garbage
collector come again and again, for milliseconds.
"""

Span: TypeAlias = tuple[int, int]
"""A least and a greatest count."""

_Bounded: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], list[int], list[int]]
"""Classes, the least and greatest count at which each survives, the counts at which that changes, and classes
that ask for more."""


class Reader:
    """Reads one table for all its matchers, and remembers what it has read."""

    def __init__(self, table: Table) -> None:
        self.size = table.vocabulary_size
        self.token_classes = table.token_classes
        self.row_of_state = table.row_of_state
        self.survives, self.certain, self.rank = table.survives, table.certain, table.rank
        self.first_entry = np.append(table.first_entry, np.int32(len(table.action)))
        self.action = table.action.astype(np.int32, copy=False)
        # int32 [actions, 5]
        self.rules = np.column_stack(
            (
                table.action_target,
                table.action_effect,
                table.action_height,
                table.action_guard,
                table.action_otherwise,
            )
        )
        self.guards = table.guards
        self.counts = len(table.guards) > 1
        self.bounded: dict[int, _Bounded] = {}
        self.conditional_start, self.conditional = table.conditional_start, table.conditional
        self.returns = table.returns
        self.depth_limit = table.depth_limit
        # With more room than any entry asks for, it does not matter how much there is.
        self.most_room = int(table.action_height.max(initial=0)) if table.recursive else 0
        self.deep = 1 << FRAME_BITS * max(0, self.depth_limit - self.most_room)
        self.class_start, self.class_word, self.class_bits = accelerate.best(grouped)(
            table.token_class, table.token_classes
        )
        self.words = (table.token_classes + 31) // 32
        self.eligible = _packed(table.token_class != 0)
        every = np.full(self.words, 0xFFFFFFFF, np.uint32)
        # Class 0 is in no mask.
        every[0] -= 1
        # The bits of some classes and their tokens, to make others from: all, at first.
        self.near: tuple[Mask, Mask] = every, self.eligible
        # Views give one number in a third of the time that arrays take.
        self._class_of_token = table.token_class.data
        self._row_of_state, self._first_entry = self.row_of_state.data, self.first_entry.data
        self._survives, self._rank, self._action = self.survives.data, self.rank.data, self.action.data
        self._rules, self._guards = self.rules.data.cast("B"), self.guards.data
        self._push_length, self._push_count = table.push_length.data, table.push_count.data
        self._push_sites = table.push_sites.data
        self._ending, self._returns = table.ending.data, self.returns.data
        self._accepting = table.accepting.data
        # By state and class.
        self.action_of: dict[int, Action] = {}
        # By place without its count (a state and the room on top of it): the known spans of counts in which
        # all is the same, as a least count and the one after the greatest in turns.
        self.spans: dict[int, list[int]] = {}
        # By place with the least count of its span, the bits of its classes, or a number where a site of the
        # stack has to be seen first: with that site it is a place again. The oldest places and masks go, one
        # by one, as others come.
        self.places: dict[int, bytes | int] = {}
        # An ordered dictionary of some thousand places takes a quarter of a millisecond when it grows.
        self.order: deque[int] = deque()
        self.numbers = numbers(1)
        # For compiled loops, which find out where the arrays above lie.
        self.whereabouts: NDArray[np.int64] | None = None
        self.masks: OrderedDict[bytes, Mask] = OrderedDict()

    def can_end(self, state: int, stack: int) -> bool:
        """Whether the text may end: here, or after whatever is open has ended too."""
        while not self._accepting[state]:
            ending = self._ending[state]
            if ending < 0 or not stack:
                return False
            state = self._returns[ending, ((stack & _FRAME) >> COUNT_BITS) - 1]
            if state < 0:
                return False
            stack >>= FRAME_BITS
        return True

    def step(self, place: Place, token: int) -> Place | None:
        """Where one token leads, None if it is refused."""
        state, count, stack, _ = place
        unit = self._class_of_token[token]
        while True:
            action = self.action_of.get(state << 32 | unit) or self._find(state, unit)
            target, effect, height, guard, otherwise = action
            while guard:
                if guard > 0 and self._guards[guard, 0] <= count <= self._guards[guard, 1]:
                    break
                if otherwise < 0:
                    return None
                target, effect, height, guard, otherwise = _ACTION.unpack_from(
                    self._rules, otherwise * _ACTION.size
                )
            if effect >= 0:
                if height and depth_of(stack) + height > self.depth_limit:
                    return None
                if guard:
                    count += self._guards[guard, 2]
                if effect:
                    for at in range(self._push_length[effect]):
                        site = self._push_sites[effect, at]
                        stack = stack << FRAME_BITS | (site + 1) << COUNT_BITS | count
                        count = self._push_count[effect, at]
                return target, count, stack, False
            if not stack:
                return None
            state = self._returns[~effect, ((stack & _FRAME) >> COUNT_BITS) - 1]
            if state < 0:
                return None
            count = stack & _COUNT
            stack >>= FRAME_BITS
            unit = target

    def mask(self, state: int, count: int, stack: int) -> Mask:
        """The tokens that may come next, end tokens apart."""
        room = self.most_room if stack < self.deep else self.depth_limit - depth_of(stack)
        first = place = (state * (self.most_room + 1) + room) << COUNT_BITS
        known, below = self.places.get(self._alike(place, count) if self.counts else place), stack
        while isinstance(known, int):
            place = known << FRAME_BITS | below & _SITE
            known = self.places.get(self._alike(place, below & _COUNT) if self.counts else place)
            below >>= FRAME_BITS
        bits = self._learn(first, state, count, stack) if known is None else known
        mask = self.masks.get(bits)
        return self._make(bits) if mask is None else mask

    def bounds(self, state: int) -> _Bounded:
        """Conditional classes that ask for the count alone, with its bounds, and the other ones."""
        found = self.bounded.get(state)
        if found is None:
            first, last = self.conditional_start[state : state + 2].tolist()
            units = self.conditional[first:last]
            row, words = self.row_of_state[state], units >> 5
            below = (np.uint32(1) << (units & 31).astype(np.uint32)) - np.uint32(1)
            before = self.rank[row, words] + np.bitwise_count(self.survives[row, words] & below)
            rules = self.rules[self.action[self.first_entry[state] + before]]
            plain = (rules[:, EFFECT] >= 0) & (rules[:, HEIGHT] == 0) & (rules[:, OTHERWISE] < 0)
            low, high, _ = self.guards[rules[plain, GUARD]].T
            edges: list[int] = np.unique(np.concatenate(((0, ENDLESS + 1), low, high + 1))).tolist()
            found = self.bounded[state] = units[plain], low, high, edges, units[~plain].tolist()
        return found

    def admits(self, state: int, count: int, stack: int, unit: int, spans: list[Span]) -> bool:
        """Whether a class survives; narrows the spans of the frames that it sees, or adds them."""
        seen, guards = 0, self._guards
        while True:
            if seen == len(spans):
                spans.append((0, ENDLESS))
            target, effect, height, guard, otherwise = self._find(state, unit) if state >= 0 else REFUSED
            while guard >= 0:
                low, high = guards[guard, 0], guards[guard, 1]
                spans[seen] = narrowed(spans[seen], count, low, high)
                if low <= count <= high:
                    break
                if otherwise < 0:
                    return False
                target, effect, height, guard, otherwise = _ACTION.unpack_from(
                    self._rules, otherwise * _ACTION.size
                )
            else:
                return False
            if effect >= 0:
                fits: bool = depth_of(stack) + height <= self.depth_limit
                return fits
            state = self._returns[~effect, ((stack & _FRAME) >> COUNT_BITS) - 1] if stack else -1
            count = stack & _COUNT
            stack >>= FRAME_BITS
            unit = target
            seen += 1

    def _alike(self, place: int, count: int) -> int:
        """The place with the least count that is known to be like this one; -1 if none is."""
        edges = self.spans.get(place, ())
        at = bisect_right(edges, count)
        return place | edges[at - 1] if at & 1 else -1

    def _find(self, state: int, unit: int) -> Action:
        """The action of a state and a class."""
        row, word, bit = self._row_of_state[state], unit >> 5, 1 << (unit & 31)
        bits, action = self._survives[row, word], REFUSED
        if bits & bit:
            before = self._rank[row, word] + (bits & (bit - 1)).bit_count()
            number = self._action[self._first_entry[state] + before]
            action = _ACTION.unpack_from(self._rules, number * _ACTION.size)
        if len(self.action_of) >= CACHED_ACTIONS:
            self.action_of.clear()
        self.action_of[state << 32 | unit] = action
        return action

    def _learn(self, place: int, state: int, count: int, stack: int) -> bytes:
        """Find the classes of a place, remembered for all that look alike as far as was seen."""
        found, spans = accelerate.best(survivors)(self, state, count, stack)
        for seen, (low, high) in enumerate(spans):
            if seen:
                number = self.places.get(place)
                if not isinstance(number, int):
                    number = next(self.numbers)
                    self._remember(place, number)
                place = number << FRAME_BITS | stack & _SITE
                stack >>= FRAME_BITS
            if self.counts:
                self._note(place, low, high)
            place |= low
        bits = found.tobytes()
        self._remember(place, bits)
        return bits

    def _note(self, place: int, low: int, high: int) -> None:
        """Note that a place is the same from one count to another."""
        if place not in self.spans and len(self.spans) >= CACHED_SPANS:
            self.spans.clear()
        edges = self.spans.setdefault(place, [])
        at = bisect_right(edges, low)
        if not at & 1:
            edges[at:at] = low, high + 1

    def _remember(self, place: int, what: bytes | int) -> None:
        if len(self.order) >= CACHED_BYTES // (PLACE_BYTES + 4 * self.words):
            self.places.pop(self.order.popleft(), None)
        self.order.append(place)
        self.places[place] = what

    def _make(self, bits: bytes) -> Mask:
        """The mask of these classes."""
        if len(self.masks) >= FEWEST_MASKS:
            room = min(CACHED_MASKS, max(FEWEST_MASKS, SHARED_MASKS // (len(_readers) or 1)))
            # Two go for one that comes, until there is room: other tables may have taken some.
            for _ in range(2):
                if len(self.masks) >= room:
                    self.masks.popitem(last=False)
        classes = np.frombuffer(bits, np.uint32)
        mask, changes = accelerate.best(tokens_of)(self, classes, *self.near)
        mask.setflags(write=False)
        if changes >= FAR:
            self.near = classes, mask
        self.masks[bits] = mask
        return mask


def grouped(
    token_class: NDArray[np.uint16] | NDArray[np.int32], classes: int
) -> tuple[NDArray[np.int32], Mask, Mask]:
    """The tokens of each class as the words of a mask that are not 0.

    Returns where each class begins, int32 [classes + 1], which words it has, uint32, and their bits, uint32.
    """
    by_class = np.argsort(token_class, kind="stable").astype(np.uint32)
    unit, word = token_class[by_class], by_class >> np.uint32(5)
    first = np.flatnonzero(np.append(True, (unit[1:] != unit[:-1]) | (word[1:] != word[:-1])))
    bits: Mask = np.bitwise_or.reduceat(np.uint32(1) << (by_class & np.uint32(31)), first)
    starts = np.searchsorted(unit[first], np.arange(classes + 1)).astype(np.int32)
    return starts, word[first], bits


def survivors(reader: Reader, state: int, count: int, stack: int) -> tuple[Mask, list[Span]]:
    """The classes that survive in a state, as bits, and the counts for which they are the same.

    These are a span for every frame that had to be seen, the text's own first and the stack's bottom as one.
    """
    bits = reader.certain[reader.row_of_state[state], : reader.words].copy()
    bounded, low, high, edges, units = reader.bounds(state)
    held = bounded[(low <= count) & (count <= high)]
    np.bitwise_or.at(bits, held >> 5, np.uint32(1) << (held & 31).astype(np.uint32))
    after = bisect_right(edges, count)
    spans = [(edges[after - 1], edges[after] - 1)]
    for unit in units:
        if reader.admits(state, count, stack, unit, spans):
            bits[unit >> 5] |= np.uint32(1 << (unit & 31))
    return bits, spans


def tokens_of(reader: Reader, bits: Mask, near_bits: Mask, near: Mask) -> tuple[Mask, int]:
    """The tokens of the classes whose bits are set, and how many changes of words they took.

    Most masks hold few tokens, or nearly all that there are, or are near one whose bits are known: it is made
    from the nearest of these.
    """
    wanted, known = (
        np.unpackbits(each.view(np.uint8), count=reader.token_classes, bitorder="little").view(np.bool_)
        for each in (bits, near_bits)
    )
    # Class 0 is in no mask.
    every = np.arange(reader.token_classes) > 0
    begins = ((np.zeros_like(wanted), np.zeros_like(near)), (every, reader.eligible), (known, near))
    sizes = np.diff(reader.class_start)
    away = [int(sizes[wanted != classes].sum()) for classes, _ in begins]
    classes, mask = begins[away.index(min(away))]
    changed = np.zeros_like(mask)
    # Neighbouring classes are one slice.
    edges = np.flatnonzero(np.diff(wanted != classes, prepend=False, append=False))
    for first, last in reader.class_start[edges].reshape(-1, 2).tolist():
        np.bitwise_or.at(changed, reader.class_word[first:last], reader.class_bits[first:last])
    return mask ^ changed, min(away)


def narrowed(span: Span, count: int, low: int, high: int) -> Span:
    """The part of a span around a count in which all counts are within the bounds, or none is."""
    least, most = span
    for edge in (low, high + 1):
        if edge <= count:
            least = max(least, edge)
        else:
            most = min(most, edge - 1)
    return least, most


def depth_of(stack: int) -> int:
    """How many call sites are on a stack."""
    return -(-stack.bit_length() // FRAME_BITS)


def stacked(sites: Sequence[int], counts: Sequence[int]) -> int:
    """The stack of these call sites, the top last, each with the count of the frame below it."""
    stack = 0
    for site, count in zip(sites, counts, strict=True):
        stack = stack << FRAME_BITS | (site + 1) << COUNT_BITS | count
    return stack


def unstacked(stack: int) -> tuple[list[int], list[int]]:
    """The call sites of a stack, the top last, and the counts of the frames below them."""
    frames = [stack >> at & _FRAME for at in range(FRAME_BITS * (depth_of(stack) - 1), -1, -FRAME_BITS)]
    return [(frame >> COUNT_BITS) - 1 for frame in frames], [frame & _COUNT for frame in frames]


def _packed(flags: NDArray[np.bool_]) -> Mask:
    """Flags of tokens as a mask."""
    packed = np.packbits(flags, bitorder="little")
    return np.pad(packed, (0, -len(packed) % 4)).view(np.uint32)


_readers: WeakKeyDictionary[Table, Reader] = WeakKeyDictionary()


def reader_of(table: Table) -> Reader:
    """The one reader of a table; it holds the table's arrays, not the table, so both go together."""
    reader = _readers.get(table)
    if reader is None:
        reader = _readers[table] = Reader(table)
    return reader
