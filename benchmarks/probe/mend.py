"""Interventions: one kind of operation made independent of the batch, while a block runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from sortition.benchmarks.probe import alone_attention
from sortition.benchmarks.probe.bisect import ATTENTION, BEFORE


@contextmanager
def mended(model: Any, kinds: Collection[str]) -> Iterator[None]:
    """Operations of these kinds (last parts of names) read every vector by itself, attention every query."""
    with ExitStack() as stack:
        if ATTENTION in kinds:
            stack.enter_context(attention(model, alone_attention.NAME))
        for name, module in model.named_modules():
            if name.rpartition(".")[2] in kinds and not list(module.children()):
                stack.enter_context(_each_row_alone(module))
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
def _each_row_alone(module: torch.nn.Module) -> Iterator[None]:
    """Every vector goes through the module as a batch of one, whatever stands beside it."""
    forward = module.forward

    def alone(values: Tensor) -> Tensor:
        rows = values.reshape(-1, 1, 1, values.shape[-1])
        made = torch.cat([forward(row) for row in rows])
        return made.reshape(*values.shape[:-1], made.shape[-1])

    with replaced_forward(module, alone):
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
