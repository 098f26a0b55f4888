"""vLLM's second model runner: requests in slots; tokens on the device; a logits row for every draft.

What is kept per slot follows the committed tokens alone, so calls may repeat, split the batch, or show rows
of a prompt that is not all there, of a warm-up, or of a request that comes back in another slot.

Where Triton runs, kernels mask and draw (`vllm_device.py`), and nothing waits for the device. Elsewhere masks
are torch's, whose loops end where bounds known to the host say so; and draws happen on the host, which waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sortition.integrations.vllm_draw import NO_TOKENS, Drawer, Tokens, Turn, Wish
from sortition.integrations.vllm_slots import Admission, Slots
from sortition.sampling.constraint import DEAD, FREE, Position

if TYPE_CHECKING:
    # It needs Triton, which is not everywhere.
    from sortition.integrations.vllm_device import Device


class Runner:
    """The slots whose requests are ours.

    Args:
        slots: one for each of the engine's.
        states: the engine's tokens by slot (`LogitsProcRequestState`).
        drafts: the most draft tokens of one request.
        drawer: of this engine.
    """

    def __init__(self, slots: Slots, states: Any, drafts: int, drawer: Drawer) -> None:
        self._slots = slots
        self._drawer = drawer
        self._states = states
        self._drafts = drafts
        count = states.max_num_reqs
        self._constrained, self._drawn = np.zeros((2, count), np.bool_)
        self._wishes: dict[int, tuple[Wish, Admission]] = {}
        # How many committed tokens the device may have that were not read, at most.
        self._behind = np.zeros(count, np.int64)
        # The length up to which the device's tokens have been read, prompt included.
        self._device = _kernels(slots, states)
        if self._device is None:
            self._read = torch.zeros(count, dtype=torch.int64, device=slots.device)
        else:
            self._read = self._device.read

    def warm_up(self, width: int) -> None:
        """Have the kernels for logits of this width compiled, where there are kernels."""
        if self._device is not None:
            self._device.warm_up(width)

    def add(self, slot: int, admission: Admission | None) -> bool:
        """A request takes the slot; whether its logits are changed."""
        self._wishes.pop(slot, None)
        self._constrained[slot] = admission is not None and admission.request is not None
        if admission is None:
            self._slots.forget(slot)
        else:
            self._slots.admit(slot, admission)
            if admission.wish is not None:
                self._wishes[slot] = admission.wish, admission
        self._drawn[slot] = slot in self._wishes
        return admission is not None

    def mask(self, logits: Tensor, context: Any) -> Tensor:
        """Logits [rows, vocabulary] with what a row may not emit at -inf; see `LogitsContext`."""
        requests = context.idx_mapping_np
        if self._constrained[requests].any():
            self._open(context)
            if self._device is not None:
                self._device.constrain(logits, context)
            else:
                logits = self._constrain(logits, context)
            # Before the next call, each may commit what it draws now, drafts included.
            self._behind[requests] = 1 + self._drafts
        if not self._drawn[requests].any():
            return logits
        if self._device is not None:
            self._device.draw(logits, context, self._wishes)
            return logits
        turns = self._turns(context)
        return self._drawer(logits, turns) if turns else logits

    @property
    def counts(self) -> tuple[int, int]:
        """Rows that kernels drew, and those of them that could not be drawn from as they were. Waits."""
        drawn, mended = (0, 0) if self._device is None else self._device.counts.tolist()
        return drawn, mended

    def _open(self, context: Any) -> None:
        """Put requests whose prompts are all there at the beginning of their grammars."""
        requests = context.idx_mapping_np
        # Until a prompt is all there, nothing is drawn, and its grammar has time. For CUDA graphs, the engine
        # pads the lengths beyond the requests.
        lengths = context.seq_lens_upper_bound_np[: len(requests)]
        whole = lengths >= self._states.prefill_len.np[requests]
        opened = self._slots.open(requests[whole & self._constrained[requests]].tolist())
        if opened:
            prompts = self._states.prompt_len.np[opened]
            self._read[self._slots.upload(opened)] = self._slots.upload(prompts.tolist())
            longest = dict(zip(requests.tolist(), lengths.tolist(), strict=True))
            self._behind[opened] = [longest[slot] for slot in opened] - prompts

    def _constrain(self, logits: Tensor, context: Any) -> Tensor:
        """New logits with what a row's grammar rules out at -inf."""
        requests = context.idx_mapping_np
        self._catch_up(context.idx_mapping.long(), int(self._behind[requests].max()))
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

    def _turns(self, context: Any) -> list[Turn]:
        """The rows that the host draws; what the device knows of them is waited for."""
        slots = context.expanded_idx_mapping.long()
        columns = (
            slots,
            context.expanded_local_pos,
            context.pos,
            context.input_ids,
            self._states.total_len.gpu[slots],
        )
        facts = torch.stack([column.long() for column in columns]).cpu().numpy()
        slots, local, pos, ids, total = facts
        # The others are of a prompt in pieces or of a warm-up.
        rows = np.flatnonzero(self._drawn[slots] & (pos == total - 1 + local)).tolist()
        history = self._history(slots[rows], total[rows])
        turns = []
        for row in rows:
            slot, drafts = int(slots[row]), ids[row - local[row] + 1 : row + 1]
            # A placeholder among the drafts is not accepted, nor is what follows it.
            if (drafts >= 0).all():
                prompt = int(self._states.prompt_len.np[slot])
                known = history.get(slot, NO_TOKENS)
                wish, admission = self._wishes[slot]
                turns.append(
                    Turn(
                        row,
                        wish,
                        position=int(total[row] - prompt + local[row]),
                        end_tokens=admission.end_tokens,
                        constrained=admission.request is not None,
                        prompt=known[:prompt],
                        output=np.concatenate([known[prompt:], drafts]) if slot in history else NO_TOKENS,
                    )
                )
        return turns

    def _history(self, slots: Tokens, lengths: Tokens) -> dict[int, Tokens]:
        """The committed tokens, prompt included, of the slots whose wishes look at them."""
        length = dict(zip(slots.tolist(), lengths.tolist(), strict=True))
        length = {slot: count for slot, count in length.items() if self._wishes[slot][0].sees_history}
        if not length:
            return {}
        ids = self._states.all_token_ids.gpu[self._slots.upload(list(length)), : max(length.values())]
        tokens = ids.cpu().numpy().astype(np.int64)
        return {slot: row[:count] for row, (slot, count) in zip(tokens, length.items(), strict=True)}


def _kernels(slots: Slots, states: Any) -> Device | None:
    """What runs kernels where the slots are, None where nothing does."""
    try:
        from sortition.integrations.vllm_device import Device
        from sortition.sampling.device_sampler import runs_on
    except ImportError:
        return None
    return Device(slots, states) if runs_on(slots.device) else None
