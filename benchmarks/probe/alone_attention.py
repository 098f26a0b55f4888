"""Attention in which every query is by itself, as an implementation that transformers can be set to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, Final

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

NAME: Final = "each_query_alone"


_ROWS: Final[list[Callable[[], int] | None]] = [None]
"""The last one says which row of a batch is of interest; None for all."""


@contextmanager
def for_row(row: Callable[[], int] | None) -> Iterator[None]:
    """While entered, only queries of one row are by themselves, which is asked at each pass."""
    _ROWS.append(row)
    try:
        yield
    finally:
        _ROWS.pop()


def each_query_alone(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float = 1.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention of each query to the keys that it may see, as if there were nothing else.

    Args:
        module: not used.
        query: [rows, heads, columns, width].
        key, value: [rows, heads or fewer, seen columns, width].
        attention_mask: [rows, 1, columns, seen columns], 0 where a key may be seen.
        scaling: of products.
        options: dropout and the like, of no effect here.

    Returns:
        [rows, columns, heads, width], and no weights.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    watched = _ROWS[-1]
    if watched is None or len(query) == 1:
        rows, made = range(len(query)), torch.empty_like(query.transpose(1, 2))
    else:
        rows, made = range(watched(), watched() + 1), _together(query, key, value, attention_mask, scaling)
    for row, column in product(rows, range(query.shape[2])):
        seen = attention_mask[row % len(attention_mask), 0, column] == 0
        keys, values = key[row][:, seen].contiguous(), value[row][:, seen].contiguous()
        products = query[row, :, column, None].contiguous() @ keys.transpose(1, 2) * scaling
        weights = products.softmax(-1, dtype=torch.float32).to(value.dtype)
        made[row, column] = (weights @ values)[:, 0]
    return made, None


def _together(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """The usual attention, for rows that nobody looks at."""
    products = query @ key.transpose(2, 3) * scaling + mask
    weights = products.softmax(-1, dtype=torch.float32).to(value.dtype)
    return (weights @ value).transpose(1, 2).contiguous()


AttentionInterface.register(NAME, each_query_alone)
AttentionMaskInterface.register(NAME, eager_mask)
