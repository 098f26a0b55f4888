"""A step of vLLM's second runner without vLLM: every row has a grammar and is drawn by kernels."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from sortition.grammars.expr import EMPTY
from sortition.grammars.grammar import Grammar
from sortition.grammars.vocabulary import Vocabulary
from sortition.integrations.vllm_compile import Compiler
from sortition.integrations.vllm_device import Device
from sortition.integrations.vllm_draw import Wish
from sortition.integrations.vllm_request import Request
from sortition.integrations.vllm_slots import Admission, Slots
from sortition.sampling.parameters import Parameters

TEXT: Final = 4096
"""Tokens of the longest text that an engine allows."""

PROMPT: Final = 8
"""Tokens of every prompt."""


def vocabulary(width: int) -> Vocabulary:
    """All bytes, and numbers and words enough."""
    words = (f"{'  '[: number % 3]}{number:x}".encode() for number in range(width - 257))
    return Vocabulary.of([*(bytes([byte]) for byte in range(256)), *words, b""], end_tokens=[width - 1])


class EngineStep:
    """What an engine has, and the step that its processor takes.

    Args:
        compiler: of a vocabulary that ends with its end token.
        logits: float [rows, vocabulary], where the step is; changed by it.
        grammars: how many different ones requests have; those beyond the rows wait.
    """

    def __init__(self, compiler: Compiler, logits: Tensor, grammars: int) -> None:
        rows, width = logits.shape
        where = logits.device
        held = max(rows, grammars)
        numbers = torch.full((held,), PROMPT, dtype=torch.int32, device=where)
        self.logits = logits
        self._ids = torch.zeros((held, TEXT), dtype=torch.int32, device=where)
        self._totals = numbers.clone()
        self._states = SimpleNamespace(
            max_num_reqs=held,
            all_token_ids=SimpleNamespace(gpu=self._ids),
            prompt_len=SimpleNamespace(gpu=numbers),
            total_len=SimpleNamespace(gpu=self._totals),
        )
        self.slots = Slots(compiler, Grammar(EMPTY).compile(compiler.vocabulary), where, held)
        wish = Wish(Parameters(temperature=0.7, top_p=0.95, frequency_penalty=0.1), 0)
        self._wishes = {}
        for slot in range(held):
            # A member of any length and one that is counted.
            text = {"type": "string"}, {"type": "string", "maxLength": 100}
            schema = {"properties": {f"key{slot % grammars}": text[0], "counted": text[1]}}
            request = Request("json_schema", json.dumps(schema))
            self._wishes[slot] = wish, Admission(request, (width - 1,), wish)
            self.slots.admit(slot, self._wishes[slot][1])
        self.slots.open(range(held))
        self.device = Device(self.slots, self._states)
        self.device.read.fill_(PROMPT)
        index = torch.arange(rows, dtype=torch.int32, device=where)
        self._context = SimpleNamespace(
            expanded_idx_mapping=index,
            expanded_local_pos=torch.zeros_like(index),
            input_ids=torch.zeros_like(index),
            pos=torch.full((rows,), PROMPT - 1, device=where),
            idx_mapping_np=np.arange(rows, dtype=np.int32),
            seq_lens_upper_bound_np=np.full(rows, TEXT, np.int32),
        )

    def constrain_and_draw(self) -> None:
        """All that the processor does: tokens are read, logits masked, and one token left of each row."""
        self.device.constrain(self.logits, self._context)
        self.device.draw(self.logits, self._context, self._wishes)

    def go_on(self) -> None:
        """What the engine does then: the tokens are committed, as they are on the device."""
        rows = len(self.logits)
        tokens = self.logits.argmax(1, keepdim=True).int()
        self._ids[:rows].scatter_(1, self._totals[:rows, None].long(), tokens)
        self._totals[:rows] += 1
        self._context.pos += 1

    @property
    def refused(self) -> int:
        """How many texts have read a token that they were not allowed. Waits for the device."""
        return self.slots.refused
