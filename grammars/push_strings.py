"""Strings of call sites that a token pushes, and the guards of counts below them, each with a number.

A string is its parent with one more site on top, above which the frame has counted so far. An empty string
has no parent, and a guard for its count: bounds of the count with which the token began, and what it adds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sortition.grammars.machine import ENDLESS

Ints = NDArray[np.int32]
Wide = NDArray[np.int64]


class Strings:
    """Numbers strings and guards: string 0 (`NO_PUSH`) is empty, guard 0 (`NO_GUARD`) holds and adds nothing.

    Args:
        sites: how many call sites there are.

    Attributes:
        parent, site, count: int32 [strings], see `Composition.push_parent`.
        guards: int32 [3, guards], see `Composition.guards`.
    """

    def __init__(self, sites: int) -> None:
        self._sites = sites
        self._number: dict[tuple[int, int, int], int] = {(-1, -1, 0): 0}
        self.parent = np.full(1, -1, np.int32)
        self.site = np.full(1, -1, np.int32)
        self.count = np.zeros(1, np.int32)
        self._guard_number: dict[tuple[int, int, int], int] = {(0, ENDLESS, 0): 0}
        self.guards = np.array([[0], [ENDLESS], [0]], np.int32)

    def push(self, strings: NDArray[np.integer], sites: Ints, counts: NDArray[np.integer] | int) -> Wide:
        """The numbers of these strings with these sites on top, above which so much has been counted."""
        if not strings.size:
            return strings.astype(np.int64)
        width, most = self._sites, int(np.max(counts)) + 1
        keys, which = np.unique((strings * width + sites) * most + counts, return_inverse=True)
        return self._numbered([(*divmod(key // most, width), key % most) for key in keys.tolist()])[which]

    def without_added(self, strings: Wide) -> Wide:
        """The guards of empty strings, but without what is added: the frame that counted is left."""
        guards = self.count[strings].astype(np.int64)
        adds = np.flatnonzero(self.guards[2, guards])
        if adds.size:
            low, high, _ = self.guards[:, guards[adds]]
            without = self.guarded(np.stack([low, high, np.zeros_like(low)]))
            guards[adds] = self.count[without]
        return guards

    def guarded(self, guards: NDArray[np.integer]) -> Wide:
        """The numbers of the empty strings with these guards: least and greatest count, and what is added."""
        distinct, which = np.unique(guards, axis=1, return_inverse=True)
        before = len(self._guard_number)
        numbers = [
            self._guard_number.setdefault(guard, len(self._guard_number))
            for guard in zip(*distinct.tolist(), strict=True)
        ]
        new = list(self._guard_number)[before:]
        if new:
            self.guards = np.append(self.guards, np.array(new, np.int32).T, axis=1)
        found: Wide = self._numbered([(-1, -1, number) for number in numbers])[which.reshape(-1)]
        return found

    def _numbered(self, strings: Sequence[tuple[int, int, int]]) -> Wide:
        """The numbers of strings, each given by its parent, the site on top and the count above it."""
        before = len(self._number)
        numbers = [self._number.setdefault(string, len(self._number)) for string in strings]
        new = list(self._number)[before:]
        if new:
            parent, site, count = np.array(new, np.int32).T
            self.parent = np.append(self.parent, parent)
            self.site = np.append(self.site, site)
            self.count = np.append(self.count, count)
        return np.array(numbers, np.int64)
