"""The CPU's verification: what `verify_reference.py` finds, to the bit, in compiled loops.

The law at a place is made only if drafts stand up to it, and never held as more than the tokens it leaves.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortition.grammars.background import Background
from sortition.sampling import cpu, verify_reference
from sortition.sampling.columns import Columns
from sortition.sampling.draw import NO_TOKEN, Request
from sortition.sampling.parameters import Parameters
from sortition.sampling.verification import BLOCK, COUPLED, Verification, Verified


class Drafts(NamedTuple):
    """The arrays of `Verification`, positions of all places, and whether drafts are certain."""

    tokens: NDArray[np.int64]
    parents: NDArray[np.int64]
    methods: NDArray[np.int8]
    coins: NDArray[np.int64]
    positions: NDArray[np.int64]
    certain: bool


class Found(NamedTuple):
    """Of `Verified`."""

    accepted: NDArray[np.int64]
    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    path: NDArray[np.int64]
    flags: NDArray[np.uint8]

    @classmethod
    def of(cls, rows: int, nodes: int) -> Found:
        """What is said of rows where no draft stands and nothing can be drawn."""
        return cls(
            np.zeros(rows, np.int64),
            np.full((rows, nodes + 1), NO_TOKEN),
            np.full((rows, nodes + 1), -np.inf, np.float32),
            np.full((rows, nodes), NO_TOKEN),
            np.zeros(rows, np.uint8),
        )


class Room(NamedTuple):
    """Scratch of one thread; see `verify_cpu_rows.py`."""

    excess: NDArray[np.float64]
    left: NDArray[np.int32]
    d: NDArray[np.float32]
    shares: NDArray[np.float64]
    below: NDArray[np.int64]

    @classmethod
    def of(cls, width: int, nodes: int) -> Room:
        """Room for laws of so many tokens, and for so many drafts."""
        return cls(
            np.empty(width),
            np.empty(width, np.int32),
            np.empty(width, np.float32),
            np.empty(nodes + 1),
            np.empty(nodes, np.int64),
        )


class Scratch(NamedTuple):
    """All scratch of one thread: each model's law and masses, and what belongs to neither."""

    target: tuple[cpu.Law, NDArray[np.float64]]
    draft: tuple[cpu.Law, NDArray[np.float64]]
    room: Room


_of_thread: Final = threading.local()


def scratch(width: int, drafted: int, nodes: int) -> Scratch:
    """This thread's, for laws of so many tokens, the target's and the drafter's, and so many drafts."""
    sizes = width, drafted, nodes
    if getattr(_of_thread, "sizes", None) != sizes:
        target, draft = ((cpu.new_scratch(size), np.empty(size)) for size in (width, drafted))
        _of_thread.sizes, _of_thread.scratch = sizes, Scratch(target, draft, Room.of(width, nodes))
    kept: Scratch = _of_thread.scratch
    return kept


class Side(NamedTuple):
    """One model's part: its request, and scratch of one thread for its laws."""

    settings: Any
    batch: cpu.Batch
    law: cpu.Law
    tokens: NDArray[np.int32]
    d: NDArray[np.float32]
    chances: NDArray[np.float32]
    mass: NDArray[np.float64]

    @classmethod
    def of(cls, request: Request, law: cpu.Law, mass: NDArray[np.float64]) -> Side:
        """The side of a model with this scratch."""
        settings, batch = cpu.settings_of(request.columns), cpu.Batch.of(request)
        return cls(settings, batch, law, law.tokens, law.d, law.keys, mass)


def verify_rows(targets: Tensor, drafts: Tensor | None, asked: Verification) -> Verified:
    """Verify each row's drafts; see `Verifier`. Until the loops are there, the reference finds the same."""
    if not LOOPS.ready:
        LOOPS.start()
        return verify_reference.verify_rows(targets, drafts, asked)
    return _verify_rows(targets, drafts, asked)


def _verify_rows(targets: Tensor, drafts: Tensor | None, asked: Verification) -> Verified:
    rows, nodes = asked.tokens.shape
    laws = targets.new_empty((rows, nodes, 1)) if drafts is None else drafts
    request = asked.targets if asked.drafts is None else asked.drafts
    arrays = Drafts(
        tokens=np.ascontiguousarray(asked.tokens),
        parents=np.ascontiguousarray(asked.parents),
        methods=np.ascontiguousarray(asked.methods),
        coins=np.ascontiguousarray(asked.coins),
        positions=np.ascontiguousarray(asked.targets.positions),
        certain=drafts is None,
    )
    found = Found.of(rows, nodes)
    trees, chains = _loops()
    blocks = asked.methods == BLOCK
    verify = [trees] * bool((~blocks).any()) + [chains] * bool(blocks.any())

    def work(part: tuple[int, int]) -> None:
        of_target, of_draft, room = scratch(targets.shape[2], laws.shape[2], nodes)
        target, draft = Side.of(asked.targets, *of_target), Side.of(request, *of_draft)
        for first, these, those in pieces(targets, laws, *part):
            for loop in verify:
                loop(these, those, first, arrays, target, draft, room, found)

    cpu.share_out(work, rows)
    return Verified(*map(torch.from_numpy, found))


def pieces(
    targets: Tensor, drafts: Tensor, begin: int, end: int
) -> Iterator[tuple[int, NDArray[np.float32], NDArray[np.float32]]]:
    """Rows from `begin` to `end` as float32, some at a time: the first of them, and both models' logits."""
    size = max(1, cpu.AT_A_TIME // max(1, targets[:1].numel() + drafts[:1].numel()))
    for first in range(begin, end, size):
        part = slice(first, min(first + size, end))
        yield first, targets[part].float().contiguous().numpy(), drafts[part].float().contiguous().numpy()


def _loops() -> tuple[Any, Any]:
    # Importing numba takes as long as everything else together, and not everybody has drafts.
    rows = importlib.import_module("sortition.sampling.verify_cpu_rows")
    return rows.trees, rows.chains


def _cached() -> bool:
    return all(map(cpu.is_cached, _loops()))


def _load() -> None:
    """Verify a draft by each loop, from which numba learns all types, and they are always the same."""
    methods = np.array([COUPLED, BLOCK], np.int8)
    drafts, places = np.zeros((2, 1), np.int64), np.zeros(4, np.int64)
    nothing = places[:, None][:, :0].copy()
    request = Request(Columns.of([Parameters()] * 4), places, places, nothing, nothing, nothing)
    _verify_rows(torch.zeros(2, 2, 2), None, Verification(drafts, drafts - 1, methods, places[:2], request))


LOOPS: Final = Background("sortition.sampling.verify_cpu", _cached, _load)
"""The compiled loops."""

if __name__ == "__main__":
    # As a module of its own name, because numba files what it compiles under that.
    importlib.import_module("sortition.sampling.verify_cpu").LOOPS.compile()
