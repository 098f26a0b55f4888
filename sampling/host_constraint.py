"""`Constraint` on the host: rows are read one by one, as by a matcher, and masks are bits until applied.

A row takes some 30 microseconds with 128k tokens. Tensors answer by some hundred small operators, which take
two milliseconds for one row and half a millisecond for each further one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from sortition.grammars import accelerate, masking
from sortition.grammars.reader import Mask, Place, Reader, reader_of, stacked, unstacked
from sortition.grammars.table import Table
from sortition.sampling.arena import Arena
from sortition.sampling.constraint import DEAD, FREE, Constraint, Position

INFINITY: Final = {
    torch.float16: (torch.int16, 0x7C00),
    torch.bfloat16: (torch.int16, 0x7F80),
    torch.float32: (torch.int32, 0x7F80_0000),
    torch.float64: (torch.int64, 0x7FF0_0000_0000_0000),
}
"""For each kind of logits, integers of the same size, and infinity as one of them."""


class HostConstraint(Constraint):
    """See `Constraint`, which gives the same answers."""

    def __init__(
        self, tables: Sequence[Table], *, slots: int = 0, end_tokens: Iterable[int] | None = None
    ) -> None:
        super().__init__(tables, slots=slots, end_tokens=end_tokens)
        self._tables = dict(enumerate(tables))

    def add(self, table: Table | Arena) -> int:
        """See `Constraint.add`.

        Raises:
            TypeError: an arena, which no reader can read.
        """
        if not isinstance(table, Table):
            raise TypeError(f"a table is needed, not a {type(table).__name__}")
        number = super().add(table)
        self._tables[number] = table
        return number

    def step(self, position: Position, tokens: Tensor, end_tokens: Tensor | None = None) -> Position:
        """See `Constraint.step`."""
        after = Position(*(part.clone() for part in position))
        _, state, depth, stack, finished, counts = (part.numpy() for part in after)
        for row, (place, token, ends) in enumerate(
            zip(self._places(position), tokens.tolist(), self._ends_of(position, end_tokens), strict=True)
        ):
            if place is None or place[-1] or token < 0:
                continue
            grammar = int(position.grammar[row])
            reader = self._reader(grammar)
            if token in ends:
                finished[row] = reader.can_end(place[0], place[2])
                state[row] = state[row] if finished[row] else DEAD
                continue
            found = reader.step(place, token) if token < reader.size else None
            if found is None:
                state[row] = DEAD
                continue
            sites, below = unstacked(found[2])
            state[row], depth[row] = found[0] + self._first(grammar), len(sites)
            stack[row, : len(sites)] = sites
            counts[row, : len(sites) + 1] = [*below, found[1]]
        return after

    def allowed(
        self, position: Position, width: int | None = None, end_tokens: Tensor | None = None
    ) -> Tensor:
        """See `Constraint.allowed`."""
        width = self.arena.vocabulary_size if width is None else width
        eligible = np.ones((len(position.grammar), width), np.bool_)
        for row, mask in self._masks(position, width, end_tokens):
            eligible[row] = np.unpackbits(mask.view(np.uint8), count=width, bitorder="little").view(np.bool_)
        return torch.from_numpy(eligible)

    def apply(self, logits: Tensor, position: Position, end_tokens: Tensor | None = None) -> Tensor:
        """See `Constraint.apply`."""
        kind, infinity = INFINITY[logits.dtype]
        masked = logits.detach().clone(memory_format=torch.contiguous_format)
        bits, rule_out = masked.view(kind).numpy(), accelerate.best(masking.rule_out)
        for row, mask in self._masks(position, logits.shape[1], end_tokens):
            rule_out(bits[row], mask, infinity)
        return masked

    def _reader(self, grammar: int) -> Reader:
        return reader_of(self._tables[grammar])

    def _first(self, grammar: int) -> int:
        """The number of a grammar's first state among those of all."""
        return int(self.arena.start[grammar]) - self._tables[grammar].start

    def _places(self, position: Position) -> Iterator[Place | None]:
        """Where each row is, as its reader says it; None for rows that are free or dead."""
        for grammar, state, depth, sites, finished, counts in zip(
            *(part.tolist() for part in position), strict=True
        ):
            if grammar == FREE or state == DEAD:
                yield None
            else:
                yield (
                    state - self._first(grammar),
                    counts[depth],
                    stacked(sites[:depth], counts[:depth]),
                    finished,
                )

    def _ends_of(self, position: Position, end_tokens: Tensor | None) -> list[list[int]]:
        """The end tokens of each row."""
        ends: list[list[int]] = self._ends(end_tokens).expand(len(position.grammar), -1).tolist()
        return ends

    def _masks(self, position: Position, width: int, end_tokens: Tensor | None) -> Iterator[tuple[int, Mask]]:
        """The rows that have a grammar, and what may come next there: uint32 [ceil(width / 32)]."""
        if end_tokens is None:
            self._check(width)
        places = zip(self._places(position), self._ends_of(position, end_tokens), strict=True)
        for row, (place, ends) in enumerate(places):
            grammar = int(position.grammar[row])
            if grammar == FREE:
                continue
            mask, may_end = np.zeros(-(-width // 32), np.uint32), True
            if place is not None and not place[-1]:
                reader = self._reader(grammar)
                state, count, stack, _ = place
                fit(mask, reader.mask(state, count, stack), width)
                may_end = reader.can_end(state, stack)
            let_end(mask, ends, may_end)
            yield row, mask


def fit(mask: Mask, allowed: Mask, width: int) -> None:
    """Write what a matcher allows into a mask for so many tokens, which may be more or fewer."""
    allowed = allowed[: len(mask)]
    mask[: len(allowed)] = allowed
    if width % 32:
        mask[-1] &= np.uint32((1 << width % 32) - 1)


def let_end(mask: Mask, end_tokens: Sequence[int], may_end: bool) -> None:
    """Have end tokens in a mask where the text may end, and where nothing else is left; see `Constraint`."""
    _set(mask, end_tokens, may_end)
    if not (may_end or mask.any()):
        _set(mask, end_tokens, True)


def _set(mask: Mask, tokens: Iterable[int], eligible: bool) -> None:
    for token in tokens:
        word, bit = token >> 5, np.uint32(1 << (token & 31))
        mask[word] = mask[word] | bit if eligible else mask[word] & ~bit


def constraint_on(
    device: torch.device, tables: Sequence[Table], end_tokens: Iterable[int] | None
) -> Constraint:
    """The fastest constraint for logits on a device."""
    if device.type == "cpu":
        return HostConstraint(tables, end_tokens=end_tokens)
    return Constraint(tables, device=device, end_tokens=end_tokens)
