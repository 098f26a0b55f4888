"""Expression without calls -> minimal deterministic automaton over classes of code units.

The alphabet is bytes for a text that is ready to be tokenised and code points for the decoded value of a
string; the construction is the same. Languages are closed here: intersection, union, difference, complement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sortition.grammars import accelerate
from sortition.grammars.expr import NOTHING, Class, Expr, Graph, Ranges, merge
from sortition.grammars.nfa import Nfa
from sortition.grammars.partition import UnitClasses, distinct_columns, joined_by_successors, predecessors
from sortition.grammars.subsets import subsets
from sortition.grammars.work import charge

AUTOMATON_STEPS: Final = 1_000
"""Steps that each automaton takes, however small it is."""

ROUND_STEPS: Final = 60
"""Steps that each round of a product takes, whatever it finds."""

PAIR_STEPS: Final = 3
"""Steps that each pair of states takes in a product."""

WALK_STEPS: Final = 8
"""Steps that a state takes to be looked at once, with what leads to it and where it leads."""

EDGE_STEPS: Final = 4
"""Steps that each pair of joined states takes to be told."""

CELLS_PER_STEP: Final = 5
"""Moves that are looked at in one step."""

BYTES: Final = 0x100
CODE_POINTS: Final = 0x110000


@dataclass(frozen=True, eq=False)
class Automaton:
    """A minimal, trimmed deterministic automaton; state 0 is the start.

    Attributes:
        size: how many code units there are, `BYTES` or `CODE_POINTS`.
        boundaries: int32 [intervals], the first unit of each interval of units.
        unit_class: int32 [intervals], the class of the units of each interval.
        move: int32 [states, classes], the next state; -1 where no accepted word goes on.
        accepting: bool [states].
    """

    size: int
    boundaries: NDArray[np.int32]
    unit_class: NDArray[np.int32]
    move: NDArray[np.int32]
    accepting: NDArray[np.bool_]

    @staticmethod
    def of(expr: Expr, size: int = CODE_POINTS) -> Automaton:
        """The minimal automaton of an expression without calls.

        Raises:
            TooLarge: it takes too much work.
            Invalid: the expression calls a rule.
        """
        nfa = Nfa({}, expr)
        classes = UnitClasses(nfa.sets, size)
        found = accelerate.best(subsets)(nfa, classes)
        return Automaton._minimal(size, classes.boundaries, classes.unit_class, found.move, found.accepting)

    @staticmethod
    def _minimal(
        size: int,
        boundaries: NDArray[np.int32],
        unit_class: NDArray[np.int32],
        move: NDArray[np.int32],
        accepting: NDArray[np.bool_],
    ) -> Automaton:
        """Drop dead states, join equivalent states and classes, number the states breadth first."""
        charge(AUTOMATON_STEPS + WALK_STEPS * len(move) + move.size // CELLS_PER_STEP)
        alive = _reaching(move, accepting)
        move = np.where(alive[move] & (move >= 0), move, -1)
        labels = joined_by_successors(accepting.astype(np.int32), [move])
        representatives = np.unique(labels, return_index=True)[1]
        kept = move[representatives]
        joined: NDArray[np.int64] = np.where(kept >= 0, labels[kept], -1)
        columns, class_of = distinct_columns(joined)
        joined = joined[:, columns]
        order = _breadth_first(joined, int(labels[0]))
        renumber = np.full(len(joined) + 1, -1, dtype=np.int32)
        renumber[order] = np.arange(len(order), dtype=np.int32)
        unit_class = class_of[unit_class].astype(np.int32)
        distinct = np.append(True, unit_class[1:] != unit_class[:-1])
        return Automaton(
            size,
            boundaries[distinct],
            unit_class[distinct],
            renumber[joined[order]],
            accepting[representatives][order],
        )

    def __len__(self) -> int:
        """The number of states."""
        return len(self.move)

    @cached_property
    def is_empty(self) -> bool:
        """Whether no word is accepted."""
        return not bool(self.accepting.any())

    def class_of(self, unit: int) -> int:
        """The class of one code unit."""
        return int(self.unit_class[np.searchsorted(self.boundaries, unit, side="right") - 1])

    def accepts(self, units: Iterable[int]) -> bool:
        """Whether this word, unit by unit, is in the language."""
        state = 0
        word = np.fromiter(units, np.int64)
        for unit_class in self.unit_class[np.searchsorted(self.boundaries, word, side="right") - 1].tolist():
            state = int(self.move[state, unit_class])
            if state < 0:
                return False
        return bool(self.accepting[state])

    def intersect(self, other: Automaton) -> Automaton:
        """The words in both languages."""
        return self._product(other, np.logical_and, (True, True))

    def union(self, other: Automaton) -> Automaton:
        """The words in either language."""
        return self._product(other, np.logical_or)

    def difference(self, other: Automaton) -> Automaton:
        """The words in this language and not in the other."""
        return self._product(other, lambda ours, theirs: ours & ~theirs, (True, False))

    def complement(self) -> Automaton:
        """All words over the alphabet that are not in the language."""
        return Automaton.of(NOTHING, self.size)._product(self, lambda _, theirs: ~theirs)

    def edges(self) -> Iterator[tuple[int, Ranges, int]]:
        """Every pair of joined states once, with all units that lead from one to the other."""
        charge(self.move.size // CELLS_PER_STEP + len(self.boundaries))
        ends = np.append(self.boundaries[1:], self.size) - 1
        intervals: list[list[tuple[int, int]]] = [[] for _ in range(self.move.shape[1])]
        for first, last, unit_class in zip(
            self.boundaries.tolist(), ends.tolist(), self.unit_class.tolist(), strict=True
        ):
            intervals[unit_class].append((first, last))
        joined: dict[tuple[int, ...], Ranges] = {}
        for source, row in enumerate(self.move.tolist()):
            by_target: dict[int, list[int]] = {}
            for unit_class, target in enumerate(row):
                if target >= 0:
                    by_target.setdefault(target, []).append(unit_class)
            charge(EDGE_STEPS * len(by_target))
            for target, unit_classes in by_target.items():
                key = tuple(unit_classes)
                if key not in joined:
                    charge(sum([len(intervals[each]) for each in key]))
                    joined[key] = merge(r for c in key for r in intervals[c])
                yield source, joined[key], target

    def expr(self, edge: Callable[[Ranges], Expr] = Class) -> Expr:
        """The language as an expression; `edge` says how one unit of a set is written."""
        if self.is_empty:
            return NOTHING
        labels: dict[Ranges, Expr] = {}
        edges: list[tuple[int, Expr, int]] = []
        for source, ranges, target in self.edges():
            label = labels.get(ranges)
            if label is None:
                label = labels[ranges] = edge(ranges)
            edges.append((source, label, target))
        return Graph(tuple(edges), 0, frozenset(np.flatnonzero(self.accepting).tolist()))

    def _product(
        self,
        other: Automaton,
        accept: Callable[[NDArray[np.bool_], NDArray[np.bool_]], NDArray[np.bool_]],
        needed: tuple[bool, bool] = (False, False),
    ) -> Automaton:
        """Both automata side by side, each with one more state for "no longer possible".

        Where that is the state of one that is needed, nothing is followed any more.
        """
        if self.size != other.size:
            raise ValueError("the two languages are over different alphabets")
        boundaries = np.union1d(self.boundaries, other.boundaries)
        ours = self.unit_class[np.searchsorted(self.boundaries, boundaries, side="right") - 1]
        theirs = other.unit_class[np.searchsorted(other.boundaries, boundaries, side="right") - 1]
        pairs, unit_class = np.unique(ours * other.move.shape[1] + theirs, return_inverse=True)
        our_class, their_class = np.divmod(pairs, max(other.move.shape[1], 1))
        our_move, their_move = _with_sink(self.move)[:, our_class], _with_sink(other.move)[:, their_class]
        sinks = len(self.move), len(other.move)
        width = len(other.move) + 1
        nowhere = sinks[0] * width + sinks[1]
        number: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
        frontier = number
        rows = []
        index = {0: 0}
        while len(frontier):
            charge(ROUND_STEPS + len(frontier) * (PAIR_STEPS + len(unit_class) // CELLS_PER_STEP))
            our_targets, their_targets = our_move[frontier // width], their_move[frontier % width]
            targets = our_targets.astype(np.int64) * width + their_targets
            for sink, reached, is_needed in zip(sinks, (our_targets, their_targets), needed, strict=True):
                if is_needed:
                    targets[reached == sink] = nowhere
            rows.append(targets)
            fresh = [key for key in dict.fromkeys(targets.ravel().tolist()) if key not in index]
            for key in fresh:
                index[key] = len(index)
            frontier = np.array(fresh, dtype=np.int64)
        keys = np.array(list(index), dtype=np.int64)
        ordered = np.sort(keys)
        position = np.argsort(keys)
        move = position[np.searchsorted(ordered, np.concatenate(rows))].astype(np.int32)
        accepting = accept(
            np.append(self.accepting, False)[keys // width], np.append(other.accepting, False)[keys % width]
        )
        return Automaton._minimal(
            self.size, boundaries.astype(np.int32), unit_class.reshape(-1).astype(np.int32), move, accepting
        )


def _with_sink(move: NDArray[np.int32]) -> NDArray[np.int32]:
    """Complete the automaton: the last state is the one from which nothing is accepted."""
    sink = len(move)
    return np.vstack([np.where(move >= 0, move, sink), np.full((1, move.shape[1]), sink)]).astype(np.int32)


def _reaching(move: NDArray[np.int32], accepting: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """bool [states]: whether an accepting state can be reached."""
    first, sources = predecessors([0, len(move)], [move])
    begin, source = first.tolist(), sources.tolist()
    alive = bytearray(accepting)
    waiting = np.flatnonzero(accepting).tolist()
    while waiting:
        target = waiting.pop()
        for state in source[begin[target] : begin[target + 1]]:
            if not alive[state]:
                alive[state] = True
                waiting.append(state)
    return np.frombuffer(alive, np.bool_)


def _breadth_first(move: NDArray[np.int64], start: int) -> NDArray[np.int64]:
    """int64 [reached states]: the states in the order in which a breadth-first walk meets them."""
    order = [start]
    seen = {start}
    for state in order:
        for target in move[state].tolist():
            if target >= 0 and target not in seen:
                seen.add(target)
                order.append(target)
    return np.array(order, dtype=np.int64)
