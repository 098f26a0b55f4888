"""vLLM's second model runner: requests in slots; tokens on the device; a logits row for every draft.

What is kept per slot follows the committed tokens alone, so calls may repeat, split the batch, or show rows
of a prompt that is not all there, of a warm-up, or of a request that comes back in another slot. Nothing here
waits for the device: loops end where bounds known to the host say so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sortition.integrations.vllm_slots import Admission, Slots
from sortition.sampling.constraint import DEAD, FREE, Position


class Runner:
    """The slots that have a grammar.

    Args:
        slots: one for each of the engine's.
        states: the engine's tokens by slot (`LogitsProcRequestState`).
        drafts: the most draft tokens of one request.
    """

    def __init__(self, slots: Slots, states: Any, drafts: int) -> None:
        self._slots = slots
        self._states = states
        self._drafts = drafts
        count = states.max_num_reqs
        self._constrained = np.zeros(count, np.bool_)
        # How many committed tokens the device may have that were not read, at most.
        self._behind = np.zeros(count, np.int64)
        # The length up to which the device's tokens have been read, prompt included.
        self._read = torch.zeros(count, dtype=torch.int64, device=slots.device)

    def add(self, slot: int, admission: Admission | None) -> bool:
        """A request takes the slot; whether its logits are masked."""
        if admission is None:
            self._slots.forget(slot)
        else:
            self._slots.admit(slot, admission)
        self._constrained[slot] = admission is not None
        return admission is not None

    def mask(self, logits: Tensor, context: Any) -> Tensor:
        """Logits [rows, vocabulary] with what a row's grammar rules out at -inf; see `LogitsContext`."""
        requests = context.idx_mapping_np
        if not self._constrained[requests].any():
            return logits
        # Until a prompt is all there, nothing is drawn, and its grammar has time. For CUDA graphs, the engine
        # pads the lengths beyond the requests.
        lengths = context.seq_lens_upper_bound_np[: len(requests)]
        whole = lengths >= self._states.prefill_len.np[requests]
        opened = self._slots.open(requests[whole & self._constrained[requests]].tolist())
        if opened:
            prompts = self._states.prompt_len.np[opened]
            self._read[self._slots.upload(opened)] = self._slots.upload(prompts.tolist())
            self._behind[opened] = self._states.prefill_len.np[opened] - prompts
        self._catch_up(context.idx_mapping.long(), int(self._behind[requests].max()))
        # Before the next call, each may commit what it draws now, drafts included.
        self._behind[requests] = 1 + self._drafts
        drafts = self._drafts if len(logits) > len(requests) else 0
        position, ends = self._positions(context, drafts)
        return self._slots.constraint.apply(logits, position, ends)

    def _catch_up(self, slots: Tensor, steps: int) -> None:
        """Read what has been committed, up to so many tokens."""
        ids = self._states.all_token_ids.gpu
        total = self._states.total_len.gpu[slots].long()
        for _ in range(steps):
            at = self._read[slots]
            new = at < total
            tokens = ids[slots, at.clamp(max=ids.shape[1] - 1)].masked_fill(~new, -1)
            self._slots.read(slots, tokens)
            self._read[slots] = at + new

    def _positions(self, context: Any, drafts: int) -> tuple[Position, Tensor]:
        """The position of each logits row after its drafts, and its end tokens."""
        constraint = self._slots.constraint
        slots = context.expanded_idx_mapping.long()
        local = context.expanded_local_pos.long()
        total = self._states.total_len.gpu[slots]
        position, ends = constraint.slots.rows(slots), self._slots.end_tokens[slots]
        # Rows that tokens or drafts beyond the bounds have led to, if there should ever be any, may only end.
        lost = (self._read[slots] < total) | (local > drafts)
        position = position._replace(state=position.state.masked_fill(lost, DEAD))
        # Other rows are of a prompt in pieces or of a warm-up, and nobody looks at what is drawn there.
        drawn = context.pos == total - 1 + local
        row = torch.arange(len(local), device=local.device)
        for draft in range(1, drafts + 1):
            reads = local >= draft
            tokens = context.input_ids[(row - local + draft).clamp(max=len(local) - 1)]
            after = constraint.step(position, tokens.masked_fill(~reads, -1), ends)
            # A draft that is not allowed is not accepted, nor is what follows it.
            drawn = drawn & ~(reads & ((tokens < 0) | (after.dead & ~position.dead)))
            position = after
        return position._replace(grammar=position.grammar.masked_fill(~drawn, FREE)), ends
