"""A machine that counts -> the same without counting: every count is a state of its own.

For vocabularies that lack bytes, because what they strand depends on the count; and to judge tables by.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

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
    with metered():
        return _Expansion(machine).result()


class _Expansion:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
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
            for ending, state in enumerate(machine.returns[:, site].tolist()):
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
        machine = self._machine
        target, site = int(machine.move[state, column]), int(machine.call[state, column])
        if target >= 0 and site < 0 and machine.test[target] >= 0:
            test = machine.test[target]
            count = min(count + int(machine.step[test]), self._most)
            outcome = int((machine.cuts[test] <= count).sum())
            target, site = int(machine.move[target, outcome]), int(machine.call[target, outcome])
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
        for state in self._machine.returns[:, site].tolist():
            if state >= 0:
                self._state(state, count)
        return number
