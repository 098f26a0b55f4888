"""Matcher: one sequence on the host, by table."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from operator import index
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from sortition.grammars.table import Table

CACHED_MASKS: Final = 2048
"""Masks kept per table; 16 KiB each for 128k tokens, so 32 MiB."""

CACHED_PLACES: Final = 1 << 17
"""Places (state, room, top of the stack) whose mask is known, per table; some 20 MiB."""

FORCED_LIMIT: Final = 256
"""Longest run that `Matcher.forced` follows: a grammar may force the same token for ever."""

_BOTTOM: Final = -1
"""Stands below the last call site."""

Mask: TypeAlias = NDArray[np.uint32]

Stack: TypeAlias = "tuple[int, Stack, int, int] | None"
"""The top call site, the stack below it, the number of sites, and the count of the frame below the top:
shared by all who grew from it."""


class _Place(NamedTuple):
    """Where a text is: cheap to keep, so that going back is taking up an old one."""

    state: int
    counted: int
    stack: Stack
    ended: bool


class Matcher:
    """One text as it grows token by token: which tokens may come next, and whether it may end.

    End tokens are eligible exactly where the text may end, whatever else they stand for; after one, only end
    tokens are.

    Args:
        table: what `Grammar.compile` made.
        end_tokens: ids that end the text, instead of the vocabulary's.

    Raises:
        ValueError: an end token is out of range.
    """

    def __init__(self, table: Table, end_tokens: Iterable[int] | None = None) -> None:
        self.table = table
        ends = table.end_tokens.tolist() if end_tokens is None else [index(end) for end in end_tokens]
        for end in ends:
            if not 0 <= end < table.vocabulary_size:
                raise ValueError(f"end token {end} is not one of the {table.vocabulary_size} tokens")
        self.end_tokens: tuple[int, ...] = tuple(sorted(set(ends)))
        self._ends = frozenset(ends)
        self._end_mask = _packed(np.array(self.end_tokens, np.int64), table.vocabulary_size)
        # End tokens that also stand for text are set in the masks of texts.
        self._ends_are_text = bool((table.token_class[list(self.end_tokens)] != 0).any())
        self._reader = _reader(table)
        self.reset()

    def reset(self) -> None:
        """Go back to the empty text."""
        self._place = _Place(self.table.start, 0, None, False)
        self._history: list[_Place] = []

    @property
    def can_end(self) -> bool:
        """Whether the text may end here."""
        place = self._place
        return place.ended or self._reader.can_end(place.state, place.stack)

    @property
    def finished(self) -> bool:
        """Whether an end token has been read."""
        return self._place.ended

    def allowed(self) -> Mask:
        """Eligible: uint32 [ceil(vocabulary / 32)], read-only; token t is bit t & 31 of word t >> 5."""
        state, count, stack, ended = self._place
        if ended:
            return self._end_mask
        mask = self._reader.mask(state, count, stack)
        if self._ends_are_text:
            mask = mask & ~self._end_mask
        if self._ends and self._reader.can_end(state, stack):
            mask = mask | self._end_mask
        mask.setflags(write=False)
        return mask

    def advance(self, token: int) -> bool:
        """Read one token; False, and nothing changes, if it is not eligible.

        Raises:
            TypeError: the token is not an integer.
            ValueError: the token is out of range.
        """
        after = self._after(self._place, index(token))
        if after is None:
            return False
        self._history.append(self._place)
        self._place = after
        return True

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens.

        Raises:
            ValueError: fewer tokens have been read.
        """
        count = index(count)
        if not 0 <= count <= len(self._history):
            raise ValueError(f"cannot take back {count} tokens, {len(self._history)} have been read")
        if count:
            self._place = self._history[-count]
            del self._history[-count:]

    def forced(self, limit: int = FORCED_LIMIT) -> list[int]:
        """The tokens that must come next: each is the only eligible one. The matcher does not move.

        The run stops at a choice, after an end token, and after `limit` tokens.
        """
        start, run = self._place, list[int]()
        try:
            while len(run) < limit and not self._place.ended:
                mask = self.allowed()
                words = np.flatnonzero(mask)
                if len(words) != 1 or int(mask[words[0]]).bit_count() != 1:
                    break
                run.append(int(words[0]) * 32 + int(mask[words[0]]).bit_length() - 1)
                after = self._after(self._place, run[-1])
                if after is None:
                    raise RuntimeError("a token that the mask allows was refused")
                self._place = after
        finally:
            self._place = start
        return run

    def __repr__(self) -> str:
        depth = 0 if self._place.stack is None else self._place.stack[2]
        where = "finished" if self.finished else "may end" if self.can_end else "open"
        return f"Matcher({len(self._history)} tokens, state {self._place.state}, {depth} nested, {where})"

    def _after(self, place: _Place, token: int) -> _Place | None:
        if not 0 <= token < self.table.vocabulary_size:
            raise ValueError(f"token {token} is not one of the {self.table.vocabulary_size} tokens")
        if token in self._ends:
            may_end = place.ended or self._reader.can_end(place.state, place.stack)
            return place._replace(ended=True) if may_end else None
        if place.ended:
            return None
        return self._reader.step(place, token)


_Action: TypeAlias = tuple[int, int, int, int, int, int, int]
"""Target, effect, height, least and greatest count, what is added to it, and the action otherwise."""


_Bounded: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], list[int]]
"""Classes, the least and greatest count at which each survives, and classes that ask for more."""


class _Reader:
    """Reads one table for all its matchers, and remembers what it has read."""

    def __init__(self, table: Table) -> None:
        self.size = table.vocabulary_size
        self.token_class = table.token_class
        self.token_classes = table.token_classes
        self.row_of_state = table.row_of_state
        self.survives, self.certain, self.rank = table.survives, table.certain, table.rank
        self.first_entry = table.first_entry
        self.action = table.action
        self.actions = list(
            zip(
                table.action_target.tolist(),
                table.action_effect.tolist(),
                table.action_height.tolist(),
                *table.guards[table.action_guard].T.tolist(),
                table.action_otherwise.tolist(),
                strict=True,
            )
        )
        self.counts = len(table.guards) > 1
        # The counts of a state, and of any state to which a site returns, at which masks may change.
        self.cuts: dict[int, list[int]] = {}
        self.site_cuts: dict[int, list[int]] = {}
        self.bounded: dict[int, _Bounded] = {}
        self.conditional_start, self.conditional = table.conditional_start, table.conditional
        self.ending: list[int] = table.ending.tolist()
        self.returns = table.returns
        self.accepting: list[bool] = table.accepting.tolist()
        self.strings: list[list[tuple[int, int]]] = [
            list(zip(sites.tolist(), counts.tolist(), strict=True))[:length]
            for sites, counts, length in zip(
                table.push_sites, table.push_count, table.push_length.tolist(), strict=True
            )
        ]
        self.depth_limit = table.depth_limit
        # With more room than any entry asks for, it does not matter how much there is.
        self.most_room = int(table.action_height.max(initial=0)) if table.recursive else 0
        # Tokens sorted by class: those of one class are one slice.
        self.by_class = np.argsort(table.token_class, kind="stable")
        self.class_start = np.searchsorted(
            table.token_class[self.by_class], np.arange(table.token_classes + 1)
        )
        self.words = (table.token_classes + 31) // 32
        self.eligible = np.zeros((self.size + 31) // 32 * 32, np.bool_)
        self.eligible[: self.size] = table.token_class != 0
        self.entries: dict[tuple[int, int], _Action | None] = {}
        # Mask by place: (state, room), where something counts the count, then one level of dictionaries for
        # each site that has to be seen.
        self.places: dict[int, Any] = {}
        self.known_places = 0
        self.masks: dict[bytes, Mask] = {}

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

    def step(self, place: _Place, token: int) -> _Place | None:
        """Where one token leads, None if it is refused."""
        return self._apply(place.state, place.counted, place.stack, int(self.token_class[token]))[0]

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

    def _key(self, top: tuple[int, Stack, int, int]) -> int:
        """What tells the top of a stack from others: the site, and how far the frame below it has counted."""
        if not self.counts:
            return top[0]
        cuts = self.site_cuts.get(top[0])
        if cuts is None:
            states = self.returns[:, top[0]]
            found = {cut for state in set(states[states >= 0].tolist()) for cut in self._cuts(state)}
            cuts = self.site_cuts[top[0]] = sorted(found)
        return top[0] << 32 | bisect_right(cuts, top[3])

    def _cuts(self, state: int) -> list[int]:
        """The counts at which some action of a state begins or ceases to be said, ascending."""
        cuts = self.cuts.get(state)
        if cuts is None:
            row = self.row_of_state[state]
            entries = int(np.bitwise_count(self.survives[row]).sum())
            first = int(self.first_entry[state])
            waiting = set(self.action[first : first + entries].tolist())
            found = set()
            while waiting:
                _, _, _, low, high, _, otherwise = self.actions[waiting.pop()]
                found |= {low, high + 1}
                if otherwise >= 0:
                    waiting.add(otherwise)
            cuts = self.cuts[state] = sorted(found)
        return cuts

    def _apply(self, state: int, count: int, stack: Stack, unit: int) -> tuple[_Place | None, int]:
        """Where a class leads, and how many sites of the stack had to be seen (its bottom counts)."""
        seen = 0
        while True:
            entry = self._entry(state, unit)
            while entry is not None and not entry[3] <= count <= entry[4]:
                entry = self.actions[entry[6]] if entry[6] >= 0 else None
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
                return _Place(target, count, stack, False), seen
            seen += 1
            if stack is None:
                return None, seen
            state = int(self.returns[~effect, stack[0]])
            if state < 0:
                return None, seen
            count = stack[3]
            stack = stack[1]
            unit = target

    def _entry(self, state: int, unit: int) -> _Action | None:
        """What (state, class) says, None if it does not survive."""
        key = (state, unit)
        entry = self.entries.get(key)
        if entry is None and key not in self.entries:
            row, word, bit = self.row_of_state[state], unit >> 5, 1 << (unit & 31)
            bits = int(self.survives[row, word])
            if bits & bit:
                before = int(self.rank[row, word]) + (bits & (bit - 1)).bit_count()
                entry = self.actions[self.action[int(self.first_entry[state]) + before]]
            if len(self.entries) >= CACHED_PLACES:
                self.entries.clear()
            self.entries[key] = entry
        return entry

    def _learn(self, key: int, state: int, count: int, stack: Stack) -> Mask:
        """Find the mask of a place, and remember it for all stacks that look alike as far as was seen."""
        bits = self.certain[self.row_of_state[state], : self.words].copy()
        seen = 0
        units = self._conditional(state)
        if self.counts:
            bounded, low, high, units = self._bounded(state, units)
            held = bounded[(low <= count) & (count <= high)]
            np.bitwise_or.at(bits, held >> 5, np.uint32(1) << (held & 31).astype(np.uint32))
        for unit in units:
            after, looked = self._apply(state, count, stack, unit)
            seen = max(seen, looked)
            if after is not None:
                bits[unit >> 5] |= np.uint32(1 << (unit & 31))
        if len(self.masks) >= CACHED_MASKS or self.known_places >= CACHED_PLACES:
            self.places.clear()
            self.masks.clear()
            self.known_places = 0
        mask = self.masks.get(bits.tobytes())
        if mask is None:
            mask = self.masks[bits.tobytes()] = self._expand(bits)
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

    def _bounded(self, state: int, units: list[int]) -> _Bounded:
        """Conditional classes that ask for the count alone, with its bounds, and the other ones."""
        found = self.bounded.get(state)
        if found is None:
            plain, bounds, others = [], [], []
            for unit in units:
                action = self.entries[state, unit]
                if action is not None and action[1] >= 0 and action[2] == 0 and action[6] < 0:
                    plain.append(unit)
                    bounds.append(action[3:5])
                else:
                    others.append(unit)
            low, high = np.array(bounds, np.int64).reshape(-1, 2).T
            found = self.bounded[state] = np.array(plain, np.int64), low, high, others
        return found

    def _conditional(self, state: int) -> list[int]:
        """The classes that depend on the stack; their entries are read all at once."""
        first, last = self.conditional_start[state : state + 2].tolist()
        units = self.conditional[first:last]
        row, words = self.row_of_state[state], units >> 5
        below = (np.uint32(1) << (units & 31).astype(np.uint32)) - np.uint32(1)
        before = self.rank[row, words] + np.bitwise_count(self.survives[row, words] & below)
        numbers: list[int] = units.tolist()
        for unit, action in zip(numbers, self.action[self.first_entry[state] + before].tolist(), strict=True):
            self.entries[state, unit] = self.actions[action]
        return numbers

    def _expand(self, bits: NDArray[np.uint32]) -> Mask:
        """The tokens of the classes whose bits are set."""
        wanted = np.unpackbits(bits.view(np.uint8), count=self.token_classes, bitorder="little").view(
            np.bool_
        )
        sizes = np.diff(self.class_start)
        # Most masks hold few tokens or nearly all that there are: begin at the nearer end.
        most = 2 * sizes[wanted].sum() > sizes[1:].sum()
        tokens = self.eligible.copy() if most else np.zeros_like(self.eligible)
        # Neighbouring classes are one slice.
        edges = np.flatnonzero(np.diff(wanted != most, prepend=False, append=False))
        for first, last in self.class_start[edges].reshape(-1, 2).tolist():
            tokens[self.by_class[first:last]] = not most
        mask = np.packbits(tokens, bitorder="little").view(np.uint32)
        mask.setflags(write=False)
        return mask


def _packed(tokens: NDArray[np.int64], size: int) -> Mask:
    flags = np.zeros((size + 31) // 32 * 32, np.bool_)
    flags[tokens] = True
    mask = np.packbits(flags, bitorder="little").view(np.uint32)
    mask.setflags(write=False)
    return mask


_readers: WeakKeyDictionary[Table, _Reader] = WeakKeyDictionary()


def _reader(table: Table) -> _Reader:
    """The one reader of a table; it holds the table's arrays, not the table, so both go together."""
    reader = _readers.get(table)
    if reader is None:
        reader = _readers[table] = _Reader(table)
    return reader
