"""Whole numbers that callers give: ids, counts and the like, of Python, numpy or torch."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor


def whole(name: str, value: Any) -> int:
    """The value as an integer.

    Raises:
        TypeError: it is none.
    """
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is a whole number, not {value!r}")
    return operator.index(value)


def whole_ids(name: str, ids: Tensor) -> Tensor:
    """Ids as int64 on the host.

    Raises:
        TypeError: they are of a type that is not of whole numbers.
    """
    if ids.numel() and (ids.is_floating_point() or ids.dtype in (torch.bool, torch.complex64)):
        raise TypeError(f"{name} are whole numbers, not {ids.dtype}")
    return ids.to("cpu", torch.int64)
