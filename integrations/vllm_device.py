"""vLLM's second model runner on a device: masks and draws by kernels, which the host launches and forgets.

A step is at most ten launches, however many requests there are and whatever they ask for: four that read
tokens and mask what grammars rule out, and six that draw and leave one token of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from sortition.integrations.vllm_draw import Wish
from sortition.integrations.vllm_slots import Admission, Slots
from sortition.sampling.columns import Columns
from sortition.sampling.device import (
    TILE,
    Inputs,
    Settings,
    Workspace,
    launch,
    needed,
)
from sortition.sampling.device_constraint import Batch, Walk
from sortition.sampling.device_state import uploaded
from sortition.sampling.kernels import LAUNCH, layout
from sortition.sampling.kernels.advance import IS_FREE
from sortition.sampling.kernels.leave import elect, leave
from sortition.sampling.parameters import Parameters

NEUTRAL = Parameters()


class Device:
    """What kernels need to know of an engine's requests, by slot.

    Args:
        slots: one for each of the engine's.
        states: the engine's tokens by slot (`LogitsProcRequestState`).

    Attributes:
        read: int64 [slots], how many of each slot's tokens have been read.
        counts: int64 [2], rows that were drawn, and those of them that could not be drawn from as they were.
    """

    def __init__(self, slots: Slots, states: Any) -> None:
        self._slots, self._states, self._count = slots, states, states.max_num_reqs
        self._device = slots.device
        self.read = torch.zeros(self._count, dtype=torch.int64, device=self._device)
        self.counts = torch.zeros(2, dtype=torch.int64, device=self._device)
        self._walk: Walk | None = None
        self._wishes: dict[int, Wish] | None = None
        self._workspace: Workspace | None = None

    def warm_up(self, width: int) -> None:
        """Launch every kernel for a row that nobody draws: so no request waits for seconds of compiling.

        Args:
            width: of logits.
        """
        nothing = torch.zeros(1, dtype=torch.int32, device=self._device)
        context = SimpleNamespace(
            expanded_idx_mapping=nothing,
            expanded_local_pos=nothing,
            input_ids=nothing,
            # An empty slot has no last token.
            pos=nothing.long(),
            idx_mapping_np=np.zeros(1, np.int32),
            seq_lens_upper_bound_np=np.zeros(1, np.int32),
        )
        logits = torch.zeros((1, width), device=self._device)
        self.constrain(logits, context)
        self.draw(logits, context, {0: (Wish(NEUTRAL, 0), Admission(None, ()))})

    def constrain(self, logits: Tensor, context: Any) -> None:
        """Read what has been committed; what a row's grammar rules out becomes -inf, in place."""
        if self._walk is None or self._walk.constraint is not self._slots.constraint:
            self._walk = Walk(self._slots.constraint, logits.shape[1], self.read)
        slots, local = self._rows(context)
        rows = self._walk.advance(
            Batch(
                slots=slots,
                local=local,
                tokens=self._states.all_token_ids.gpu,
                totals=self._states.total_len.gpu,
                drafts=context.input_ids.contiguous(),
                end_tokens=self._slots.end_tokens,
            )
        )
        facts = torch.where(self._drawn(context, slots, local), rows.facts, IS_FREE.value)
        self._walk.apply(logits, replace(rows, facts=facts))

    def draw(self, logits: Tensor, context: Any, wishes: Mapping[int, tuple[Wish, Admission]]) -> None:
        """Rows of slots with a wish are left the token that they draw, in place."""
        rows, width = logits.shape
        self._settle(wishes, width)
        slots, local = self._rows(context)
        prompts, totals = self._states.prompt_len.gpu, self._states.total_len.gpu
        drawn = self._drawn(context, slots, local) & self._wished[slots]
        treatments = torch.where(drawn, layout.WITHOUT_NAN.value, layout.SKIPPED.value).int()
        inputs = Inputs(
            slots=slots,
            positions=(totals[slots] - prompts[slots] + local).long(),
            seeds=self._seeds,
            history=self._states.all_token_ids.gpu,
            lengths=totals,
            prompt_lengths=prompts,
            drafts=context.input_ids.contiguous(),
            local=local,
            end_tokens=self._ends,
            longest=int(context.seq_lens_upper_bound_np[: len(context.idx_mapping_np)].max()),
        )
        room = self._room(rows, width, needed(self._settings, inputs, width))
        found = launch(logits, self._settings, inputs, room, treatments=treatments)
        read = (logits, *logits.stride(), width, treatments)
        elect[(rows,)](
            *read, slots, self._seeds, inputs.positions, inputs.stream,
            self._constrained, self._ends, self._ends.shape[1], found.tokens, found.flags, self.counts,
            BLOCK=TILE, num_warps=8, **LAUNCH,
        )  # fmt: skip
        grid = (rows, triton.cdiv(width, TILE))
        leave[grid](*read, found.tokens, BLOCK=TILE, num_warps=8, **LAUNCH)

    @property
    def nbytes(self) -> int:
        """Bytes of what the steps need for draws, beside the engine's own."""
        held = (self._workspace, self._settings)
        parts = [self._seeds, self._ends, self._wished, self._constrained, self.read, self.counts]
        parts += [part for each in held for part in vars(each).values() if isinstance(part, Tensor)]
        return sum(part.nbytes for part in parts)

    def _rows(self, context: Any) -> tuple[Tensor, Tensor]:
        """The slot of each row, and how many drafts come before it."""
        return context.expanded_idx_mapping.long(), context.expanded_local_pos.int().contiguous()

    def _drawn(self, context: Any, slots: Tensor, local: Tensor) -> Tensor:
        """bool [rows]: others are of a prompt in pieces or of a warm-up, and nobody looks at them."""
        drawn: Tensor = context.pos == self._states.total_len.gpu[slots] - 1 + local
        return drawn

    def _room(self, rows: int, width: int, capacity: int) -> Workspace:
        """A workspace that is large enough, which the next step will use again."""
        room = self._workspace
        if room is None or rows > room.rows or capacity > room.capacity:
            if room is not None:
                rows, capacity = max(rows, room.rows), max(capacity, room.capacity)
            room = Workspace(layout.bits(rows), width, layout.bits(capacity), self._device)
            self._workspace = room
        return room

    def _settle(self, wishes: Mapping[int, tuple[Wish, Admission]], width: int) -> None:
        """Upload what requests ask for, if any have come or gone."""
        now = {slot: wish for slot, (wish, _) in wishes.items()}
        if now == self._wishes:
            return
        self._wishes = now
        longest = max((len(admission.end_tokens) for _, admission in wishes.values()), default=0)
        parameters, seeds = [NEUTRAL] * self._count, np.zeros(self._count, np.int64)
        ends = np.full((self._count, max(longest, 1)), -1, np.int32)
        wished, constrained = np.zeros((2, self._count), np.bool_)
        for slot, (wish, admission) in wishes.items():
            parameters[slot], seeds[slot] = wish.parameters, wish.seed
            ends[slot, : len(admission.end_tokens)] = admission.end_tokens
            wished[slot], constrained[slot] = True, admission.request is not None
        self._settings = Settings.of(Columns.of(parameters), width, self._device)
        self._seeds, self._ends, self._wished, self._constrained = (
            uploaded(torch.from_numpy(part), self._device)
            for part in (seeds, ends, wished.copy(), constrained.copy())
        )
