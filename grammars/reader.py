"""Reader: what one table says on the host, for all its matchers, and the masks that it has said before."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final, NamedTuple, TypeAlias
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

CACHED_PLACES: Final = 1 << 17
"""Places (state, room, top of the stack) whose mask is known, per table; some 20 MiB."""

_BOTTOM: Final = -1
"""Stands below the last call site."""

Mask: TypeAlias = NDArray[np.uint32]

Stack: TypeAlias = "tuple[int, Stack, int, int] | None"
"""The top call site, the stack below it, the number of sites, and the count of the frame below the top:
shared by all who grew from it."""


class Place(NamedTuple):
    """Where a text is: cheap to keep, so that going back is taking up an old one."""

    state: int
    counted: int
    stack: Stack
    ended: bool


class Action(NamedTuple):
    """What an entry says: the columns of `Reader.rules`."""

    target: int
    effect: int
    height: int
    least: int
    greatest: int
    step: int
    otherwise: int


_Bounded: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], list[int]]
"""Classes, the least and greatest count at which each survives, and classes that ask for more."""


class Reader:
    """Reads one table for all its matchers, and remembers what it has read."""

    def __init__(self, table: Table) -> None:
        self.size = table.vocabulary_size
        self.token_class = table.token_class
        self.token_classes = table.token_classes
        self.row_of_state = table.row_of_state
        self.survives, self.certain, self.rank = table.survives, table.certain, table.rank
        self.first_entry = np.append(table.first_entry, np.int32(len(table.action)))
        self.action = table.action.astype(np.int32, copy=False)
        # int64 [actions, 7]; guards are few, and looked up once.
        self.rules = np.column_stack(
            (
                table.action_target,
                table.action_effect,
                table.action_height,
                table.guards[table.action_guard],
                table.action_otherwise,
            )
        ).astype(np.int64, order="C")
        self.counts = len(table.guards) > 1
        # The counts of a state, and of any state to which a site returns, at which masks may change.
        self.cuts: dict[int, list[int]] = {}
        self.site_cuts: dict[int, list[int]] = {}
        self.bounded: dict[int, _Bounded] = {}
        self.conditional_start, self.conditional = table.conditional_start, table.conditional
        self.ending: list[int] = table.ending.tolist()
        self.returns = table.returns
        self.accepting: list[bool] = table.accepting.tolist()
        self.push_sites, self.push_count = table.push_sites, table.push_count
        self.push_length = table.push_length
        self.strings: list[list[tuple[int, int]]] = [
            list(zip(sites.tolist(), counts.tolist(), strict=True))[:length]
            for sites, counts, length in zip(
                table.push_sites, table.push_count, table.push_length.tolist(), strict=True
            )
        ]
        self.depth_limit = table.depth_limit
        # With more room than any entry asks for, it does not matter how much there is.
        self.most_room = int(table.action_height.max(initial=0)) if table.recursive else 0
        self.class_start, self.class_word, self.class_bits = accelerate.best(grouped)(
            table.token_class, table.token_classes
        )
        self.words = (table.token_classes + 31) // 32
        self.eligible = _packed(table.token_class != 0)
        self.entries: dict[tuple[int, int], Action | None] = {}
        # Mask by place: (state, room), where something counts the count, then one level of dictionaries for
        # each site that has to be seen.
        self.places: dict[int, Any] = {}
        self.known_places = 0
        self.masks: dict[bytes, Mask] = {}

    def _action(self, number: int) -> Action:
        """One of the rules; listing all of them would take up to 40 ms, and few are followed."""
        return Action(*self.rules[number].tolist())

    def can_end(self, state: int, stack: Stack) -> bool:
        """Whether the text may end: here, or after whatever is open has ended too."""
        while not self.accepting[state]:
            ending = self.ending[state]
            if ending < 0 or stack is None:
                return False
            state = int(self.returns[ending, stack[0]])
            if state < 0:
                return False
            stack = stack[1]
        return True

    def step(self, place: Place, token: int) -> Place | None:
        """Where one token leads, None if it is refused."""
        return self.apply(place.state, place.counted, place.stack, int(self.token_class[token]))[0]

    def mask(self, state: int, count: int, stack: Stack) -> Mask:
        """The tokens that may come next, end tokens apart."""
        depth = 0 if stack is None else stack[2]
        key = state * (self.most_room + 1) + min(self.depth_limit - depth, self.most_room)
        known = self.places.get(key)
        if self.counts and known is not None:
            known = known.get(bisect_right(self._cuts(state), count))
        below = stack
        while type(known) is dict:
            if below is None:
                known = known.get(_BOTTOM)
            else:
                known = known.get(self._key(below))
                below = below[1]
        return self._learn(key, state, count, stack) if known is None else known

    def apply(self, state: int, count: int, stack: Stack, unit: int) -> tuple[Place | None, int]:
        """Where a class leads, and how many sites of the stack had to be seen (its bottom counts)."""
        seen = 0
        while True:
            entry = self._entry(state, unit)
            while entry is not None and not entry.least <= count <= entry.greatest:
                entry = self._action(entry.otherwise) if entry.otherwise >= 0 else None
            if entry is None:
                return None, seen
            target, effect, height, _, _, step, _ = entry
            if effect >= 0:
                depth = 0 if stack is None else stack[2]
                if depth + height > self.depth_limit:
                    return None, seen
                count += step
                for site, above in self.strings[effect]:
                    depth += 1
                    stack = (site, stack, depth, count)
                    count = above
                return Place(target, count, stack, False), seen
            seen += 1
            if stack is None:
                return None, seen
            state = int(self.returns[~effect, stack[0]])
            if state < 0:
                return None, seen
            count = stack[3]
            stack = stack[1]
            unit = target

    def bounds(self, state: int) -> _Bounded:
        """Conditional classes that ask for the count alone, with its bounds, and the other ones."""
        found = self.bounded.get(state)
        if found is None:
            plain, bounds, others = [], [], []
            for unit in self._conditional(state):
                action = self.entries[state, unit]
                if action and action.effect >= 0 and action.height == 0 and action.otherwise < 0:
                    plain.append(unit)
                    bounds.append((action.least, action.greatest))
                else:
                    others.append(unit)
            low, high = np.array(bounds, np.int64).reshape(-1, 2).T
            found = self.bounded[state] = np.array(plain, np.int64), low, high, others
        return found

    def _key(self, top: tuple[int, Stack, int, int]) -> int:
        """What tells the top of a stack from others: the site, and how far the frame below it has counted."""
        if not self.counts:
            return top[0]
        cuts = self.site_cuts.get(top[0])
        if cuts is None:
            states = self.returns[:, top[0]]
            cuts = self.site_cuts[top[0]] = accelerate.best(cuts_of)(self, states[states >= 0])
        return top[0] << 32 | bisect_right(cuts, top[3])

    def _cuts(self, state: int) -> list[int]:
        """The counts at which masks of a state may change."""
        cuts = self.cuts.get(state)
        if cuts is None:
            cuts = self.cuts[state] = accelerate.best(cuts_of)(self, np.array([state], np.int32))
        return cuts

    def _entry(self, state: int, unit: int) -> Action | None:
        """What (state, class) says, None if it does not survive."""
        key = (state, unit)
        entry = self.entries.get(key)
        if entry is None and key not in self.entries:
            row, word, bit = self.row_of_state[state], unit >> 5, 1 << (unit & 31)
            bits = int(self.survives[row, word])
            if bits & bit:
                before = int(self.rank[row, word]) + (bits & (bit - 1)).bit_count()
                entry = self._action(self.action[int(self.first_entry[state]) + before])
            if len(self.entries) >= CACHED_PLACES:
                self.entries.clear()
            self.entries[key] = entry
        return entry

    def _learn(self, key: int, state: int, count: int, stack: Stack) -> Mask:
        """Find the mask of a place, and remember it for all stacks that look alike as far as was seen."""
        bits = self.certain[self.row_of_state[state], : self.words].copy()
        seen = accelerate.best(survivors)(self, state, count, stack, bits)
        if len(self.masks) >= self._room() or self.known_places >= CACHED_PLACES:
            self.places.clear()
            self.masks.clear()
            self.known_places = 0
        mask = self.masks.get(bits.tobytes())
        if mask is None:
            mask = self.masks[bits.tobytes()] = accelerate.best(tokens_of)(self, bits)
            mask.setflags(write=False)
        path, node = [key], self.places
        if self.counts:
            path.append(bisect_right(self._cuts(state), count))
        for _ in range(seen):
            if stack is None:
                path.append(_BOTTOM)
                break
            path.append(self._key(stack))
            stack = stack[1]
        for step in path[:-1]:
            node = node.setdefault(step, {})
        node[path[-1]] = mask
        self.known_places += 1
        return mask

    def _room(self) -> int:
        """How many masks this table may keep."""
        return min(CACHED_MASKS, max(FEWEST_MASKS, SHARED_MASKS // (len(_readers) or 1)))

    def _conditional(self, state: int) -> list[int]:
        """The classes that depend on the stack; their entries are read all at once."""
        first, last = self.conditional_start[state : state + 2].tolist()
        units = self.conditional[first:last]
        row, words = self.row_of_state[state], units >> 5
        below = (np.uint32(1) << (units & 31).astype(np.uint32)) - np.uint32(1)
        before = self.rank[row, words] + np.bitwise_count(self.survives[row, words] & below)
        numbers: list[int] = units.tolist()
        for unit, action in zip(numbers, self.action[self.first_entry[state] + before].tolist(), strict=True):
            self.entries[state, unit] = self._action(action)
        return numbers


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
        otherwise = reader.rules[waiting, -1]
        waiting = otherwise[otherwise >= 0]
        said[waiting] = True
    bounds = reader.rules[said, 3:5] + (0, 1)
    cuts: list[int] = np.unique(bounds[(bounds > 0) & (bounds <= ENDLESS)]).tolist()
    return cuts


def survivors(reader: Reader, state: int, count: int, stack: Stack, bits: Mask) -> int:
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
