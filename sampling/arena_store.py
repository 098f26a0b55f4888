"""Tables on a device, in buffers that grow: grammars come and go while others are in use, and none moves.

A table's parts stand somewhere in the buffers, and its numbers say where: see `Arena.moved`. Nobody waits for
uploads: the device copies from memory that is pinned until it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

import torch
from torch import Tensor

from sortition.grammars.table import Table
from sortition.sampling.arena import Arena

SPACES: Final[Mapping[str, tuple[str, ...]]] = {
    "grammars": ("start", "depth_limit", "token_class"),
    "states": (
        *("row_start", "first_entry", "conditional_start", "conditional_count"),
        *("ending", "accepting"),
    ),
    "words": ("survives", "certain", "rank"),
    "entries": ("action",),
    "actions": ("target", "effect", "height", "guard", "otherwise"),
    "guards": ("least", "greatest", "added"),
    "conditionals": ("conditional",),
    "strings": ("push_start", "push_length"),
    "sites": ("push_site", "push_count"),
    "endings": ("return_start",),
    "returns": ("returns",),
}
"""The fields of an arena that are counted together."""


class Places:
    """Which parts of a buffer are taken; they do not move.

    Attributes:
        size: of the buffer.
    """

    def __init__(self) -> None:
        self.size = 0
        self._gaps: list[tuple[int, int]] = []

    def take(self, count: int) -> int:
        """Where there is room for so many; the buffer grows, at least to twice its size, if there is none."""
        if not count:
            return 0
        for at, (begin, end) in enumerate(self._gaps):
            if end - begin >= count:
                self._gaps[at] = begin + count, end
                return begin
        # A gap at the end becomes longer.
        begin = self.size
        if self._gaps and self._gaps[-1][1] == self.size:
            begin, _ = self._gaps.pop()
        self.size = max(begin + count, 2 * self.size)
        self._gaps.append((begin + count, self.size))
        return begin

    def give(self, begin: int, count: int) -> None:
        """So many places from one on are free again."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted([*self._gaps, (begin, begin + count)]):
            if merged and merged[-1][1] >= first:
                merged[-1] = merged[-1][0], last
            elif last > first:
                merged.append((first, last))
        self._gaps = merged


class Store:
    """The tables of one vocabulary on one device.

    Args:
        table: the first one.
        device: where.

    Attributes:
        arena: all of them, as they are now.
        taken: bytes of what is in use; the buffers are at most twice as large as that has ever been, but for
            gaps that were too short.
        serials: by the number of each grammar, how many were added before it.
    """

    def __init__(self, table: Table, device: torch.device) -> None:
        self.device = device
        self.serials: dict[int, int] = {}
        self.taken = 0
        self._added = 0
        self._places = {space: Places() for space in SPACES}
        self._taken: dict[int, dict[str, tuple[int, int]]] = {}
        self._sizes: dict[int, int] = {}
        self._buffers: dict[str, Tensor] = {}
        self._most: dict[str, int] = {}
        self._digest = table.vocabulary_digest
        self.add(table)

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def add(self, table: Table | Arena) -> int:
        """Add a table; the number of its grammar, which may have been that of one that was dropped.

        Args:
            table: or the arena of it alone, on the host.

        Raises:
            ValueError: it was compiled for another vocabulary.
        """
        if table.vocabulary_digest != self._digest:
            raise ValueError("grammars that share a batch have to be compiled for the same vocabulary")
        part = table if isinstance(table, Arena) else Arena.of(table, torch.device("cpu"))
        counts = {space: len(getattr(part, names[0])) for space, names in SPACES.items()}
        begins = {space: self._places[space].take(count) for space, count in counts.items()}
        values = part.moved(begins)
        for space, names in SPACES.items():
            begin, size = begins[space], self._places[space].size
            for name in names:
                self._write(name, values[name], begin, size)
        number = begins["grammars"]
        self._taken[number] = {space: (begins[space], counts[space]) for space in SPACES}
        self._sizes[number] = part.nbytes
        self.taken += part.nbytes
        self.serials[number] = self._added
        self._added += 1
        # What kernels are compiled for does not shrink again when grammars go.
        for field in fields(Arena):
            if isinstance(value := getattr(part, field.name), int):
                self._most[field.name] = max(value, self._most.get(field.name, 0))
        self._renew()
        return number

    def drop(self, number: int) -> None:
        """The places of a grammar that no row is in may be taken again."""
        for space, (begin, count) in self._taken.pop(number).items():
            self._places[space].give(begin, count)
        self.taken -= self._sizes.pop(number)
        del self.serials[number]

    def _write(self, name: str, values: Tensor, begin: int, size: int) -> None:
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < size:
            grown = torch.zeros((size, *values.shape[1:]), dtype=values.dtype, device=self.device)
            if buffer is not None:
                grown[: len(buffer)] = buffer
            self._buffers[name] = buffer = grown
        if self.device.type == "cuda":
            values = values.pin_memory()
        buffer[begin : begin + len(values)].copy_(values, non_blocking=True)

    def _renew(self) -> None:
        parts: dict[str, Any] = {"vocabulary_digest": self._digest, **self._buffers, **self._most}
        self.arena = Arena(**parts)
