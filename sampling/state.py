"""State: where the rows of a batch are, as a value that any draw can go on from."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortition.sampling.constraint import Position
from sortition.sampling.device_state import DeviceState
from sortition.sampling.history import Room
from sortition.sampling.seeds import checked_seed, signed
from sortition.sampling.whole_numbers import whole, whole_ids

POSITIONS: Final = 2**32
"""What a position is below: noise takes it as 32 bits."""


@dataclass(frozen=True, eq=False)
class State:
    """What a batch's next draws depend on beside logits and parameters. A value: rows may be picked at will.

    Attributes:
        seeds: int64 [rows].
        positions: int64 [rows], tokens generated so far.
        prompt: int64 [rows, n], ids of the prompts; negative ones are padding.
        output: int64 [rows, m], ids generated so far, as far as any parameter looks at them.
        grammar: where rows are in their grammars, None without any.
        room: where the output may grow, None for nowhere yet.
    """

    seeds: NDArray[np.int64]
    positions: NDArray[np.int64]
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    grammar: Position | None = None
    room: Room[NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self.seeds)

    def rows(self, index: Sequence[int] | NDArray[np.int64]) -> State:
        """These rows, in this order. Rules with a value for each row go by the new order of rows."""
        at = np.asarray(index)
        if at.ndim != 1:
            raise ValueError(f"rows are picked by a list of their numbers, not by {index!r}")
        if at.dtype.kind not in "iu" and at.size:
            raise TypeError(f"rows are picked by their numbers, not by {at.dtype}")
        at = at.astype(np.int64)
        grammar = self.grammar
        if grammar is not None:
            grammar = grammar.rows(torch.from_numpy(at).to(grammar.state.device))
        return State(self.seeds[at], self.positions[at], self.prompt[at], self.output[at], grammar)


SomeState = TypeVar("SomeState", State, DeviceState)
"""A state on the host or on a device."""


def first_state(
    rows: int,
    seed: int | Sequence[int] | None,
    prompts: Sequence[Sequence[int]] | Tensor | None,
) -> State:
    """The state of rows that have generated nothing, without their grammars; see `Sampler.start`."""
    if seed is None:
        seeds = [secrets.randbits(63) for _ in range(rows)]
    elif isinstance(seed, Iterable):
        seeds = [checked_seed(each) for each in seed]
    else:
        seeds = [checked_seed(seed) + row for row in range(rows)]
    prompt = padded([[]] * rows if prompts is None else prompts)
    for name, count in (("seeds", len(seeds)), ("prompts", len(prompt))):
        if count != rows:
            raise ValueError(f"{count} {name} for {rows} rows")
    return State(
        seeds=np.array([signed(each) for each in seeds], np.int64),
        positions=np.zeros(rows, np.int64),
        prompt=prompt,
        output=np.zeros((rows, 0), np.int64),
    )


def padded(lists: Sequence[Sequence[int]] | Tensor) -> NDArray[np.int64]:
    """Ids of rows as int64 [rows, longest], filled up with -1."""
    if isinstance(lists, Tensor):
        if lists.dim() != 2:
            raise ValueError(f"prompts are ids [rows, length], not {list(lists.shape)}")
        return np.asarray(whole_ids("prompts", lists).numpy())
    if not all(hasattr(row, "__len__") for row in lists):
        raise TypeError("prompts are lists of ids, one for each row")
    rows = [[whole("a prompt's token", each) for each in row] for row in lists]
    longest = max(map(len, rows), default=0)
    filled = [[*row, *[-1] * (longest - len(row))] for row in rows]
    return np.array(filled, np.int64).reshape(len(rows), longest)
