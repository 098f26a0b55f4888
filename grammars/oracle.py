"""The slow byte-by-byte walk of a machine, a few plain lines: it judges the tables and everything above."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from sortition.grammars.machine import Machine
    from sortition.grammars.vocabulary import Vocabulary


class Walk:
    """One text, read byte by byte: the state of the machine and the call sites that are open, top last.

    `count` is that of the frame above all sites, and `counts` has, for each site, that of the frame below it.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.state = 0
        self.count = 0
        self.stack: list[int] = []
        self.counts: list[int] = []

    def copy(self) -> Self:
        """Another walk at the same place."""
        other = type(self)(self.machine)
        other.state = self.state
        other.count = self.count
        other.stack, other.counts = self.stack.copy(), self.counts.copy()
        return other

    def advance(self, byte: int) -> bool:
        """Read one byte; False, and nothing changes, if no text of the language goes on with it."""
        machine, after = self.machine, self.copy()
        unit = int(machine.byte_class[byte])
        while machine.move[after.state, unit] < 0:
            if not after._leave():
                return False
        after._move(unit)
        while machine.test[after.state] >= 0:
            test = machine.test[after.state]
            after.count += int(machine.step[test])
            outcome = int((machine.cuts[test] <= after.count).sum())
            if machine.move[after.state, outcome] < 0:
                return False
            after._move(outcome)
        while machine.ending[after.state] >= 0 and (machine.move[after.state] < 0).all():
            if not after._leave():
                return False
        self.state, self.count, self.stack, self.counts = after.state, after.count, after.stack, after.counts
        return True

    def _move(self, column: int) -> None:
        """Go on from the state by one of its moves, which may push a call site."""
        site = int(self.machine.call[self.state, column])
        self.state = int(self.machine.move[self.state, column])
        if site >= 0:
            self.stack.append(site)
            self.counts.append(self.count)
            self.count = 0

    def _leave(self) -> bool:
        """End the frame, if it may end here and somewhere to go on."""
        ending = self.machine.ending[self.state]
        if ending < 0 or not self.stack:
            return False
        self.state = int(self.machine.returns[ending, self.stack.pop()])
        self.count = self.counts.pop()
        return self.state >= 0

    @property
    def can_end(self) -> bool:
        """Whether the text may end here."""
        after = self.copy()
        # Plain text that went along inside a nested part may end there: the stack need not be empty.
        while not self.machine.accepting[after.state]:
            if not after._leave():
                return False
        return True

    def fits(self, room: Room) -> bool:
        """Whether every open frame can still be ended within the limit on the depth of the stack."""
        frames = [room.sites[site] for site in self.stack] + [room.states[self.state]]
        return all(below + need <= room.depth_limit for below, need in enumerate(frames))


class Room(NamedTuple):
    """How many open call sites there may be, and how many more the ways out of states and sites take."""

    depth_limit: int
    states: Sequence[int]
    sites: Sequence[int]


def read(walk: Walk, text: bytes, room: Room | None = None) -> Walk | None:
    """The walk after one token, None if the token is refused."""
    after = walk.copy()
    if not all(after.advance(byte) for byte in text):
        return None
    # The limit holds between tokens: what a token opens and closes itself needs no room on a stack.
    return after if room is None or after.fits(room) else None


def allowed_tokens(walk: Walk, vocabulary: Vocabulary, room: Room | None = None) -> list[int]:
    """The tokens of the vocabulary that may come next, end tokens not among them."""
    return [
        token for token, text in enumerate(vocabulary.tokens) if text and read(walk, text, room) is not None
    ]
