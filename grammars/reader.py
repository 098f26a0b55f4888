"""Reader: what one table says on the host, for all its matchers, and the masks that it has said before."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from itertools import count as numbers
from typing import Final, NamedTuple, TypeAlias
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

CACHED_RULES: Final = 1 << 14
"""Pairs of a state and a class whose action is known, per table: few, as they are cleared at once."""

FRAME_BITS: Final = 64
COUNT_BITS: Final = 32
_FRAME: Final = (1 << FRAME_BITS) - 1
_COUNT: Final = (1 << COUNT_BITS) - 1

TARGET, EFFECT, HEIGHT, GUARD, OTHERWISE = range(5)
"""The columns of `Reader.rules`."""

Mask: TypeAlias = NDArray[np.uint32]


class Place(NamedTuple):
    """Where a text is.

    The stack is one number, of `FRAME_BITS` for every call site, the top the lowest: its number plus 1, and
    in the lowest `COUNT_BITS` the count of the frame below it. Tuples that a long text keeps would have the
    garbage collector come again and again, for milliseconds.
    """

    state: int
    counted: int
    stack: int
    ended: bool


_Bounded: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], list[int]]
"""Classes, the least and greatest count at which each survives, and classes that ask for more."""


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
        # The counts of a state, and of any state to which a site returns, at which masks may change.
        self.cuts: dict[int, list[int]] = {}
        self.site_cuts: dict[int, list[int]] = {}
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
        # Views give one number in a third of the time that arrays take.
        self._class_of_token = table.token_class.data
        self._row_of_state, self._first_entry = self.row_of_state.data, self.first_entry.data
        self._survives, self._rank, self._action = self.survives.data, self.rank.data, self.action.data
        self._rules, self._guards = self.rules.data, self.guards.data
        self._push_length, self._push_count = table.push_length.data, table.push_count.data
        self._push_sites = table.push_sites.data
        self._ending, self._returns = table.ending.data, self.returns.data
        self._accepting = table.accepting.data
        # Action by state and class, -1 for none.
        self.rule_of: dict[int, int] = {}
        # By place, the bits of its classes, or a number where a site of the stack has to be seen first: with
        # that site it is a place again. The oldest places and masks go, one by one, as others come.
        self.places: OrderedDict[int, bytes | int] = OrderedDict()
        self.numbers = numbers(1)
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
        return self.apply(place.state, place.counted, place.stack, self._class_of_token[token])[0]

    def mask(self, state: int, count: int, stack: int) -> Mask:
        """The tokens that may come next, end tokens apart."""
        room = self.most_room if stack < self.deep else self.depth_limit - depth_of(stack)
        place = state * (self.most_room + 1) + room
        if self.counts:
            place = place << COUNT_BITS | bisect_right(self._cuts(state), count)
        known, below = self.places.get(place), stack
        while isinstance(known, int):
            known = self.places.get(known << FRAME_BITS | self._top(below))
            below >>= FRAME_BITS
        bits = self._learn(place, state, count, stack) if known is None else known
        mask = self.masks.get(bits)
        return self._make(bits) if mask is None else mask

    def apply(self, state: int, count: int, stack: int, unit: int) -> tuple[Place | None, int]:
        """Where a class leads, and how many sites of the stack had to be seen (its bottom counts)."""
        seen, rules, guards = 0, self._rules, self._guards
        while True:
            rule = self._rule(state, unit)
            while rule >= 0:
                guard = rules[rule, GUARD]
                if not guard or guards[guard, 0] <= count <= guards[guard, 1]:
                    break
                rule = rules[rule, OTHERWISE]
            else:
                return None, seen
            effect = rules[rule, EFFECT]
            if effect >= 0:
                height = rules[rule, HEIGHT]
                if height and depth_of(stack) + height > self.depth_limit:
                    return None, seen
                if guard:
                    count += guards[guard, 2]
                for at in range(self._push_length[effect]):
                    site = self._push_sites[effect, at]
                    stack = stack << FRAME_BITS | (site + 1) << COUNT_BITS | count
                    count = self._push_count[effect, at]
                return Place(rules[rule, TARGET], count, stack, False), seen
            seen += 1
            if not stack:
                return None, seen
            state = self._returns[~effect, ((stack & _FRAME) >> COUNT_BITS) - 1]
            if state < 0:
                return None, seen
            count = stack & _COUNT
            stack >>= FRAME_BITS
            unit = rules[rule, TARGET]

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
            found = self.bounded[state] = units[plain], low, high, units[~plain].tolist()
        return found

    def _top(self, stack: int) -> int:
        """What tells the top of a stack from others: the site, and how far the frame below it has counted."""
        top = stack & _FRAME
        if not self.counts or not top:
            return top
        site = (top >> COUNT_BITS) - 1
        cuts = self.site_cuts.get(site)
        if cuts is None:
            states = self.returns[:, site]
            cuts = self.site_cuts[site] = accelerate.best(cuts_of)(self, states[states >= 0])
        return top & ~_COUNT | bisect_right(cuts, top & _COUNT)

    def _cuts(self, state: int) -> list[int]:
        """The counts at which masks of a state may change."""
        cuts = self.cuts.get(state)
        if cuts is None:
            cuts = self.cuts[state] = accelerate.best(cuts_of)(self, np.array([state], np.int32))
        return cuts

    def _rule(self, state: int, unit: int) -> int:
        """The action of a state and a class, -1 if the class does not survive."""
        key = state << 32 | unit
        rule = self.rule_of.get(key)
        if rule is None:
            row, word, bit = self._row_of_state[state], unit >> 5, 1 << (unit & 31)
            bits, rule = self._survives[row, word], -1
            if bits & bit:
                before = self._rank[row, word] + (bits & (bit - 1)).bit_count()
                rule = self._action[self._first_entry[state] + before]
            if len(self.rule_of) >= CACHED_RULES:
                self.rule_of.clear()
            self.rule_of[key] = rule
        return rule

    def _learn(self, place: int, state: int, count: int, stack: int) -> bytes:
        """Find the classes of a place, remembered for all stacks that look alike as far as was seen."""
        found = self.certain[self.row_of_state[state], : self.words].copy()
        seen = accelerate.best(survivors)(self, state, count, stack, found)
        bits = found.tobytes()
        for _ in range(seen):
            number = self.places.get(place)
            if not isinstance(number, int):
                number = next(self.numbers)
                self._remember(place, number)
            place = number << FRAME_BITS | self._top(stack)
            stack >>= FRAME_BITS
        self._remember(place, bits)
        return bits

    def _remember(self, place: int, what: bytes | int) -> None:
        if len(self.places) >= CACHED_BYTES // (PLACE_BYTES + 4 * self.words):
            self.places.popitem(last=False)
        self.places[place] = what

    def _make(self, bits: bytes) -> Mask:
        """The mask of these classes."""
        room = min(CACHED_MASKS, max(FEWEST_MASKS, SHARED_MASKS // (len(_readers) or 1)))
        # Two go for one that comes, until there are no more than the room, which other tables may have taken.
        for _ in range(2):
            if len(self.masks) >= room:
                self.masks.popitem(last=False)
        mask = self.masks[bits] = accelerate.best(tokens_of)(self, np.frombuffer(bits, np.uint32))
        mask.setflags(write=False)
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


def cuts_of(reader: Reader, states: NDArray[np.int32]) -> list[int]:
    """The counts at which some action of these states begins or ceases to be said; 0 and the end are none."""
    said = np.zeros(len(reader.rules), np.bool_)
    for state in states:
        said[reader.action[reader.first_entry[state] : reader.first_entry[state + 1]]] = True
    waiting = np.flatnonzero(said)
    while waiting.size:
        otherwise = reader.rules[waiting, OTHERWISE]
        waiting = otherwise[otherwise >= 0]
        said[waiting] = True
    bounds = reader.guards[np.unique(reader.rules[said, GUARD]), :2] + (0, 1)
    cuts: list[int] = np.unique(bounds[(bounds > 0) & (bounds <= ENDLESS)]).tolist()
    return cuts


def survivors(reader: Reader, state: int, count: int, stack: int, bits: Mask) -> int:
    """Set the bits of the classes that survive in a state because of its count and stack.

    Returns how many sites of the stack had to be seen; its bottom counts as one.
    """
    bounded, low, high, units = reader.bounds(state)
    held = bounded[(low <= count) & (count <= high)]
    np.bitwise_or.at(bits, held >> 5, np.uint32(1) << (held & 31).astype(np.uint32))
    most = 0
    for unit in units:
        after, seen = reader.apply(state, count, stack, unit)
        most = max(most, seen)
        if after is not None:
            bits[unit >> 5] |= np.uint32(1 << (unit & 31))
    return most


def tokens_of(reader: Reader, bits: Mask) -> Mask:
    """The tokens of the classes whose bits are set."""
    wanted = np.unpackbits(bits.view(np.uint8), count=reader.token_classes, bitorder="little").view(np.bool_)
    sizes = np.diff(reader.class_start)
    # Most masks hold few tokens or nearly all that there are: begin at the nearer end.
    most = bool(2 * sizes[wanted].sum() > sizes[1:].sum())
    changed = np.zeros_like(reader.eligible)
    # Neighbouring classes are one slice. Class 0 is in no mask.
    wanted[0] = most
    edges = np.flatnonzero(np.diff(wanted != most, prepend=False, append=False))
    for first, last in reader.class_start[edges].reshape(-1, 2).tolist():
        np.bitwise_or.at(changed, reader.class_word[first:last], reader.class_bits[first:last])
    return reader.eligible ^ changed if most else changed


def depth_of(stack: int) -> int:
    """How many call sites are on a stack."""
    return -(-stack.bit_length() // FRAME_BITS)


def _packed(flags: NDArray[np.bool_]) -> Mask:
    """Flags of tokens as a mask."""
    return np.packbits(np.pad(flags, (0, -len(flags) % 32)), bitorder="little").view(np.uint32)


_readers: WeakKeyDictionary[Table, Reader] = WeakKeyDictionary()


def reader_of(table: Table) -> Reader:
    """The one reader of a table; it holds the table's arrays, not the table, so both go together."""
    reader = _readers.get(table)
    if reader is None:
        reader = _readers[table] = Reader(table)
    return reader
