"""Strings of a language that have some length, as an automaton that counts instead of one that is as long.

The automaton and the count go in lock-step: one state and one number say where a string is, and each
character may be read if the string can still be brought to an end in time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sortition.grammars.automaton import Automaton
from sortition.grammars.expr import Expr, Graph, Ranges, counted
from sortition.grammars.work import charge

UNROLLED: Final = 32
"""States of an automaton that counts by its states up to which it is left to do so: it needs no tests."""

LEVEL_STEPS: Final = 60
"""Steps that each length takes that is looked at."""

MOVES_PER_STEP: Final = 16
"""Moves that are looked at in one step, for one length."""

LEVELS: Final = 2_000
"""Lengths that are looked at one by one to find out which a state can be completed with."""


COUNTED: Final = 1 << 30
"""Characters and commas up to which frames count, in 32 bits; no text is that long."""


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """An automaton over code points, and the counts with which each of its states leads to an end.

    Attributes:
        automaton: the language without its lengths.
        low, high: how many characters there are, None for no upper bound.
        least, greatest: of each state, how many characters may have been read; None for no upper bound. Where
            the least exceeds the greatest there is no such string.
    """

    automaton: Automaton
    low: int
    high: int | None
    least: list[int]
    greatest: list[int | None]

    @staticmethod
    def of(automaton: Automaton, low: int, high: int | None) -> Lengths | None:
        """None where states should count, or where there are gaps in the counts that lead to an end."""
        if automaton.is_empty or len(automaton) * max(low, high or 0) <= UNROLLED or low > COUNTED:
            return None
        high = None if high is not None and high > COUNTED else high
        found = _completions(automaton)
        if found is None:
            return None
        shortest, longest, gap = found
        if low and high is not None and gap > high - low + 1:
            return None
        least = [0 if more is None else max(low - more, 0) for more in longest]
        greatest = [None if high is None else high - fewer for fewer in shortest]
        return Lengths(automaton, low, high, least, greatest)

    @property
    def is_empty(self) -> bool:
        """Whether there is no such string."""
        return not self._holds(0)

    def expr(self, edge: Callable[[Ranges], Expr], end: Expr) -> Expr:
        """The strings, each followed by an end; `edge` says how one character of a set is written."""
        last = len(self.automaton)
        edges: list[tuple[int, Expr, int]] = []
        for source, ranges, target in self.automaton.edges():
            if self._holds(target):
                character = counted(edge(ranges), 1, self.least[target], self.greatest[target])
                edges.append((source, character, target))
        for state in np.flatnonzero(self.automaton.accepting).tolist():
            edges.append((state, counted(end, 0, self.low, None), last))
        return Graph(tuple(edges), 0, frozenset({last}))

    def _holds(self, state: int) -> bool:
        """Whether some count leads from a state to an end; of the start, whether 0 does."""
        least, greatest = self.least[state], self.greatest[state]
        return (state > 0 or least == 0) and (greatest is None or least <= greatest)


def _completions(automaton: Automaton) -> tuple[list[int], list[int | None], int] | None:
    """How long the words are that complete each state: the shortest, the longest, and the widest gap of all.

    The longest is None where there is none; all of it is None where lengths are too many to look at.
    """
    # Level n holds the states that some word of n characters completes; once one comes again, all repeats.
    levels: list[NDArray[np.bool_]] = []
    seen: dict[bytes, int] = {}
    level = automaton.accepting
    while level.tobytes() not in seen:
        if len(levels) == LEVELS:
            return None
        charge(LEVEL_STEPS + automaton.move.size // MOVES_PER_STEP)
        seen[level.tobytes()] = len(levels)
        levels.append(level)
        level = np.asarray(np.any(np.append(level, False)[automaton.move], axis=1), np.bool_)
    first = seen[level.tobytes()]
    # Twice around shows every gap.
    completes = np.array(levels + levels[first:])
    endless = np.asarray(np.any(completes[first:], axis=0), np.bool_)
    state, length = np.nonzero(completes.T)
    begins = np.flatnonzero(np.append(True, state[1:] > state[:-1]))
    ends = np.append(begins[1:], len(state)) - 1
    longest = [
        None if more else each for more, each in zip(endless.tolist(), length[ends].tolist(), strict=True)
    ]
    gaps = np.delete(np.diff(length), ends[:-1])
    return length[begins].tolist(), longest, int(gaps.max(initial=1))
