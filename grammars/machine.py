"""Rules that call each other -> one deterministic machine with a stack of call sites.

A call reads one word of another rule in a stack frame of its own. The machine is the subset construction
over nested words (Alur and Madhusudan, "Visibly pushdown languages", STOC 2004): a state is the set of all
NFA nodes at which the frame could be, a byte that begins a called word enters *all* rules that the byte can
begin, and pushes the call site, which remembers what follows each of them. Rules therefore cost their own
states once, however often and however deep they are called, recursion is free, and alternatives that share
a prefix (two objects under `anyOf`) are followed together instead of being guessed between.

This is deterministic wherever the text itself shows where a called word begins and ends, as quotes,
brackets and digits do in JSON. Where it does not, `Machine.of` refuses.

Every frame counts from 0, for what has bounds that no set of states should have to spell out. A byte may lead
to a state with a *test*: something is added to the count of the frame, and the count says where to go on,
before anything is pushed or read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sortition.grammars import accelerate
from sortition.grammars.automaton import BYTES
from sortition.grammars.errors import Unsatisfiable, Unsupported
from sortition.grammars.expr import Expr
from sortition.grammars.nfa import ROOT_RULE, Nfa, rules_without_words
from sortition.grammars.partition import UnitClasses, distinct_columns, joined_by_successors
from sortition.grammars.subsets import Subsets, subsets
from sortition.grammars.work import charge

Ints = NDArray[np.int32]

RETURNS_PER_STEP: Final = 128
"""Cells of the table of returns that are looked at in one step."""

ENDLESS: Final = (1 << 31) - 1
"""More than any frame counts to."""


@dataclass(frozen=True, eq=False)
class Machine:
    """A deterministic automaton over bytes with a stack of call sites; state 0 is the start.

    A frame ends when a state whose `ending` is set has no move on the next byte: the top call site is popped
    and the machine goes on in ``returns[ending, site]``, which reads the byte. If such a state has no moves
    at all the frame ends as soon as the state is reached.

    Attributes:
        byte_class: uint8 [256], the class of each byte.
        move: int32 [states, classes], the next state, -1 where there is none.
        call: int32 [states, classes], the call site that this move pushes, -1 for none.
        ending: int32 [states], which set of rules has ended here, -1 for none.
        returns: int32 [endings, sites], the state after popping a site, -1 where this never happens.
        accepting: bool [states], whether the text may end here.
        test: int32 [states], the number of the state's test, -1 for none. A state with a test is left at
            once: its moves and call sites are not by class but by the outcome of the test.
        step: int32 [tests], what is added to the count.
        cuts: int32 [tests, most], ascending, filled up with `ENDLESS`; the outcome of a test is how many of
            its cuts are not above the count.
        depth: the most frames that can be on the stack, None if there is no limit (recursion).
    """

    byte_class: NDArray[np.uint8]
    move: NDArray[np.int32]
    call: NDArray[np.int32]
    ending: NDArray[np.int32]
    returns: NDArray[np.int32]
    accepting: NDArray[np.bool_]
    test: NDArray[np.int32]
    step: NDArray[np.int32]
    cuts: NDArray[np.int32]
    depth: int | None

    @staticmethod
    def of(rules: Mapping[str, Expr], root: Expr) -> Machine:
        """The machine of a root expression over bytes and the rules that it calls.

        Raises:
            Unsatisfiable: the language is empty.
            Unsupported: the text does not show where a called word begins or ends.
            TooLarge: it takes too much work.
        """
        nfa = Nfa(rules, root)
        if not nfa.productive[nfa.start[ROOT_RULE]]:
            error = Unsatisfiable("no text satisfies this grammar")
            error.rules = rules_without_words(nfa)
            raise error
        with nfa.blaming():
            classes = UnitClasses(nfa.sets, BYTES)
            return _joined(accelerate.best(subsets)(nfa, classes), classes)

    def __len__(self) -> int:
        """The number of states."""
        return len(self.move)

    @property
    def leaves(self) -> NDArray[np.bool_]:
        """bool [states]: whether the frame ends as soon as this state is reached."""
        ends: NDArray[np.bool_] = (self.ending >= 0) & (self.move < 0).all(axis=1)
        return ends

    @property
    def spells(self) -> NDArray[np.bool_]:
        """bool [256]: the bytes that some state reads."""
        read = np.any(self.move[self.test < 0] >= 0, axis=0)[self.byte_class]
        return np.asarray(read, np.bool_)


def _joined(found: Subsets, classes: UnitClasses) -> Machine:
    """Join equivalent states, call sites and classes; states keep the order in which they were found."""
    states = len(found.move)
    labels = joined_by_successors(*successors_of(found)).astype(np.int32)
    # Labels count from the start state, which is therefore 0, and those of sites come after all states.
    representatives = _first_of_each(labels[:states])
    site_labels = labels[states:] - np.int32(len(representatives))
    # What is not there, -1, finds itself in one more place at the end.
    block, site_block = np.append(labels[:states], np.int32(-1)), np.append(site_labels, np.int32(-1))
    move = block.take(found.move[representatives], mode="wrap")
    call = site_block.take(found.call[representatives], mode="wrap")
    returns = block.take(found.returns[:, _first_of_each(site_labels)], mode="wrap")
    test = found.test[representatives]
    move, call, class_of = _without_equal_columns(move, call, test < 0, classes.count)
    machine = Machine(
        classes.spread(class_of).astype(np.uint8),
        move,
        call,
        found.ending[representatives],
        returns,
        found.accepting[representatives],
        test,
        np.array([split.step for split in found.tests], np.int32),
        _padded([split.cuts for split in found.tests]),
        accelerate.best(deepest)(move, call, returns),
    )
    _refuse_ambiguous_ends(machine)
    return machine


def _without_equal_columns(
    move: Ints, call: Ints, reads: NDArray[np.bool_], classes: int
) -> tuple[Ints, Ints, NDArray[np.int64]]:
    """Moves and calls with one column for each kind of class, and the new class of each class.

    Rows of states that do not read, but test, keep all of their columns.
    """
    if reads.all():
        columns, class_of = distinct_columns(np.vstack([move, call]))
        return move.take(columns, axis=1), call.take(columns, axis=1), class_of
    columns, class_of = distinct_columns(np.vstack([move[reads, :classes], call[reads, :classes]]))
    wanted = 1 + int(np.max(np.nonzero(move[~reads] >= 0)[1], initial=-1))
    width = max(len(columns), wanted)
    joined = np.full((2, len(move), width), -1, np.int32)
    joined[0][reads, : len(columns)], joined[1][reads, : len(columns)] = (
        table[reads][:, columns] for table in (move, call)
    )
    joined[0][~reads], joined[1][~reads] = (table[~reads, :width] for table in (move, call))
    return joined[0], joined[1], class_of


def _padded(rows: Sequence[tuple[int, ...]]) -> Ints:
    """Rows of different lengths, filled up with `ENDLESS`."""
    padded = np.full((len(rows), max(map(len, rows), default=0)), ENDLESS, np.int32)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return padded


def successors_of(found: Subsets) -> tuple[Ints, list[Ints]]:
    """States and, after them, call sites, for `coarsest_partition`: their kinds, and what follows them.

    Most classes push the same in all states, and most endings never come back to a site: neither is looked at
    more than once.
    """
    states = len(found.move)
    charge(found.returns.size // RETURNS_PER_STEP)
    of_sites, after = _without_gaps(found.returns)
    kinds = np.concatenate([2 * found.ending + 2 + found.accepting, -1 - len(found.tests) - of_sites])
    kinds[:states] = np.where(found.test >= 0, -1 - found.test, kinds[:states])
    call = found.call[:, distinct_columns(found.call)[0]]
    call = np.where(call >= 0, call + np.int32(states), np.int32(-1))
    return kinds.astype(np.int32), [np.hstack([found.move, call]), after]


def _without_gaps(returns: Ints) -> tuple[Ints, Ints]:
    """For each site, a number for the endings that come back to it, and the states after them."""
    endings, site = np.nonzero(returns >= 0)
    order = np.argsort(site, kind="stable")
    endings, site = endings[order], site[order]
    counts = np.bincount(site, minlength=returns.shape[1])
    last = np.cumsum(counts)
    after = np.full((len(counts), int(counts.max(initial=0))), -1, np.int32)
    after[site, np.arange(len(site)) - (last - counts)[site]] = returns[endings, site]
    numbers: dict[bytes, int] = {}
    bounds = zip((last - counts).tolist(), last.tolist(), strict=True)
    kinds = [numbers.setdefault(endings[i:j].tobytes(), len(numbers)) for i, j in bounds]
    return np.array(kinds, np.int32), after


def _first_of_each(labels: Ints) -> NDArray[np.int64]:
    """Where each label, numbered from 0 in order of appearance, stands first."""
    last = np.maximum.accumulate(np.append(-1, labels))
    return np.flatnonzero(last[1:] > last[:-1])


def _refuse_ambiguous_ends(machine: Machine) -> None:
    """Where a frame may end or go on, the next byte must tell which."""
    states = np.flatnonzero(machine.ending >= 0)
    endings, reads = machine.ending[states], machine.move[states] >= 0
    for ending in np.unique(endings[reads.any(axis=1)]):
        after = machine.returns[ending]
        read_after = (machine.move[after[after >= 0]] >= 0).any(axis=0)
        if (reads[endings == ending] & read_after).any():
            raise Unsupported(
                "the grammar cannot tell where a number or another open-ended part stops",
                hint="put a separator after it",
            )


def deepest(move: Ints, call: Ints, returns: Ints) -> int | None:
    """The longest chain of calls from the start state, None if calls recur."""
    states = len(move)
    onward: list[set[int]] = [set() for _ in range(states)]
    entered: list[set[int]] = [set() for _ in range(states)]
    return_states = [set(column[column >= 0].tolist()) for column in returns.T]
    differs = move >= 0
    differs[:, 1:] &= (move[:, 1:] != move[:, :-1]) | (call[:, 1:] != call[:, :-1])
    source, unit_class = np.divmod(np.flatnonzero(differs), move.shape[1])
    targets, sites = move[source, unit_class].tolist(), call[source, unit_class].tolist()
    for state, target, site in zip(source.tolist(), targets, sites, strict=True):
        if site < 0:
            onward[state].add(target)
        else:
            entered[state].add(target)
            onward[state] |= return_states[site]
    # Frames are told apart by the state in which they are entered; inner ones are found frame by frame.
    entries = [0]
    callers: dict[int, list[int]] = {0: []}
    calls: list[int] = []
    for entry in entries:
        reached = {entry}
        waiting = [entry]
        inner: set[int] = set()
        while waiting:
            state = waiting.pop()
            inner |= entered[state]
            fresh = onward[state] - reached
            waiting.extend(fresh)
            reached |= fresh
        calls.append(len(inner))
        for target in inner:
            if target not in callers:
                callers[target] = []
                entries.append(target)
            callers[target].append(entry)
    # Frames without calls are flat; another one is known once all that it calls are.
    left = dict(zip(entries, calls, strict=True))
    height = dict.fromkeys(entries, 0)
    ready = [entry for entry in entries if not left[entry]]
    for entry in ready:
        for caller in callers[entry]:
            height[caller] = max(height[caller], height[entry] + 1)
            left[caller] -= 1
            if not left[caller]:
                ready.append(caller)
    return height[0] if len(ready) == len(entries) else None
