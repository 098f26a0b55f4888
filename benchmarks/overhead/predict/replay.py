"""A model's operations without the model: its matrix products, its attention, and what comes between them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sortition.benchmarks.overhead.predict.prediction import Point
from sortition.benchmarks.overhead.predict.shape import Linear, Shape

GHOST: Final = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
"""Small enough that nothing but starting the operations takes time."""


class Replay:
    """The operations of a model of some shape, on weights of its own.

    Every layer has weights and a cache of its own, so that they are as far away as the model's would be.

    Args:
        implementation: of attention, as transformers calls it.
    """

    def __init__(self, shape: Shape, dtype: torch.dtype, device: torch.device, implementation: str) -> None:
        self._shape = shape
        self._dtype = dtype
        self._device = device
        self._attend = ALL_ATTENTION_FUNCTIONS[implementation]
        self._weights = [self._random(linear.outputs, linear.inputs) for linear in in_layers(shape)]
        self._head = self._random(shape.head.outputs, shape.head.inputs)

    def linears(self, tokens: int, last: int) -> Callable[[], None]:
        """All matrix products for so many tokens, the head's for so many of them."""
        sizes = {weights.shape[1] for weights in self._weights}
        inputs = {size: self._random(tokens, size) for size in sizes}
        hidden = self._random(last, self._shape.head.inputs)

        def work() -> None:
            for weights in self._weights:
                torch.nn.functional.linear(inputs[weights.shape[1]], weights)
            torch.nn.functional.linear(hidden, self._head)

        return work

    def between(self, rows: int, tokens: int) -> Callable[[], None]:
        """Norms, gates, residuals and rotations of all layers, as a Llama has them and others have alike."""
        shape = self._shape
        hidden, inner = self._random(rows, tokens, shape.hidden), self._random(rows, tokens, shape.inner)
        heads = self._random(rows, shape.heads + shape.kv_heads, tokens, shape.head_dim)
        weight, turn = self._random(shape.hidden), self._random(tokens, shape.head_dim)

        def work() -> None:
            for _ in range(shape.layers):
                for _ in range(2):
                    wide = hidden.to(torch.float32)
                    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
                    torch.add(hidden, weight * normed.to(self._dtype))
                torch.mul(torch.nn.functional.silu(inner), inner)
                half, other = heads.chunk(2, dim=-1)
                torch.add(heads * turn, torch.cat([-other, half], dim=-1) * turn)

        return work

    def attention(self, point: Point) -> Callable[[], None]:
        """Attention of a decode step in all layers, the cache included."""
        shape, rows = self._shape, point.batch
        query = self._random(rows, shape.heads, 1, shape.head_dim)
        fresh = self._random(rows, shape.kv_heads, 1, shape.head_dim)
        caches = [(self._keys(point), self._keys(point)) for _ in range(shape.layers)]

        def work() -> None:
            for keys, values in caches:
                # As the cache of `generate` grows.
                self._attention(query, torch.cat([keys, fresh], dim=2), torch.cat([values, fresh], dim=2))

        return work

    def prefill_attention(self, tokens: int) -> Callable[[], None]:
        """Attention from all tokens of a prompt to those before, in all layers."""
        shape = self._shape
        query = self._random(1, shape.heads, tokens, shape.head_dim)
        keys = self._keys(Point(1, tokens))

        def work() -> None:
            for _ in range(shape.layers):
                self._attention(query, keys, keys)

        return work

    def _keys(self, point: Point) -> Tensor:
        return self._random(point.batch, self._shape.kv_heads, point.context, self._shape.head_dim)

    def _attention(self, query: Tensor, keys: Tensor, values: Tensor) -> None:
        module = torch.nn.Module()
        module.num_key_value_groups = self._shape.heads // self._shape.kv_heads  # type: ignore[assignment]
        module.is_causal = True  # type: ignore[assignment]
        self._attend(module, query, keys, values, None, dropout=0.0, scaling=self._shape.head_dim**-0.5)

    def _random(self, *size: int) -> Tensor:
        return torch.randn(*size, device=self._device).to(self._dtype)


def in_layers(shape: Shape) -> list[Linear]:
    """The matrices one layer after the other, as a step comes by them."""
    most = max(shape.linears.values())
    return [
        linear
        for layer in range(most)
        for linear, count in shape.linears.items()
        for _ in range(count * (layer + 1) // most - count * layer // most)
    ]


def ghost(config: Any) -> Any:
    """A configuration with as many layers and next to nothing in them; the vocabulary is whole."""
    small = copy.deepcopy(config)
    for name, value in GHOST.items():
        if hasattr(small.get_text_config(), name):
            setattr(small.get_text_config(), name, value)
    return small


def forward(model: Any, point: Point) -> Callable[[], None]:
    """A decode step of the model itself, after a context of random tokens; it may be done again and again."""
    size, device = model.get_input_embeddings().weight.shape[0], model.device
    with torch.inference_mode():
        ids = torch.randint(size, (point.batch, point.context), device=device)
        kept = model(ids, use_cache=True, logits_to_keep=1).past_key_values
    token = ids[:, -1:]

    def work() -> None:
        model(token, past_key_values=kept, use_cache=True, logits_to_keep=1)
        kept.crop(-1)

    return work


def reading(model: Any, tokens: int) -> Callable[[], None]:
    """The model's step that reads one prompt of random tokens, up to the last one's logits."""
    size, device = model.get_input_embeddings().weight.shape[0], model.device
    ids = torch.randint(size, (1, tokens), device=device)

    def work() -> None:
        model(ids, use_cache=True, logits_to_keep=1)

    return work
