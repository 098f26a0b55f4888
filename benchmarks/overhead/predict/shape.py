"""A model as far as its speed goes: its matrices, and what it keeps of every token."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM

from sortition.integrations.errors import InputError

BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}
"""Of a number, by dtype."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix that maps some inputs to some outputs."""

    inputs: int
    outputs: int

    @property
    def weights(self) -> int:
        """How many numbers it has."""
        return self.inputs * self.outputs


@dataclass(frozen=True, slots=True)
class Shape:
    """What a decode step reads and computes.

    Attributes:
        linears: how often each matrix stands in the layers, without the head.
        head: from the last hidden state to the vocabulary; it may share its weights with the embedding.
        kv_heads: heads of keys and values, each of which `heads // kv_heads` heads of queries share.
        parameters: of the whole model, shared ones counted once.
    """

    linears: Counter[Linear]
    head: Linear
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    parameters: int

    @classmethod
    def of(cls, config: Any) -> Shape:
        """Read the shape off a model that has the configuration and no memory.

        Raises:
            InputError: the model keeps something else than keys and values of every token, or has weights in
                its layers that not every token is multiplied with.
        """
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        text = config.get_text_config()
        if getattr(text, "kv_lora_rank", None):
            raise InputError("models with latent attention are not predicted")
        head = model.get_output_embeddings()
        linears = Counter(
            Linear(module.in_features, module.out_features)
            for module in model.modules()
            if isinstance(module, torch.nn.Linear) and module is not head
        )
        inside = sum(
            weights.numel()
            for module in model.modules()
            for weights in module.parameters(recurse=False)
            if weights.ndim > 1 and not isinstance(module, torch.nn.Linear | torch.nn.Embedding)
        )
        if inside:
            raise InputError("models with experts, or with weights other than matrices, are not predicted")
        heads = text.num_attention_heads
        return cls(
            linears=linears,
            head=Linear(head.in_features, head.out_features),
            layers=text.num_hidden_layers,
            heads=heads,
            kv_heads=getattr(text, "num_key_value_heads", None) or heads,
            head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
            parameters=sum(weights.numel() for weights in model.parameters()),
        )

    @property
    def hidden(self) -> int:
        """How wide the layers' inputs are."""
        return self.head.inputs

    @property
    def inner(self) -> int:
        """How wide the layers are at their widest."""
        return max(linear.outputs for linear in self.linears)

    @property
    def multiplied(self) -> int:
        """Weights that every token is multiplied with, the head's included."""
        return sum(linear.weights * count for linear, count in self.linears.items()) + self.head.weights

    def kv_numbers(self, tokens: int) -> int:
        """Numbers in the keys and values of so many tokens."""
        return 2 * self.layers * self.kv_heads * self.head_dim * tokens

    def attention_operations(self, queries: int, context: int) -> int:
        """Floating-point operations of attention from so many tokens to so many."""
        return 4 * self.layers * self.heads * self.head_dim * queries * context
