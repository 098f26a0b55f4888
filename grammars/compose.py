"""What each token does in every state of a machine, found in one walk of the vocabulary's trie.

A token matters only through the map it induces: from the state in which it begins to what has become of the
machine after its last byte, which is either

- *stays*: a state, and the call sites pushed above the frame in which the token began, or
- *left*: that frame ended with some ending, and the rest of the token is a map of its own, to be applied to
  the state of the caller. Only the states to which this ending can return matter to that map, so it speaks
  of no others: otherwise the rest of a token would tell tokens apart that do the same.

Where bytes test what their frame has counted, all tests along a token come down to one *guard*: bounds of the
count with which the token begins, and what the token adds to it. Frames that the token itself enters count
from 0, so their tests are decided here. A map then has elements for a state, one after the other, whose
guards share no count.

Maps are built byte by byte. Equal maps are one map (compared exactly), and each (map, byte class) is
composed once, so 128k tokens cost a few thousand compositions and fall into a few hundred maps. The walk is
level by level: all compositions of one depth of the trie are a handful of numpy calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from sortition.grammars.errors import TooLarge
from sortition.grammars.machine import ENDLESS
from sortition.grammars.push_strings import Strings

if TYPE_CHECKING:
    from sortition.grammars.machine import Machine
    from sortition.grammars.trie import Trie

IDENTITY: Final = 0
"""The map of the empty word."""

SELF: Final = -1
"""Remainder of a word that begins by ending a frame. That frame was over before the word, so the caller
reads all of it, and the map refers to itself."""

NO_PUSH: Final = 0
"""The empty string of call sites."""

DEAD: Final = -1
"""The map that is defined nowhere."""

UNKNOWN: Final = -2
"""A composition not made yet."""

NO_GUARD: Final = 0
"""The guard that always holds and adds nothing."""

NOWHERE: Final = -2
"""Target of an element whose state does not survive."""

SPECIAL: Final = -3
"""Moves that are not just moves: they call, end a frame, or would be made by the caller."""

ELEMENT_BUDGET: Final = 1 << 25
"""Elements of all maps together: 400 MiB."""

_CHUNK: Final = 1 << 17
"""Elements composed at once: their temporaries fit the caches (a fifth faster than 1 << 20)."""

Ints = NDArray[np.int32]
Wide = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """The maps of all tokens of a vocabulary.

    Attributes:
        map_of_word: int32 [words + 1], `DEAD` for a word that is accepted nowhere, and at the end.
        word_of_token: int32 [vocabulary], -1 for a token without bytes.
        start: int64 [maps + 1], where each map's outcomes begin.
        outcomes: int32 [2, outcomes]: target, effect. Effect >= 0 is the number of the pushed string, and
            target the state; effect < 0 is ``~(guard * endings + ending)`` of the frame that was left, and
            target the map of the remainder, or `SELF`.
        grouping: int32 [maps], which of the groupings of states is each map's.
        group_start: int64 [groupings + 1], where each grouping begins.
        groups: int32 [2, states]: a state, ascending within a grouping, and which of the map's outcomes it
            has. A state that counts comes once for each of its outcomes.
        identities: maps below this number change nothing; the first is defined everywhere, the others where
            some ending returns to.
        push_parent, push_site, push_count: int32 [strings]; a string of call sites is its parent with one
            more site on top, above which the frame has counted so far. Empty strings have parent -1 and, for
            their count, a guard; string 0 is empty and has guard 0.
        guards: int32 [3, guards]: least and greatest count, and what is added to it. Guard 0 always holds and
            adds nothing.
    """

    map_of_word: Ints
    word_of_token: Ints
    start: Wide
    outcomes: Ints
    grouping: Ints
    group_start: Wide
    groups: Ints
    identities: int
    push_parent: Ints
    push_site: Ints
    push_count: Ints
    guards: Ints

    @property
    def map_of_token(self) -> Ints:
        """int32 [vocabulary], `DEAD` for a token that is accepted nowhere."""
        return self.map_of_word.take(self.word_of_token, mode="wrap")

    @property
    def ends(self) -> Flags:
        """bool [strings]: which strings are empty."""
        empty: Flags = self.push_parent < 0
        return empty

    def elements(self, number: int) -> Ints:
        """One map, written out: int32 [3, elements], source state (ascending), target and effect."""
        first, last = self.group_start[self.grouping[number] :][:2]
        source, group = self.groups[:, first:last]
        return np.vstack([source, self.outcomes[:, self.start[number] + group]])


def compose(machine: Machine, trie: Trie) -> Composition:
    """The map of every token.

    Raises:
        TooLarge: the maps have more than `ELEMENT_BUDGET` elements.
    """
    composer = Composer(machine)
    return composer.composition(composer.walk(trie), trie.node_of_token)


def check_elements(count: int) -> None:
    """Raise `TooLarge` for more elements than the budget allows."""
    if count > ELEMENT_BUDGET:
        raise TooLarge(f"the tokens need a table of more than {ELEMENT_BUDGET:,} entries")


class Composer:
    """Numbers maps and composes them; map 0 is the identity."""

    def __init__(self, machine: Machine) -> None:
        self.byte_class = machine.byte_class.astype(np.int64)
        self._states, self._columns = machine.move.shape
        self._move = machine.move.reshape(-1)
        self._call = machine.call.reshape(-1)
        self._ending = machine.ending
        self._returns = np.where(machine.returns >= 0, machine.returns, np.int32(NOWHERE))
        self._endings = len(machine.returns)
        self._test, self._step, self._cuts = machine.test, machine.step, machine.cuts
        self._leaf = machine.leaves
        to_leaf = (machine.move >= 0) & self._leaf[machine.move]
        lapses = (machine.move < 0) & (machine.ending[:, None] >= 0)
        unmoved = np.where(machine.move >= 0, machine.move, NOWHERE)
        to_test = (machine.move >= 0) & (machine.test[machine.move] >= 0)
        plain = np.where((machine.call >= 0) | to_leaf | to_test | lapses, SPECIAL, unmoved)
        self._plain = plain.astype(np.int32).reshape(-1)
        self._return_start, self._return_state = self._returned()

        self._strings = Strings(machine.returns.shape[1])
        self._number: dict[bytes, int] = {}
        self._count = 0
        self._start = np.zeros(1024, np.int64)
        self._elements = np.empty((3, 4096), np.int32)
        self._memo = np.full(1023 * self._columns, UNKNOWN, np.int32)

        self._identity_of_ending = np.full(len(machine.returns), DEAD, np.int32)
        self._add_identities()
        self._identities = len(self)

    def __len__(self) -> int:
        """The number of maps so far."""
        return self._count

    def _returned(self) -> tuple[Wide, Wide]:
        """All states that matter to the caller's part of a token, one ending after the other.

        These are the states to which the ending can return; and, as their frames may be over too, those to
        which the endings of those can, and so on.
        """
        endings = len(self._returns)
        ending, site = np.nonzero(self._returns >= 0)
        direct = np.unique(ending * self._states + self._returns[ending, site])
        first = np.searchsorted(direct, np.arange(endings + 1) * self._states)
        pairs = direct
        while True:
            ending, state = np.divmod(pairs, self._states)
            over = self._ending[state] >= 0
            again = self._ending[state[over]]
            owner, at = spread(first[again], first[again + 1] - first[again])
            more = np.union1d(pairs, ending[over][owner] * self._states + direct[at] % self._states)
            if len(more) == len(pairs):
                break
            pairs = more
        return np.searchsorted(pairs, np.arange(endings + 1) * self._states), pairs % self._states

    def _add_identities(self) -> None:
        """The identity, and for each ending the identity of the states that matter to it."""
        returned = np.zeros(self._states, np.bool_)
        returned[self._return_state] = True
        source = np.flatnonzero((~self._leaf & (self._test < 0)) | returned)
        leaf = self._leaf[source]
        # In a leaf the frame is over: whoever returned there leaves it at once.
        target = np.where(leaf, SELF, source).astype(np.int32)
        effect = np.where(leaf, ~self._ending[source], NO_PUSH).astype(np.int32)
        self._reserve(1, len(source))
        self._elements[0, : len(source)] = source
        self._numbered(np.arange(len(source)), target, effect, np.array([len(source)]))
        sizes = np.diff(self._return_start)
        ever = np.flatnonzero(sizes)
        if ever.size:
            at = np.searchsorted(source, self._return_state)
            self._reserve(len(ever), len(at))
            self._identity_of_ending[ever] = self._numbered(at, target[at], effect[at], sizes[ever])

    def composition(self, map_of_word: Ints, word_of_token: Ints) -> Composition:
        """All maps so far, as arrays."""
        start = self._start[: len(self) + 1].copy()
        check_elements(int(start[-1]))
        sources, outcomes = self._elements[0, : start[-1]], self._elements[1:, : start[-1]]
        within = np.arange(start[-1]) - np.repeat(start[:-1], np.diff(start))
        return Composition(
            map_of_word,
            word_of_token,
            start,
            outcomes.copy(),
            np.arange(len(self), dtype=np.int32),
            start,
            np.stack([sources, within.astype(np.int32)]),
            self._identities,
            self._strings.parent,
            self._strings.site,
            self._strings.count,
            self._strings.guards,
        )

    def word(self, text: bytes) -> int:
        """The number of the map of these bytes."""
        number = IDENTITY
        for byte in text:
            if number != DEAD:
                number = int(self.step(np.array([number]), self.byte_class[[byte]])[0])
        return number

    def walk(self, trie: Trie) -> Ints:
        """The maps of all nodes of a trie, and `DEAD` at the end."""
        map_of_node = np.full(len(trie.parent) + 1, DEAD, np.int32)
        # The map of the root is found by parent -1.
        map_of_node[-1] = IDENTITY
        unit = self.byte_class[trie.byte]
        for level in trie.levels():
            before = map_of_node[trie.parent[level]]
            live = np.flatnonzero(before >= 0)
            if not live.size:
                break
            map_of_node[level.start + live] = self.step(before[live], unit[level][live])
        map_of_node[-1] = DEAD
        return map_of_node

    def step(self, maps: NDArray[np.integer], units: Wide) -> Ints:
        """The maps of words that go on by one byte of these classes, `DEAD` where no state survives."""
        keys = maps.astype(np.int64) * self._columns + units
        self._compose_missing(np.unique(keys[self._memo[keys] == UNKNOWN]))
        stepped: Ints = self._memo[keys]
        return stepped

    def _compose_missing(self, keys: Wide) -> None:
        """Enter compositions in the memo, as many at once as is good for the caches."""
        sizes = np.cumsum(np.diff(self._start)[keys // self._columns])
        bounds = np.flatnonzero(np.diff(sizes // _CHUNK)) + 1
        for first, last in pairwise([0, *bounds.tolist(), len(keys)]):
            if first < last:
                part = keys[first:last]
                # Composing may replace the memo by a larger one.
                found = self._compose(*np.divmod(part, self._columns))
                self._memo[part] = found

    def _compose(self, maps: Wide, units: Wide) -> Ints:
        """Compose each map with its byte class, all at once."""
        begin = self._start[maps]
        sizes = self._start[maps + 1] - begin
        at, to, effect, special = self._moved(begin, sizes, units)
        if special.size:
            ends = np.cumsum(sizes)
            pair = np.searchsorted(ends, special, side="right")
            target = self._elements[1].take(at.take(special)).astype(np.int64)
            began = maps[pair] < self._identities
            owner, target, found = self._read(began, target, effect[special].astype(np.int64), units[pair])
            to[special], effect[special] = target[: len(special)], found[: len(special)]
            if len(owner) > len(special):
                # Elements that a test has split: the other parts come after the first.
                more = special[owner[len(special) :]]
                order = np.argsort(np.append(np.arange(len(at)), more), kind="stable")
                at = np.append(at, at[more])[order]
                to = np.append(to, target[len(special) :])[order]
                effect = np.append(effect, found[len(special) :])[order]
                sizes = sizes + np.bincount(pair[owner[len(special) :]], minlength=len(sizes))
                ends = np.cumsum(sizes)
                special = np.flatnonzero(effect < 0)
                pair = np.searchsorted(ends, special, side="right")
            self._drop_unreturnable(special, pair, at, ends - sizes, sizes, to, effect)
        self._reserve(len(maps), len(at))
        return self._numbered(at, to, effect, sizes)

    def _moved(self, begin: Wide, sizes: Wide, units: Wide) -> tuple[Wide, Ints, Ints, Wide]:
        """The elements of slices after plain moves, each slice by one byte class.

        Returns where each element lies, its target or `NOWHERE` and its effect; and, of those that do more
        than move, the indices.
        """
        ends = np.cumsum(sizes)
        at = np.repeat(begin - ends + sizes, sizes)
        at += np.arange(len(at))
        effect = self._elements[2].take(at)
        cell = np.repeat(units, sizes)
        cell += self._elements[1].take(at) * np.int64(self._columns)
        # Clipped, because the targets of those that left their frame are maps, not states: they look up
        # nonsense here, and are special anyway.
        to = self._plain.take(cell, mode="clip")
        return at, to, effect, np.flatnonzero((to == SPECIAL) | (effect < 0))

    def _numbered(self, at: Wide, to: Ints, effect: Ints, sizes: Wide) -> Ints:
        """Number maps, given one after the other, by what is left of them; `DEAD` for nothing."""
        alive = to != NOWHERE
        kept = np.flatnonzero(alive)
        counts = np.add.reduceat(alive, np.cumsum(sizes) - sizes, dtype=np.int64)
        elements = np.empty((len(kept), 3), np.int32)
        elements[:, 0] = self._elements[0].take(at.take(kept))
        elements[:, 1] = to.take(kept)
        elements[:, 2] = effect.take(kept)
        data = elements.tobytes()
        numbers, new = [], []
        begin = 0
        for index, end in enumerate((np.cumsum(counts) * elements.itemsize * 3).tolist()):
            number = DEAD
            if end > begin:
                number = self._number.setdefault(data[begin:end], self._count)
                if number == self._count:
                    new.append(index)
                    self._count += 1
            numbers.append(number)
            begin = end
        if new:
            is_new = np.zeros(len(counts), np.bool_)
            is_new[new] = True
            stored = np.repeat(is_new, counts)
            first = self._count - len(new)
            ends = self._start[first] + np.cumsum(counts[new])
            self._start[first + 1 : self._count + 1] = ends
            self._elements[:, self._start[first] : ends[-1]] = [column[stored] for column in elements.T]
        return np.array(numbers, np.int32)

    def _reserve(self, maps: int, elements: int) -> None:
        """Make room for so many more maps and elements."""
        if self._count + maps >= len(self._start):
            # By so much that copying does not add up: many maps come a few at a time.
            self._start = np.append(self._start, np.zeros(len(self._start) + maps, np.int64))
            spare = (len(self._start) - 1) * self._columns - len(self._memo)
            self._memo = np.append(self._memo, np.full(spare, UNKNOWN, np.int32))
        used = self._start[self._count]
        check_elements(int(used))
        if used + elements > self._elements.shape[1]:
            grown = np.empty((3, 2 * (used + elements)), np.int32)
            grown[:, :used] = self._elements[:, :used]
            self._elements = grown

    def _read(self, began: Flags, target: Wide, effect: Wide, unit: Wide) -> tuple[Wide, Wide, Wide]:
        """Elements after one more byte: which each was, its target and its effect.

        The target is `NOWHERE` where the byte cannot be read. What tests make of one element comes after all
        others, in ascending order of the count.
        """
        owner = np.arange(len(target))
        remains = (effect < 0) & (target != SELF)
        waiting = np.flatnonzero(effect >= 0)
        while waiting.size:
            cell = target[waiting] * self._columns + unit[waiting]
            moved = self._move[cell] >= 0
            going, cell, stuck = waiting[moved], cell[moved], waiting[~moved]
            target[going] = self._move[cell]
            tested = self._test[target[going]] >= 0
            if tested.any():
                which, state, outcome, string = self._outcomes(target[going[tested]], effect[going[tested]])
                at = going[tested]
                target[at] = NOWHERE
                # The first outcome of each takes its place.
                first = np.append(True, which[1:] != which[:-1])[: len(which)]
                places = at[which]
                places[~first] = len(owner) + np.arange(len(which) - first.sum())
                more = at[which[~first]]
                owner, unit = np.append(owner, owner[more]), np.append(unit, unit[more])
                target, effect = np.append(target, target[more]), np.append(effect, effect[more])
                began, remains = np.append(began, began[more]), np.append(remains, remains[more])
                going = np.append(going[~tested], places)
                cell = np.append(cell[~tested], state * self._columns + outcome)
                target[places], effect[places] = self._move[cell[len(cell) - len(places) :]], string
            site = self._call[cell]
            calls = site >= 0
            effect[going[calls]] = self._strings.push(effect[going[calls]], site[calls], 0)
            ended = going[self._leaf[target[going]]]
            while ended.size:
                ended = self._pop(ended, target, effect)
                ended = ended[self._leaf[target[ended]]]
            # A frame lapses: its caller reads the byte.
            lapses = self._ending[target[stuck]] >= 0
            target[stuck[~lapses]] = NOWHERE
            stuck = stuck[lapses]
            outermost = stuck[self._strings.parent[effect[stuck]] < 0]
            waiting = self._pop(stuck, target, effect)
            remains[outermost] = True
            target[outermost[began[outermost]]] = SELF
        left = np.flatnonzero(remains & (target >= 0))
        target[left] = self.step(target[left], unit[left])
        target[left[target[left] == DEAD]] = NOWHERE
        return owner, target, effect

    def _outcomes(self, state: Wide, string: Wide) -> tuple[Wide, Wide, Wide, Wide]:
        """What comes of states with tests, given the strings so far: all that is possible.

        Returns which of them it is of, ascending; that state, the outcome, and the string afterwards.
        """
        test = self._test[state]
        cuts = self._cuts[test].astype(np.int64)
        begin = np.pad(cuts, ((0, 0), (1, 0)))
        end = np.pad(cuts, ((0, 0), (0, 1)), constant_values=ENDLESS)
        empty = self._strings.parent[string] < 0
        guard = np.where(empty, self._strings.count[string], NO_GUARD)
        low, high, added = self._strings.guards[:, guard].astype(np.int64)
        # What the token has entered itself has counted to one number so far.
        low, high = (np.where(empty, bound, 0) for bound in (low, high))
        added = np.where(empty, added, self._strings.count[string]) + self._step[test]
        low = np.maximum(low[:, None], begin - added[:, None])
        high = np.minimum(high[:, None], np.where(end == ENDLESS, ENDLESS, end - 1 - added[:, None]))
        columns = np.arange(begin.shape[1])
        leads = self._move[state[:, None] * self._columns + np.minimum(columns, self._columns - 1)] >= 0
        possible = leads & (columns < self._columns) & (begin < end) & (low <= high)
        which, outcome = np.nonzero(possible)
        after = np.empty(len(which), np.int64)
        open_count = empty[which]
        after[open_count] = self._strings.guarded(
            np.stack([low[which, outcome], high[which, outcome], added[which]])[:, open_count]
        )
        inner = which[~open_count]
        after[~open_count] = self._strings.push(
            self._strings.parent[string[inner]], self._strings.site[string[inner]], added[inner]
        )
        return which, state[which], outcome, after

    def _pop(self, at: Wide, target: Wide, effect: Wide) -> Wide:
        """End the innermost frame of the elements `at`; those that go on in a caller's state are returned."""
        inner = self._strings.parent[effect[at]] >= 0
        outermost, at = at[~inner], at[inner]
        ending = self._ending[target[outermost]]
        rest = self._identity_of_ending[ending]
        target[outermost] = np.where(rest == DEAD, NOWHERE, rest)
        effect[outermost] = ~(self._strings.without_added(effect[outermost]) * self._endings + ending)
        if at.size:
            top = effect[at]
            target[at] = self._returns[self._ending[target[at]], self._strings.site[top]]
            effect[at] = self._strings.parent[top]
            at = at[target[at] >= 0]
        return at

    def _drop_unreturnable(
        self, special: Wide, pair: Wide, at: Wide, begin: Wide, sizes: Wide, to: Ints, effect: Ints
    ) -> None:
        """Kill elements that leave a frame for callers none of which can read the remainder.

        Remainders that are other maps are defined only where the ending returns to, and not nowhere.
        """
        itself = (effect[special] < 0) & (to[special] == SELF)
        owner, itself = pair[itself], special[itself]
        if itself.size:
            # Maps that refer to themselves: their domains grow until nothing is added.
            to[itself] = NOWHERE
            owners, row = np.unique(owner, return_inverse=True)
            within, place = spread(begin[owners], sizes[owners])
            alive = to[place] != NOWHERE
            domains = np.zeros((len(owners), self._states), np.bool_)
            domains[within[alive], self._elements[0][at[place[alive]]]] = True
            while itself.size:
                returnable = self._meets(domains, row, ~effect[itself] % self._endings)
                if not returnable.any():
                    break
                to[itself[returnable]] = SELF
                domains[row[returnable], self._elements[0][at[itself[returnable]]]] = True
                itself, row = itself[~returnable], row[~returnable]

    def _meets(self, domains: Flags, rows: Wide, endings: Wide) -> Flags:
        """Whether some state that the ending returns to lies in that row of `domains`."""
        width = len(self._returns)
        pairs, which = np.unique(rows * width + endings, return_inverse=True)
        row, ending = np.divmod(pairs, width)
        begin = self._return_start[ending]
        owner, at = spread(begin, self._return_start[ending + 1] - begin)
        hit = domains[row[owner], self._return_state[at]]
        meets = np.bincount(owner[hit], minlength=len(pairs)) > 0
        found: Flags = meets[which]
        return found


def spread(begin: Wide, sizes: Wide) -> tuple[Wide, Wide]:
    """For slices of a flat array: which slice each of their elements is of, and where it lies."""
    ends = np.cumsum(sizes)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    at = np.arange(len(owner)) + (begin - ends + sizes)[owner]
    return owner, at
