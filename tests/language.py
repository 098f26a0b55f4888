"""The embedded model as transformers loads it, for tests of what goes into its `generate`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from types import MethodType
from typing import Any

import torch
import transformers
from models import real
from torch import Tensor

from sortition.integrations.smollm2 import embedded_model

MODEL_END = 2


class Language:
    """The embedded model, its tokenizer, and how often the model ran."""

    def __init__(self) -> None:
        self.tokenizer = real("smollm2").tokenizer
        self.vocabulary = real("smollm2").vocabulary
        self.model = transformers.AutoModelForCausalLM.from_pretrained(embedded_model()).eval()
        # The same weights; generation settings of its own, which assisted decoding changes.
        self.assistant = copy.copy(self.model)
        self.assistant.generation_config = copy.deepcopy(self.model.generation_config)
        self.forwards = 0
        forward = self.model.forward

        def counting(model: Any, *args: Any, **kwargs: Any) -> Any:
            self.forwards += 1
            return forward(*args, **kwargs)

        self.model.forward = MethodType(counting, self.model)

    def encode(self, *prompts: str) -> dict[str, Tensor]:
        return dict(self.tokenizer(list(prompts), return_tensors="pt", padding=True, padding_side="left"))

    def generate(
        self, prompts: Sequence[str], processor: Any | None, *, tokens: int = 20, **settings: Any
    ) -> list[list[int]]:
        """Generated ids, without what follows the end token."""
        torch.manual_seed(0)
        self.forwards = 0
        inputs = self.encode(*prompts)
        settings = {"do_sample": False, "max_new_tokens": tokens, **settings}
        processors = None if processor is None else [processor]
        output = self.model.generate(**inputs, logits_processor=processors, **settings)
        new = output[:, inputs["input_ids"].shape[1] :].tolist()
        return [row[: row.index(MODEL_END) + 1] if MODEL_END in row else row for row in new]
