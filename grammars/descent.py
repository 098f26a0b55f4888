"""A trie in depth-first order, and what each of its words does inside a JSON string.

Nine tenths of a vocabulary are text that a JSON string can hold, and there they all do the same: the string
goes on. A walk of the trie that knows this can pass over whole subtrees. It has to know where in a string a
word gets to (after a whole character, after the first byte of two, ...), or that the word closes the string,
and with which bytes it goes on then. That depends on the vocabulary alone, so it is found out once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from sortition.grammars.automaton import BYTES, Automaton
from sortition.grammars.characters import ANY_CHARACTER, spelled
from sortition.grammars.expr import concat, star
from sortition.grammars.json_characters import QUOTE
from sortition.grammars.trie import Trie

OUTSIDE: Final = -1
"""The place of what no string goes on with."""

CLOSED: Final = -2
"""Beyond the quote that closes the string."""

Ints = NDArray[np.int32]
Places = NDArray[np.int8]


@dataclass(frozen=True, slots=True, eq=False)
class Descent:
    """The nodes of a trie, each followed by all that is below it, and its words in the same order.

    There are several kinds of strings, see `bodies`. A word's outcome says what it does in all of them, if it
    begins between two characters.

    Attributes:
        parent: int32 [nodes], -1 for the children of the root.
        byte: uint8 [nodes], the last byte of the prefix.
        after: int32 [nodes], the first node that is not below this one.
        first_word: int32 [nodes + 1], how many words come before each node.
        node_of_word: int32 [words].
        word_of_token: int32 [vocabulary], -1 for a token without bytes.
        place: int8 [kinds, nodes], the place in a string after the prefix; `OUTSIDE` or `CLOSED`.
        outcome: int32 [words], the number of the word's outcome.
        run: int32 [words], the first word after it that has another outcome.
        outcomes: how many outcomes there are.
        longest: bytes of the longest word.
    """

    parent: Ints
    byte: NDArray[np.uint8]
    after: Ints
    first_word: Ints
    node_of_word: Ints
    word_of_token: Ints
    place: Places
    outcome: Ints
    run: Ints
    outcomes: int
    longest: int

    @property
    def arrays(self) -> tuple[Ints, NDArray[np.uint8], Ints, Ints, Ints, Places, Ints, Ints]:
        """What a compiled walk reads."""
        return (
            self.parent, self.byte, self.after, self.first_word, self.node_of_word, self.place, self.outcome,
            self.run,
        )  # fmt: skip

    @classmethod
    def of(cls, trie: Trie) -> Descent:
        """The descent of a trie, kept as long as the trie: 128k tokens take some 0.1 s."""
        descent = _descents.get(trie)
        if descent is None:
            descent = _descents[trie] = _descent(trie)
        return descent


_descents: WeakKeyDictionary[Trie, Descent] = WeakKeyDictionary()


@lru_cache(maxsize=1)
def bodies() -> Places:
    """The kinds of strings that schemas leave free, as int8 [kinds, places, 256]: where bytes lead.

    Values may be spelled in any way, keys as `json.dumps` spells them. A string begins at place 0.
    """
    kinds = [_body(canonical) for canonical in (False, True)]
    most = max(map(len, kinds))
    padded = np.full((len(kinds), most, BYTES), OUTSIDE, np.int8)
    for rows, kind in zip(padded, kinds, strict=True):
        rows[: len(kind)] = kind
    return padded


def _body(canonical: bool) -> Places:
    text = star(spelled(ANY_CHARACTER, canonical=canonical))
    automaton = Automaton.of(concat(text, QUOTE), BYTES)
    move = automaton.move[:, [automaton.class_of(byte) for byte in range(BYTES)]].astype(np.int8)
    (end,) = np.flatnonzero(automaton.accepting)
    renumbered = np.arange(len(automaton) + 1, dtype=np.int8)
    renumbered[end + 1 :] -= 1
    renumbered[[end, -1]] = CLOSED, OUTSIDE
    return np.delete(renumbered[move], end, axis=0)


def _descent(trie: Trie) -> Descent:
    nodes = len(trie)
    parent = trie.parent.astype(np.int64)
    sizes = np.ones(nodes + 1, np.int64)
    for level in reversed(list(trie.levels())):
        # The root, -1, is the last.
        np.add.at(sizes, parent[level], sizes[level])
    position = np.full(nodes + 1, -1, np.int64)
    for level in trie.levels():
        before = np.cumsum(sizes[level]) - sizes[level]
        first = np.append(True, np.diff(parent[level]) != 0)[: len(before)]
        of_family = before[first][np.cumsum(first) - 1]
        position[level] = position[parent[level]] + 1 + before - of_family
    node_at = np.empty(nodes, np.int64)
    node_at[position[:nodes]] = np.arange(nodes)
    is_word = np.zeros(nodes, np.bool_)
    is_word[position[trie.node_of_token[trie.node_of_token >= 0]]] = True
    first_word = np.append(0, np.cumsum(is_word))
    place, outcome = _inside(trie)
    outcomes, number = np.unique(outcome[:, node_at[is_word]], axis=1, return_inverse=True)
    number = number.reshape(-1)
    ends = np.append(np.flatnonzero(np.diff(number)) + 1, len(number))
    arrays = (
        position[parent[node_at]].astype(np.int32),
        trie.byte[node_at],
        (position[:nodes] + sizes[:nodes])[node_at].astype(np.int32),
        first_word.astype(np.int32),
        np.flatnonzero(is_word).astype(np.int32),
        np.where(trie.node_of_token < 0, -1, first_word[position[trie.node_of_token]]).astype(np.int32),
        np.ascontiguousarray(place[:, node_at]),
        number.astype(np.int32),
        ends[np.searchsorted(ends, np.arange(len(number)), side="right")].astype(np.int32),
    )
    for array in arrays:
        array.setflags(write=False)
    return Descent(*arrays, outcomes.shape[1], len(trie.level_start) - 1)


def _inside(trie: Trie) -> tuple[Places, NDArray[np.int64]]:
    """Where each prefix gets to in each kind of string, and numbers of what it does: int64 [kinds, nodes]."""
    place = np.full((len(bodies()), len(trie)), OUTSIDE, np.int8)
    outcome = np.zeros(place.shape, np.int64)
    rests: dict[tuple[int, int], int] = {}
    for kind, move in enumerate(bodies()):
        # A place more for the root, by parent -1, where strings begin.
        places, rest = np.append(place[kind], np.int8(0)), np.full(len(trie), -1, np.int64)
        for level in trie.levels():
            above, byte = trie.parent[level], trie.byte[level]
            inside = places[above] >= 0
            places[level][inside] = move[places[above][inside], byte[inside]]
            beyond = np.flatnonzero(~inside & (places[above] == CLOSED))
            places[level][beyond] = CLOSED
            for node in (level.start + np.flatnonzero(places[level] == CLOSED)).tolist():
                # What follows the quote, byte by byte.
                before = int(rest[trie.parent[node]]) if places[trie.parent[node]] == CLOSED else -1
                rest[node] = rests.setdefault((before, int(trie.byte[node])), len(rests))
        place[kind] = places[:-1]
        outcome[kind] = np.where(place[kind] == CLOSED, len(move) + 1 + rest, place[kind] + 1)
    return place, outcome
