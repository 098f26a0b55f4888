"""A machine that counts -> the same without counting: every count is a state of its own.

For vocabularies that lack bytes, because what they strand depends on the count; and to judge tables by.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import Final

import numpy as np

from sortition.grammars.errors import TooLarge
from sortition.grammars.machine import ENDLESS, Machine
from sortition.grammars.work import charge, metered

EDGE_STEPS: Final = 2
"""Steps that each move of a state with a count takes."""


def expanded(machine: Machine) -> Machine:
    """The machine without tests that accepts the same texts.

    Raises:
        TooLarge: it takes too much work.
    """
    if not len(machine.step):
        return machine
    with metered() as meter:
        try:
            return _Expansion(machine).result()
        except TooLarge:
            raise TooLarge(
                "this vocabulary lacks bytes as tokens of their own: to count, the grammar takes more than"
                f" {meter.budget:,} steps to make",
                hint="lower the bounds of lengths and of numbers of items",
            ) from None


class _Expansion:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._move, self._call, self._test, self._step, self._cuts = (
            table.tolist() for table in (machine.move, machine.call, machine.test, machine.step, machine.cuts)
        )
        self._returning = machine.returns.T.tolist()
        # Tests cannot tell greater counts apart.
        self._most = int(machine.cuts[machine.cuts < ENDLESS].max(initial=0))
        # States with counts, as they were reached, and the number of each.
        self._reached: list[tuple[int, int]] = [(0, 0)]
        self._states: dict[tuple[int, int], int] = {(0, 0): 0}
        self._sites: dict[tuple[int, int], int] = {}

    def result(self) -> Machine:
        machine = self._machine
        moves: list[list[int]] = []
        calls: list[list[int]] = []
        columns = range(machine.move.shape[1])
        # Following edges reaches more of them.
        for state, count in self._reached:
            charge(EDGE_STEPS * len(columns))
            edges = [self._edge(state, count, column) for column in columns]
            moves.append([target for target, _ in edges])
            calls.append([site for _, site in edges])
        returns = np.full((len(machine.returns), len(self._sites)), -1, np.int32)
        for (site, count), number in self._sites.items():
            for ending, state in enumerate(self._returning[site]):
                returns[ending, number] = self._states[state, count] if state >= 0 else -1
        kept = np.array([state for state, _ in self._reached])
        return replace(
            machine,
            move=np.array(moves, np.int32),
            call=np.array(calls, np.int32),
            ending=machine.ending[kept],
            returns=returns,
            accepting=machine.accepting[kept],
            test=np.full(len(kept), -1, np.int32),
            step=np.empty(0, np.int32),
            cuts=np.empty((0, 0), np.int32),
        )

    def _edge(self, state: int, count: int, column: int) -> tuple[int, int]:
        """The next state and the site that is pushed."""
        target, site = self._move[state][column], self._call[state][column]
        if target >= 0 and site < 0 and self._test[target] >= 0:
            test = self._test[target]
            count = min(count + self._step[test], self._most)
            outcome = bisect_right(self._cuts[test], count)
            target, site = self._move[target][outcome], self._call[target][outcome]
        if target < 0:
            return -1, -1
        if site < 0:
            return self._state(target, count), -1
        return self._state(target, 0), self._site(site, count)

    def _state(self, state: int, count: int) -> int:
        number = self._states.setdefault((state, count), len(self._states))
        if number == len(self._reached):
            self._reached.append((state, count))
        return number

    def _site(self, site: int, count: int) -> int:
        number = self._sites.setdefault((site, count), len(self._sites))
        charge(len(self._machine.returns))
        # What a site returns to is reached from below, whatever is above.
        for state in self._returning[site]:
            if state >= 0:
                self._state(state, count)
        return number
