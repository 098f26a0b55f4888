"""The first tier: a step by what is printed about the device. A lower bound of its time, and no more.

Source: Williams, Waterman and Patterson, Roofline: an insightful visual performance model, CACM 2009.
"""

from __future__ import annotations

from typing import Final

from sortition.benchmarks.overhead.predict.hardware import Hardware
from sortition.benchmarks.overhead.predict.prediction import (
    ATTENTION,
    BANDWIDTH,
    COMPUTE,
    Point,
    Prediction,
)
from sortition.benchmarks.overhead.predict.shape import BYTES, Shape

SLOWER: Final = 3.7
"""How many times as long a step has taken, at most, in published measurements of models of 7 and 8 billion
parameters: 1.06 with CUDA graphs on an H100, 1.23 on an L4, 1.29 on an A100, 3.7 without graphs on an H100.
What this tier leaves out, launching above all, weighs the more the faster the device is."""


def decode(shape: Shape, dtype: str, hardware: Hardware, point: Point) -> Prediction:
    """A decode step: every weight is read once, and all keys and values."""
    reading = BYTES[dtype] * shape.multiplied / hardware.bandwidth
    computing = 2 * shape.multiplied * point.batch / hardware.operations[dtype]
    cache = BYTES[dtype] * shape.kv_numbers(point.batch * point.context) / hardware.bandwidth
    matrices = BANDWIDTH if reading >= computing else COMPUTE
    terms = {matrices: 1000 * max(reading, computing), ATTENTION: 1000 * cache}
    return Prediction("specification", point, terms)


def prefill(shape: Shape, dtype: str, hardware: Hardware, tokens: int) -> Prediction:
    """The step that reads one prompt, after which the first token is there."""
    reading = BYTES[dtype] * shape.multiplied / hardware.bandwidth
    inner = shape.multiplied - shape.head.weights
    computing = 2 * (inner * tokens + shape.head.weights) / hardware.operations[dtype]
    # Half of all pairs of tokens: none looks ahead.
    attention = shape.attention_operations(tokens, tokens) / 2 / hardware.operations[dtype]
    matrices = BANDWIDTH if reading >= computing else COMPUTE
    terms = {matrices: 1000 * max(reading, computing), ATTENTION: 1000 * attention}
    return Prediction("specification", Point(1, tokens), terms)


def fits(shape: Shape, dtype: str, hardware: Hardware, point: Point) -> bool:
    """Whether weights, keys and values have room in the device's memory."""
    numbers = shape.parameters + shape.kv_numbers(point.batch * point.context)
    return BYTES[dtype] * numbers <= hardware.memory
