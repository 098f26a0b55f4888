"""The slow byte-by-byte walk of a machine, a few plain lines: it judges the tables and everything above."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from sortition.grammars.machine import Machine
    from sortition.grammars.vocabulary import Vocabulary


class Walk:
    """One text, read byte by byte: the state of the machine and the call sites that are open, top last."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.state = 0
        self.stack: list[int] = []

    def copy(self) -> Self:
        """Another walk at the same place."""
        other = type(self)(self.machine)
        other.state = self.state
        other.stack = self.stack.copy()
        return other

    def advance(self, byte: int) -> bool:
        """Read one byte; False, and nothing changes, if no text of the language goes on with it."""
        machine, state, stack = self.machine, self.state, self.stack.copy()
        unit = machine.byte_class[byte]
        while machine.move[state, unit] < 0:
            if machine.ending[state] < 0 or not stack:
                return False
            state = int(machine.returns[machine.ending[state], stack.pop()])
            if state < 0:
                return False
        site = int(machine.call[state, unit])
        if site >= 0:
            stack.append(site)
        state = int(machine.move[state, unit])
        while machine.ending[state] >= 0 and (machine.move[state] < 0).all():
            if not stack:
                return False
            state = int(machine.returns[machine.ending[state], stack.pop()])
            if state < 0:
                return False
        self.state, self.stack = state, stack
        return True

    @property
    def can_end(self) -> bool:
        """Whether the text may end here."""
        machine, state, stack = self.machine, self.state, self.stack.copy()
        # Plain text that went along inside a nested part may end there: the stack need not be empty.
        while not machine.accepting[state]:
            if machine.ending[state] < 0 or not stack:
                return False
            state = int(machine.returns[machine.ending[state], stack.pop()])
            if state < 0:
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
