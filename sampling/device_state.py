"""What a batch's next draws depend on, on its device: `State` for a sampler whose draws nobody waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sortition.sampling.constraint import Position
from sortition.sampling.history import FIRST, Room


@dataclass(frozen=True, eq=False)
class DeviceState:
    """A value, as `State` is; all of it on one device.

    Attributes:
        seeds: int64 [rows].
        positions: int64 [rows], tokens generated so far.
        history: int32 [rows, n], prompt and output as one text, from the left; what follows means nothing.
        lengths, prompt_lengths: int32 [rows], of the text and of its prompt.
        longest: no text is longer, as far as the host knows.
        grammar: where rows are in their grammars, None without any.
        room: where texts may grow, None for nowhere yet.
    """

    seeds: Tensor
    positions: Tensor
    history: Tensor
    lengths: Tensor
    prompt_lengths: Tensor
    longest: int
    grammar: Position | None = None
    room: Room[Tensor] | None = None

    def __len__(self) -> int:
        return len(self.seeds)

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.seeds.device

    def rows(self, index: Sequence[int] | Tensor) -> DeviceState:
        """These rows, in this order. Rules with a value for each row go by the new order of rows."""
        at = torch.as_tensor(index, device=self.device)
        if at.dim() != 1 or at.is_floating_point() or at.dtype == torch.bool:
            raise ValueError(f"rows are picked by a list of their numbers, not by {index!r}")
        at = at.long()
        parts = {name: getattr(self, name)[at] for name in _BY_ROW}
        grammar = None if self.grammar is None else self.grammar.rows(at)
        return replace(self, **parts, grammar=grammar, room=None)

    def grown(self, tokens: Tensor) -> dict[str, Any]:
        """What changes of the texts if each has one more token [rows]; a negative one is none."""
        room, longest = self.room, self.longest
        if room is None or not room.takes(longest):
            ids = torch.zeros(len(self), max(FIRST, 2 * longest), dtype=torch.int32, device=self.device)
            ids[:, :longest] = self.history[:, :longest]
            room = Room(ids, longest)
            room.takes(longest)
        # Beyond the end of its text, nobody looks at what a row without a token writes.
        room.ids.scatter_(1, self.lengths[:, None].long(), tokens[:, None].int())
        lengths = self.lengths + (tokens >= 0).int()
        return {"history": room.ids, "lengths": lengths, "longest": longest + 1, "room": room}


def uploaded(values: Tensor, device: torch.device) -> Tensor:
    """The same on a device, which need not wait for the host, nor the host for it."""
    if values.device == device:
        return values
    if values.device.type == "cpu" and device.type == "cuda":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


_BY_ROW = ("seeds", "positions", "history", "lengths", "prompt_lengths")
