"""Attention in which every query is by itself, as an implementation that transformers can be set to."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

NAME: Final = "each_query_alone"


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
    made = torch.empty_like(query.transpose(1, 2))
    for row, column in torch.cartesian_prod(*map(torch.arange, made.shape[:2])).tolist():
        seen = attention_mask[row % len(attention_mask), 0, column] == 0
        keys, values = key[row][:, seen].contiguous(), value[row][:, seen].contiguous()
        products = query[row, :, column, None].contiguous() @ keys.transpose(1, 2) * scaling
        weights = products.softmax(-1, dtype=torch.float32).to(value.dtype)
        made[row, column] = (weights @ values)[:, 0]
    return made, None


AttentionInterface.register(NAME, each_query_alone)
AttentionMaskInterface.register(NAME, eager_mask)
