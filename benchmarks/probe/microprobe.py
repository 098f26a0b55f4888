"""Which numbers of rows a linear layer treats alike, by inputs that bring out the order of its sums."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import linear

from sortition.benchmarks.probe.findings import RowClasses

ROWS: Final = (1, 2, 3, 4, 8, 16, 32, 64)
"""Where libraries change their kernels."""

MOST_OUTPUTS: Final = 8192
"""Of a layer that is tried: kernels go by inputs and rows, and a vocabulary's layer would take long."""

LARGE: Final = 1e3
SMALL: Final = 1e-2
"""Pairs of inputs cancel to so much of what they are. On SmolLM2's down_proj in bfloat16, 135 times as many
outputs differ as with normal inputs, with which other layers look invariant that are not."""


def row_classes(operation: str, inputs: int, outputs: int, dtype: torch.dtype) -> RowClasses:
    """Numbers of rows with the same bits for all of 64 vectors.

    Args:
        operation: name, for the report.
        inputs, outputs: width of the layer.
        dtype: of weights and vectors.
    """
    generator = torch.Generator().manual_seed(0)
    outputs = min(outputs, MOST_OUTPUTS)
    vectors = _cancelling(generator, ROWS[-1], inputs).to(dtype)
    weight = torch.randn(outputs, inputs, generator=generator) / inputs**0.5
    weight[:, 1::2] = weight[:, 0 : inputs - 1 : 2]
    weight = weight.to(dtype)
    made = {rows: _in_batches(vectors, weight, rows) for rows in ROWS}
    classes: list[list[int]] = []
    for rows in ROWS:
        home = next((each for each in classes if torch.equal(made[each[0]], made[rows])), None)
        if home is None:
            classes.append([rows])
        else:
            home.append(rows)
    return RowClasses(
        operation=operation,
        inputs=inputs,
        outputs=outputs,
        classes=tuple(map(tuple, classes)),
        differing=tuple(float((made[each[0]] != made[1]).double().mean()) for each in classes),
    )


def _cancelling(generator: torch.Generator, rows: int, inputs: int) -> Tensor:
    values = torch.randn(rows, inputs, generator=generator) * LARGE
    values[:, 1::2] = -values[:, 0 : inputs - 1 : 2]
    return values + torch.randn(rows, inputs, generator=generator) * SMALL


def _in_batches(vectors: Tensor, weight: Tensor, rows: int) -> Tensor:
    """All vectors, in batches of so many; the last batch begins early enough to be full."""
    made = vectors.new_empty(len(vectors), len(weight))
    for begin in range(0, len(vectors), rows):
        begin = min(begin, len(vectors) - rows)
        made[begin : begin + rows] = linear(vectors[begin : begin + rows], weight)
    return made
