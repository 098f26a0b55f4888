"""What is drawn from on a GPU where it is measured: logits, requests, and everything on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from sortition.benchmarks.device_timing import DEVICE
from sortition.benchmarks.samplers import SPREAD
from sortition.sampling import device
from sortition.sampling.columns import Columns
from sortition.sampling.draw import Draw, Request
from sortition.sampling.parameters import Parameters


def some_logits(rows: int, width: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Random ones; rows get sharper from the first to the last."""
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    scale = torch.linspace(0.6 * SPREAD, 1.4 * SPREAD, rows, device=DEVICE)[:, None]
    return (torch.randn(rows, width, device=DEVICE, generator=generator) * scale).to(dtype)


def prepared(
    logits: Tensor, parameters: Sequence[Parameters], request: Request | None = None
) -> Callable[[], Draw]:
    """A draw with everything on the device, as an engine would have it."""
    request = request or bare(parameters)
    settings = device.Settings.of(request.columns, logits.shape[1], logits.device)
    inputs = device.Inputs.of(request, logits.device)
    rows, width = logits.shape
    room = device.Workspace(rows, width, device.needed(settings, inputs, width), logits.device)
    return lambda: device.launch(logits, settings, inputs, room)


def bare(parameters: Sequence[Parameters]) -> Request:
    """A request of rows that have generated nothing."""
    rows = len(parameters)
    nothing = np.zeros((rows, 0), np.int64)
    return Request(
        columns=Columns.of(parameters),
        seeds=np.arange(rows),
        positions=np.zeros(rows, np.int64),
        prompt=nothing,
        output=nothing,
        end_tokens=np.full((rows, 1), 2),
    )
