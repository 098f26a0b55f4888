"""Interventions: one kind of operation made independent of the batch, while a block runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from sortition.benchmarks.probe import alone_attention
from sortition.benchmarks.probe.bisect import ATTENTION, BEFORE


@contextmanager
def mended(model: Any, kinds: Collection[str], row: Callable[[], int] | None = None) -> Iterator[None]:
    """Operations of these kinds (last parts of names) read every vector by itself, attention every query.

    Args:
        model: of transformers.
        kinds: of operations.
        row: the only row of a batch that needs it, asked at each pass; None for all rows, which takes longer.
    """
    with ExitStack() as stack:
        if ATTENTION in kinds:
            stack.enter_context(alone_attention.for_row(row))
            stack.enter_context(attention(model, alone_attention.NAME))
        for name, module in model.named_modules():
            if name.rpartition(".")[2] in kinds and not list(module.children()):
                stack.enter_context(_each_vector_alone(module, row))
        yield


def can_mend(kind: str) -> bool:
    """Whether it is an operation, and not what happens between two."""
    return not kind.startswith(BEFORE)


@contextmanager
def attention(model: Any, implementation: str) -> Iterator[None]:
    """A model of transformers with another implementation of attention."""
    before = model.config._attn_implementation
    model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def _each_vector_alone(module: torch.nn.Module, row: Callable[[], int] | None) -> Iterator[None]:
    """Every vector goes through the module as a batch of one, whatever stands beside it."""
    forward = module.forward

    def alone(values: Tensor) -> Tensor:
        vectors = values.reshape(-1, 1, 1, values.shape[-1])
        made = torch.cat([forward(vector) for vector in vectors])
        return made.reshape(*values.shape[:-1], made.shape[-1])

    def alone_in_row(values: Tensor) -> Tensor:
        at = 0 if row is None else row()
        if row is None or values.ndim != 3 or at >= len(values) or len(values) == 1:
            return alone(values)
        made: Tensor = forward(values)
        return torch.cat([made[:at], alone(values[at : at + 1]), made[at + 1 :]])

    with replaced_forward(module, alone_in_row):
        yield


@contextmanager
def replaced_forward(module: torch.nn.Module, forward: Any) -> Iterator[None]:
    """A module that computes something else; hooks on it still run."""
    before = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if before is None:
            del module.__dict__["forward"]
        else:
            module.forward = before
