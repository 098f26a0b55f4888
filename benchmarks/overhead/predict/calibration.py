"""What this machine can do: bytes and operations a second, measured with matrices of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

SIDE: Final = 2048
MATRICES: Final = 24
"""Of `SIDE` times `SIDE` numbers: 200 MB in 16 bits, more than any cache holds."""

ROWS: Final = 256
"""Of the product that measures operations; more rows are no faster on the machines that were tried."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured, in one dtype.

    Attributes:
        bandwidth: bytes of weights a second, in products with one row.
        operations: floating-point operations a second, in products with many rows.
        copying: bytes a second, read and written, as a cache is that grows.
    """

    bandwidth: float
    operations: float
    copying: float


def calibrate(dtype: torch.dtype, device: torch.device, rounds: int = 5) -> Calibration:
    """Measure it; takes a few seconds."""
    matrices = [torch.randn(SIDE, SIDE, device=device).to(dtype) for _ in range(MATRICES)]
    row = torch.randn(1, SIDE, device=device).to(dtype)
    rows = torch.randn(ROWS, SIDE, device=device).to(dtype)

    def vectors() -> None:
        for matrix in matrices:
            torch.nn.functional.linear(row, matrix)

    def products() -> None:
        for matrix in matrices[:4]:
            torch.nn.functional.linear(rows, matrix)

    def copies() -> None:
        for matrix in matrices:
            matrix.clone()

    seconds = in_turns({"vectors": vectors, "products": products, "copies": copies}, device, rounds)
    nbytes = MATRICES * matrices[0].nbytes
    return Calibration(
        bandwidth=nbytes / seconds["vectors"],
        operations=2 * 4 * ROWS * SIDE**2 / seconds["products"],
        copying=2 * nbytes / seconds["copies"],
    )


def in_turns(
    contenders: Mapping[str, Callable[[], object]], device: torch.device, rounds: int
) -> dict[str, float]:
    """Median seconds of each, one call of each a round, after one that does not count.

    On a CPU these are seconds of the processor in this thread; on a GPU, seconds until it is done.
    """
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    clock = time.thread_time if device.type == "cpu" else time.perf_counter
    with torch.inference_mode():
        for work in contenders.values():
            work()
        for _ in range(rounds):
            for name, work in contenders.items():
                _wait(device)
                begun = clock()
                work()
                _wait(device)
                taken[name].append(clock() - begun)
    return {name: float(np.median(values)) for name, values in taken.items()}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
