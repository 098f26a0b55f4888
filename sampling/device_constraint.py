"""`Constraint` in launches of kernels, one for any number of tokens: for logits on a device.

A step is `Walk.advance`, then `Walk.mask` for the sampler of `device.py`, or `Walk.apply` for another one.
None of them waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from sortition.sampling.arena import Arena
from sortition.sampling.constraint import Constraint, Position
from sortition.sampling.kernels import LAUNCH
from sortition.sampling.kernels.advance import advance
from sortition.sampling.kernels.layout import bits
from sortition.sampling.kernels.mask import apply, judge, mask

TILE = 4096
"""Tokens that one program of `mask`, `judge` and `apply` is for."""

TABLES = (
    *("depth_limit", "token_class", "vocabulary_size", "row_start", "survives", "certain", "certain_size"),
    *("rank", "first_entry", "target", "effect", "height"),
    *("conditional_start", "conditional_count", "conditional", "push_start", "push_length", "push_site"),
    *("ending", "return_start", "returns", "accepting", "present", "token_words"),
    *("longest_exit", "longest_end"),
)
"""In the order of the arguments of `advance`."""


@dataclass(frozen=True, eq=False)
class Batch:
    """What a step reads, on the device.

    Attributes:
        slots: int64 [requests].
        first_row: int32 [requests + 1], where the rows of logits of each request begin.
        row_slots: int64 [rows].
        tokens: int32 [slots, n], the tokens of each slot.
        totals: int32 [slots], how many of them are committed.
        drafts: int32 [rows], the draft before each row but a request's first; negative ones read nothing.
        end_tokens: int64 [slots, k], each filled up with one of its own.
    """

    slots: Tensor
    first_row: Tensor
    row_slots: Tensor
    tokens: Tensor
    totals: Tensor
    drafts: Tensor
    end_tokens: Tensor


@dataclass(frozen=True, eq=False)
class Rows:
    """Where each row of logits is, and what may come next.

    Attributes:
        position: of the rows.
        classes: int32 [rows, words], a bit for each class of tokens that may come next.
        facts: int32 [rows], see `kernels/advance.py`.
    """

    position: Position
    classes: Tensor
    facts: Tensor


class Walk:
    """Moves the slots of a constraint, which may get more grammars on the way.

    Args:
        constraint: whose slots are moved.
        width: of the logits.

    Attributes:
        read: int64 [slots], how many of each slot's tokens have been read; to be set as a slot is assigned.
    """

    def __init__(self, constraint: Constraint, width: int) -> None:
        self.constraint, self.width = constraint, width
        self.read = torch.zeros(len(constraint.slots.grammar), dtype=torch.int64, device=constraint.device)
        self._arena: Arena | None = None
        self._present = torch.zeros(0)

    def advance(self, batch: Batch) -> Rows:
        """Read what has been committed, which moves slots, and then drafts, which do not."""
        arena, slots = self.constraint.arena, self.constraint.slots
        count, limit = len(batch.row_slots), slots.stack.shape[1]

        def empty(*shape: int, kind: torch.dtype = torch.int32) -> Tensor:
            return torch.empty(shape, dtype=kind, device=slots.state.device)

        position = Position(
            empty(count), empty(count), empty(count), empty(count, limit), empty(count, kind=torch.bool)
        )
        rows = Rows(position, empty(count, arena.token_words), empty(count))
        tables = {**vars(arena), "vocabulary_size": arena.vocabulary_size, "certain_size": len(arena.certain)}
        tables["present"] = self._present_in(arena)
        advance[(len(batch.slots),)](
            *(tables[name] for name in TABLES),
            *slots, limit, self.read, self.constraint.refused,
            batch.slots, batch.first_row, batch.tokens, batch.tokens.shape[1], batch.totals, batch.drafts,
            batch.end_tokens, batch.end_tokens.shape[1],
            *position, rows.classes, rows.facts,
            LIMIT=bits(limit), PUSH=bits(arena.longest_push), WORDS=bits(arena.token_words),
            CONDITIONAL=bits(arena.most_conditional), ENDS=bits(batch.end_tokens.shape[1]),
            num_warps=1, **LAUNCH,
        )  # fmt: skip
        return rows

    def mask(self, batch: Batch, rows: Rows) -> Tensor:
        """The tokens that may come next: int32 [rows, words], a bit for each, the lowest first."""
        return self._mask(batch, rows)[0]

    def apply(self, logits: Tensor, batch: Batch, rows: Rows) -> Tensor:
        """`Constraint.apply`: new logits [rows, width]."""
        allowed, judgement = self._mask(batch, rows)
        into = torch.empty_like(logits, memory_format=torch.contiguous_format)
        read = (logits, *logits.stride(), self.width, allowed, allowed.shape[1], judgement)
        grid = (len(logits), triton.cdiv(self.width, TILE))
        judge[grid](*read, BLOCK=TILE, num_warps=8, **LAUNCH)
        apply[grid](*read, rows.facts, into, BLOCK=TILE, num_warps=8, **LAUNCH)
        return into

    def _mask(self, batch: Batch, rows: Rows) -> tuple[Tensor, Tensor]:
        """The tokens that may come next, and room to judge logits in."""
        arena, device = self.constraint.arena, rows.facts.device
        words = triton.cdiv(self.width, 32)
        allowed = torch.empty((len(rows.facts), words), dtype=torch.int32, device=device)
        judgement = torch.empty(len(rows.facts), dtype=torch.int32, device=device)
        mask[(len(rows.facts), triton.cdiv(self.width, TILE))](
            arena.token_class, arena.vocabulary_size, arena.token_words,
            rows.position.grammar, rows.classes, rows.facts, batch.row_slots,
            batch.end_tokens, batch.end_tokens.shape[1], self.width, allowed, words, judgement,
            BLOCK=TILE, num_warps=8, **LAUNCH,
        )  # fmt: skip
        return allowed, judgement

    def _present_in(self, arena: Arena) -> Tensor:
        """int32 [g, token_words], a bit for each class that has a token among the logits."""
        if self._arena is not arena:
            seen = torch.zeros(
                (len(arena), 32 * arena.token_words), dtype=torch.int64, device=arena.start.device
            )
            seen.scatter_(1, arena.token_class[:, : self.width].long(), 1)
            places = torch.arange(32, device=seen.device)
            self._present = (seen.view(len(arena), -1, 32) << places).sum(2).to(torch.int32)
            self._arena = arena
        return self._present
