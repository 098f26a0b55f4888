"""What rows have generated, as it grows: states that follow each other share one memory."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

FIRST: Final = 16
"""Tokens that there is room for at first; later there is room for as many again."""


_lock: Final = threading.Lock()


@dataclass(eq=False)
class Room:
    """Where the outputs of a state and of those after it stand, each the beginning of the next.

    Attributes:
        ids: int64 [rows, room].
        filled: columns that belong to some state.
    """

    ids: NDArray[np.int64]
    filled: int

    @classmethod
    def of(cls, output: NDArray[np.int64]) -> Self:
        """A room of its own for an output [rows, n]."""
        rows, length = output.shape
        ids = np.empty((rows, max(FIRST, 2 * length)), np.int64)
        ids[:, :length] = output
        return cls(ids, length)

    def takes(self, length: int) -> bool:
        """Whether an output of this length is the last one here, and can grow; if so, it has grown."""
        with _lock:
            fits = bool(self.filled == length < self.ids.shape[1])
            self.filled += fits
        return fits


def grown(
    output: NDArray[np.int64], tokens: NDArray[np.int64], room: Room | None
) -> tuple[NDArray[np.int64], Room]:
    """The output [rows, n] with one more token [rows], and the room that it stands in.

    What stood there before is not moved, so that a thousand states of one text take little more than the last
    of them. A second state that goes on from the same one gets a room of its own.
    """
    length = output.shape[1]
    if room is None or not room.takes(length):
        room = Room.of(output)
        room.takes(length)
    room.ids[:, length] = tokens
    return room.ids[:, : length + 1], room
