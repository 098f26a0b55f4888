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
from sortition.sampling.kernels.mask import apply, judge, mask

TILE = 4096
"""Tokens that one program of `mask`, `judge` and `apply` is for."""

TABLES = (
    *("depth_limit", "token_class", "vocabulary_size", "row_start", "survives", "certain", "certain_size"),
    *("rank", "first_entry", "action", "target", "effect", "height"),
    *("guard", "otherwise", "least", "greatest", "added"),
    *("conditional_start", "conditional_count", "conditional"),
    *("push_start", "push_length", "push_site", "push_count"),
    *("ending", "return_start", "returns", "accepting", "present", "token_words"),
    *("longest_exit", "longest_end", "counts", "most_alternatives"),
)
"""In the order of the arguments of `advance`."""


@dataclass(frozen=True, eq=False)
class Batch:
    """What a step reads, on the device.

    Attributes:
        slots: int64 [rows], which slot each row of logits is of; those of a slot stand one after another.
        local: int32 [rows], how many drafts come before each row: 0, 1, 2 and so on.
        tokens: int32 [slots, n], the tokens of each slot.
        totals: int32 [slots], how many of them are committed.
        drafts: int32 [rows], the draft before each row but a slot's first; negative ones read nothing.
        end_tokens: int64 [slots, k], each filled up with one of its own.
    """

    slots: Tensor
    local: Tensor
    tokens: Tensor
    totals: Tensor
    drafts: Tensor
    end_tokens: Tensor


@dataclass(frozen=True, eq=False)
class Rows:
    """Where each row of logits is, and what may come next.

    Attributes:
        position: of each row.
        classes: int32 [rows, words], a bit for each class of tokens that may come next.
        facts: int32 [rows]; see `kernels/advance.py`.
        slots, end_tokens: of the batch.
    """

    position: Position
    classes: Tensor
    facts: Tensor
    slots: Tensor
    end_tokens: Tensor


class Walk:
    """Follows the texts of a constraint's slots, and judges rows of logits.

    Args:
        constraint: whose grammars, end tokens and slots these are; its `slots` and `refused` change.
        width: of logits.
        read: int64 [slots], how many of each slot's tokens have been read, changed; to be set when a slot is
            assigned.
    """

    def __init__(self, constraint: Constraint, width: int, read: Tensor | None = None) -> None:
        self.constraint, self.width = constraint, width
        if read is None:
            read = torch.zeros(len(constraint.slots.grammar), dtype=torch.int64, device=constraint.device)
        self.read = read
        self._known: dict[int, int] = {}
        self._present = torch.zeros((0, 0))

    def advance(self, batch: Batch) -> Rows:
        """Read what has been committed, which moves slots, and then drafts, which do not."""
        count, limit = len(batch.slots), self.constraint.slots.stack.shape[1]

        def empty(*shape: int, kind: torch.dtype = torch.int32) -> Tensor:
            return torch.empty(shape, dtype=kind, device=batch.slots.device)

        position = Position(
            *(empty(count), empty(count), empty(count), empty(count, limit), empty(count, kind=torch.bool)),
            empty(count, limit + 1),
        )
        return self._advance(self.constraint.slots, self.read, batch, position)

    def step(self, position: Position, tokens: Tensor | None = None) -> Rows:
        """Where tokens [rows] or [rows, n] take each row, or where it is; slots stay where they are."""
        count, device = len(position.grammar), position.state.device
        size = 0 if tokens is None else tokens[:1].numel()
        nothing = torch.zeros(count, dtype=torch.int32, device=device)
        batch = Batch(
            slots=torch.arange(count, device=device),
            local=nothing,
            tokens=nothing[:, None] if tokens is None else tokens.int().view(count, size),
            totals=nothing + size,
            drafts=nothing,
            end_tokens=self.constraint.end_tokens.expand(count, -1).contiguous(),
        )
        # Every row is a slot of its own, which may be written before it is read as a row.
        after = Position(*(part.clone() for part in position))
        return self._advance(after, torch.zeros_like(batch.slots), batch, after)

    def _advance(self, slots: Position, read: Tensor, batch: Batch, position: Position) -> Rows:
        arena, count, limit = self.constraint.arena, len(batch.slots), slots.stack.shape[1]
        device = slots.state.device
        classes = torch.empty((count, arena.token_words), dtype=torch.int32, device=device)
        facts = torch.empty(count, dtype=torch.int32, device=device)
        tables = {**vars(arena), "vocabulary_size": arena.vocabulary_size, "certain_size": len(arena.certain)}
        tables["present"] = self._present_in(arena)
        advance[(count,)](
            *(tables[name] for name in TABLES),
            *slots, limit, read, self.constraint.refused,
            batch.slots, batch.local, count, batch.tokens, batch.tokens.stride(0), batch.totals, batch.drafts,
            batch.end_tokens, batch.end_tokens.shape[1],
            *position, classes, facts,
            num_warps=1, **LAUNCH,
        )  # fmt: skip
        return Rows(position, classes, facts, batch.slots, batch.end_tokens)

    def mask(self, rows: Rows) -> Tensor:
        """The tokens that may come next: int32 [rows, words], a bit for each, the lowest first."""
        return self._mask(rows)[0]

    def apply(self, logits: Tensor, rows: Rows) -> None:
        """`Constraint.apply`, but logits [rows, width] are changed in place, and free rows are not read."""
        allowed, judgement = self._mask(rows)
        read = (logits, *logits.stride(), self.width, allowed, allowed.shape[1], judgement, rows.facts)
        grid = (len(logits), triton.cdiv(self.width, TILE))
        judge[grid](*read, BLOCK=TILE, num_warps=8, **LAUNCH)
        apply[grid](*read, BLOCK=TILE, num_warps=8, **LAUNCH)

    def _mask(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """The tokens that may come next, and room to judge logits in."""
        arena, device = self.constraint.arena, rows.facts.device
        words = triton.cdiv(self.width, 32)
        allowed = torch.empty((len(rows.facts), words), dtype=torch.int32, device=device)
        judgement = torch.empty(len(rows.facts), dtype=torch.int32, device=device)
        mask[(len(rows.facts), triton.cdiv(self.width, TILE))](
            arena.token_class, arena.vocabulary_size, arena.token_words,
            rows.position.grammar, rows.classes, rows.facts, rows.slots,
            rows.end_tokens, rows.end_tokens.shape[1], self.width, allowed, words, judgement,
            BLOCK=TILE, num_warps=8, **LAUNCH,
        )  # fmt: skip
        return allowed, judgement

    def _present_in(self, arena: Arena) -> Tensor:
        """int32 [g, token_words], a bit for each class that has a token among the logits."""
        shape = len(arena), arena.token_words
        if self._present.shape != shape:
            self._present = torch.zeros(shape, dtype=torch.int32, device=arena.start.device)
            self._known.clear()
        serials = self.constraint.store.serials
        for number, serial in serials.items() - self._known.items():
            seen = torch.zeros(32 * arena.token_words, dtype=torch.int64, device=arena.start.device)
            seen.scatter_(0, arena.token_class[number, : self.width].long(), 1)
            places = torch.arange(32, device=seen.device)
            self._present[number] = (seen.view(-1, 32) << places).sum(1).to(torch.int32)
            self._known[number] = serial
        return self._present
