"""What rows have generated, as it grows: states that follow each other share one memory."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

FIRST: Final = 16
"""Tokens that there is room for at first; later there is room for as many again."""


_lock: Final = threading.Lock()

Ids = TypeVar("Ids", NDArray[np.int64], Tensor)


@dataclass(eq=False)
class Room(Generic[Ids]):
    """Where the outputs of a state and of those after it stand, each the beginning of the next.

    Attributes:
        ids: [rows, room].
        filled: columns that belong to some state.
    """

    ids: Ids
    filled: int

    def takes(self, length: int) -> bool:
        """Whether an output of this length is the last one here, and can grow; if so, it has grown."""
        with _lock:
            fits = bool(self.filled == length < self.ids.shape[1])
            self.filled += fits
        return fits


def grown(
    output: NDArray[np.int64], tokens: NDArray[np.int64], room: Room[NDArray[np.int64]] | None
) -> tuple[NDArray[np.int64], Room[NDArray[np.int64]]]:
    """The output [rows, n] with one more token [rows], and the room that it stands in.

    What stood there before is not moved, so that a thousand states of one text take little more than the last
    of them. A second state that goes on from the same one gets a room of its own.
    """
    rows, length = output.shape
    if room is None or not room.takes(length):
        ids = np.empty((rows, max(FIRST, 2 * length)), np.int64)
        ids[:, :length] = output
        room = Room(ids, length)
        room.takes(length)
    room.ids[:, length] = tokens
    return room.ids[:, : length + 1], room
