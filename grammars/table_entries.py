"""What each class does in each state, entry by entry, and as the rows of bits that a table keeps."""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sortition.grammars.compose import Composition, check_elements, spread
from sortition.grammars.errors import TooLarge
from sortition.grammars.table_actions import ranked

BIT_BUDGET: Final = 1 << 28
"""Bytes of the class rows of one table: beyond that, classes are not a compact way to say it."""

Ints = NDArray[np.int32]
Wide = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Entries(NamedTuple):
    """Entries sorted by state and class; of several of one state and class, one guard holds.

    Attributes:
        first: int64 [states + 1], where each state's begin.
        said: int32 [entries, 2], class and action of each.
    """

    first: Wide
    said: Ints

    @property
    def state(self) -> Wide:
        """int64 [entries], the state of each."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))

    @property
    def unit(self) -> Ints:
        """int32 [entries], the class of each."""
        return self.said[:, 0]

    @property
    def action(self) -> Ints:
        """int32 [entries], the action of each."""
        return self.said[:, 1]

    def only(self, kept: Flags) -> Entries:
        """Some of the entries."""
        first = self.first - np.searchsorted(np.flatnonzero(~kept), self.first)
        # Both numbers of an entry at once: rows would be taken by their indices, which are as large again.
        said = self.said.view(np.int64).reshape(-1)[kept]
        return Entries(first, said.view(np.int32).reshape(-1, 2))


class Rows(NamedTuple):
    """The columns of `Table` about what each state lets survive."""

    row_of_state: Ints
    survives: NDArray[np.uint32]
    certain: NDArray[np.uint32]
    rank: Ints
    first_entry: Ints
    conditional_start: Ints
    conditional: Ints


def entries_of(composition: Composition, classes: Wide, action_of_outcome: Ints, states: int) -> Entries:
    """The entries of all classes, given what their outcomes say, class by class.

    Raises:
        TooLarge: they are more than the budget allows.
    """
    grouping = composition.grouping[classes]
    begin = composition.group_start[grouping]
    sizes = composition.group_start[grouping + 1] - begin
    check_elements(int(sizes.sum()))
    owner, at = spread(begin, sizes)
    outcomes = np.diff(composition.start)[classes]
    source, group = composition.groups[:, at]
    action = action_of_outcome[(np.cumsum(outcomes) - outcomes)[owner] + group]
    # Sorted by class already. A stable sort of 16-bit keys is a radix sort, many times as fast as any other.
    order = np.argsort(source.astype(np.uint16) if states <= 1 << 16 else source, kind="stable")
    first = np.append(0, np.cumsum(np.bincount(source, minlength=states)))
    return Entries(first, np.column_stack(((owner + 1).astype(np.int32).take(order), action.take(order))))


def alternatives(entries: Entries, actions: int) -> tuple[Entries, Wide, Ints]:
    """Chain the actions of entries of one state and class: where one's guard fails, the next one counts.

    Changes the actions of the entries, and returns those that are then the only ones of their state and
    class; of each action which one it is, apart from what counts otherwise; and this, -1 for nothing.
    """
    first = np.append(True, entries.unit[1:] != entries.unit[:-1])[: len(entries.said)]
    first[entries.first[entries.first < len(first)]] = True
    last = np.append(first[1:], True)[: len(first)]
    # Entries may be most of all memory, so they are changed in place.
    action = entries.action
    base, otherwise = [np.arange(actions)], [np.full(actions, -1)]
    waiting = np.flatnonzero(last & ~first) - 1
    while waiting.size:
        keys, number = ranked(action[waiting] * np.int64(actions) + action[waiting + 1])
        base.append(keys // actions)
        otherwise.append(keys % actions)
        action[waiting] = actions + number
        actions += len(keys)
        waiting = waiting[~first[waiting]] - 1
    return entries.only(first), np.concatenate(base), np.concatenate(otherwise).astype(np.int32)


def rows_of(entries: Entries, room: Wide, need: Wide, token_classes: int, classes: int) -> Rows:
    """The entries as bits, in a row for all states that have the same ones.

    Those are certain whose action takes no more room than the state needs in any case.
    """
    certain = room.take(entries.action) <= need.take(entries.state)
    data = (2 * entries.unit + certain).astype(np.int32).tobytes()
    ends = (entries.first * 4).tolist()
    number_of: dict[bytes, int] = {}
    row_of_state = np.array(
        [number_of.setdefault(data[begin:end], len(number_of)) for begin, end in pairwise(ends)],
        np.int32,
    )
    words = words_of_rows(len(number_of), classes)
    packed = np.frombuffer(b"".join(number_of), np.int32)
    row = np.repeat(np.arange(len(number_of)), [len(key) // 4 for key in number_of])
    bits = np.zeros((2, len(number_of), words * 32), np.bool_)
    bits[0, row, packed >> 1] = True
    bits[1, row, packed >> 1] = packed & 1
    survives, certain_bits = np.packbits(bits, axis=-1, bitorder="little").view(np.uint32)
    counts = np.bitwise_count(survives).astype(np.int64)
    open_question = np.flatnonzero(~certain & (entries.unit < token_classes))
    return Rows(
        row_of_state,
        survives,
        certain_bits,
        (np.cumsum(counts, axis=1) - counts).astype(np.int32),
        entries.first[:-1].astype(np.int32),
        np.searchsorted(open_question, entries.first).astype(np.int32),
        entries.unit.take(open_question),
    )


def words_of_rows(rows: int, classes: int) -> int:
    """How many words each row needs.

    Raises:
        TooLarge: all rows together are beyond the budget.
    """
    words = (classes + 31) // 32
    if rows * words * 4 > BIT_BUDGET:
        raise TooLarge(
            f"{classes:,} token classes in {rows:,} kinds of states are more than a table can hold"
        )
    return words
