"""Where the requests of an engine stand in their grammars: one slot each, on the device of the logits.

A slot begins free: whatever it emits is left alone. `admit` and `forget` only take notes on the host; `open`
brings the device up to date, and is the one place that waits for a compilation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from sortition.grammars.table import Table
from sortition.integrations.vllm_compile import Compiler, logger
from sortition.integrations.vllm_draw import Wish
from sortition.integrations.vllm_request import Request
from sortition.sampling.arena import Arena
from sortition.sampling.constraint import DEAD, FREE, Constraint

ARENA_BYTES: Final = 1 << 27
"""Bytes of tables on the device, where real schemas take 0.6 to 1 MB each with a vocabulary of 128k.

Beyond that, those that no request holds are dropped.
"""

FULL_BYTES: Final = 1 << 30
"""Bytes of tables that requests hold; beyond that, the requests of new ones may only end."""

CLOSED: Final = 0
"""The number of the grammar of the empty text alone: its rows can only end."""


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that is ours: its grammar, the ids at which it ends, and how it is drawn if not by vLLM."""

    request: Request | None
    end_tokens: tuple[int, ...]
    wish: Wish | None = None


class News(NamedTuple):
    """What a row of logits follows: tokens of its slot that were not read before.

    Attributes:
        row: of the logits.
        slot: of its request.
        tokens: in their order.
        lost: whether there are others that the engine does not show, so that the text may only end.
    """

    row: int
    slot: int
    tokens: list[int]
    lost: bool


class Slots:
    """Grammar positions and end tokens by slot.

    Args:
        compiler: where tables come from.
        closed: the table of the empty text alone.
        device: where the logits are.
        count: how many slots there are.
        arena_bytes: bound on the tables on the device, as far as live requests allow.
        full_bytes: bound that nothing exceeds.

    Attributes:
        constraint: the tables on the device, and the position of each slot.
        end_tokens: int64 [slots, n], padded with repetitions.
    """

    def __init__(
        self,
        compiler: Compiler,
        closed: Table,
        device: torch.device,
        count: int,
        arena_bytes: int = ARENA_BYTES,
        full_bytes: int = FULL_BYTES,
    ) -> None:
        self.device = device
        self._compiler = compiler
        self._arena_bytes = arena_bytes
        self._full_bytes = full_bytes
        self._numbers: dict[Request, int] = {}
        self.constraint = Constraint([closed], device=device, slots=count)
        self.end_tokens = torch.full((count, 1), int(closed.end_tokens[0]), device=device)
        self._admitted: dict[int, tuple[Request, tuple[int, ...]]] = {}
        self._waiting: set[int] = set()
        self._left: set[int] = set()

    def __contains__(self, slot: int) -> bool:
        """Whether the slot's request has a grammar."""
        return slot in self._admitted

    @property
    def nbytes(self) -> int:
        """Bytes of the tables on the device."""
        return self.constraint.store.taken

    @property
    def refused(self) -> int:
        """How many texts have read a token that was not allowed. Waits for the device."""
        return int(self.constraint.refused)

    def admit(self, slot: int, admission: Admission) -> None:
        """A request takes the slot; if it has a grammar, the compilation begins."""
        self.forget(slot)
        if admission.request is not None:
            self._compiler.hold(admission.request)
            self._admitted[slot] = admission.request, admission.end_tokens
            self._waiting.add(slot)

    def forget(self, slot: int) -> None:
        """The slot's request is gone."""
        admitted = self._admitted.pop(slot, None)
        if admitted is not None:
            self._compiler.release(admitted[0])
            self._waiting.discard(slot)
            self._left.add(slot)

    def restart(self, slot: int) -> None:
        """The slot's text begins anew."""
        self._waiting.add(slot)

    def open(self, slots: Iterable[int]) -> list[int]:
        """Of these slots, put those that wait at the beginning of their grammars; which they were."""
        if self._left:
            left = self.upload(sorted(self._left))
            self.constraint.assign(left, torch.full_like(left, FREE))
            self._left.clear()
        opened = [slot for slot in slots if slot in self._waiting]
        if opened:
            self._waiting.difference_update(opened)
            requests, ends = zip(*(self._admitted[slot] for slot in opened), strict=True)
            self._place(dict.fromkeys(requests))
            numbers = [self._numbers.get(request, CLOSED) for request in requests]
            self._compiler.figures.closed_rows += numbers.count(CLOSED)
            index = self.upload(opened)
            self.constraint.assign(index, self.upload(numbers))
            self._write_end_tokens(index, ends)
        return opened

    def read(self, index: Tensor, tokens: Tensor) -> None:
        """Read a token [n] in each of these slots [n]; a negative one reads nothing."""
        self.constraint.advance(index, tokens, self.end_tokens[index])

    def constrain(self, logits: Tensor, news: Sequence[News]) -> None:
        """Read the new tokens of these rows, and mask in place what their grammars rule out."""
        self.open(slot for _, slot, _, _ in news)
        longest = max(len(tokens) for _, _, tokens, _ in news)
        plan = [
            [row, slot, lost, *tokens, *[-1] * (longest - len(tokens))] for row, slot, tokens, lost in news
        ]
        rows, index, lost, *columns = self.upload(plan).unbind(1)
        for column in columns:
            self.read(index, column)
        position = self.constraint.slots.rows(index)
        position = position._replace(state=position.state.masked_fill(lost.bool(), DEAD))
        logits[rows] = self.constraint.apply(logits[rows], position, self.end_tokens[index])

    def upload(self, numbers: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        """int64 on the device, without waiting for it."""
        values = torch.tensor(numbers, pin_memory=self.device.type == "cuda")
        return values.to(self.device, non_blocking=True)

    def _place(self, requests: Iterable[Request]) -> None:
        """Bring the tables of these requests to the device, as far as there are tables and room."""
        tables = {
            request: self._compiler.table(request) for request in requests if request not in self._numbers
        }
        host = torch.device("cpu")
        new = {request: Arena.of(table, host) for request, table in tables.items() if table is not None}
        if self.nbytes + sum(part.nbytes for part in new.values()) > self._arena_bytes:
            self._evict()
        for request, part in new.items():
            if self.nbytes + part.nbytes > self._full_bytes:
                logger.error("no room for the table of a grammar, its requests may only end: %r", request)
            else:
                self._numbers[request] = self.constraint.add(part)

    def _evict(self) -> None:
        """Drop the tables that no request holds; the others stay where they are."""
        live = {request for request, _ in self._admitted.values()}
        for request in [request for request in self._numbers if request not in live]:
            self.constraint.drop(self._numbers.pop(request))

    def _write_end_tokens(self, index: Tensor, ends: Sequence[tuple[int, ...]]) -> None:
        longest = max(self.end_tokens.shape[1], *map(len, ends))
        room = longest - self.end_tokens.shape[1]
        if room:
            repeated = self.end_tokens[:, :1].expand(-1, room)
            self.end_tokens = torch.cat([self.end_tokens, repeated], dim=1)
        self.end_tokens[index] = self.upload([list(row) + [row[0]] * (longest - len(row)) for row in ends])
