"""What a backend may draw and how often it does, seen through the public `Sampler`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortition.sampling.sampler import Sampler

ALPHA: Final = 1e-6
"""How often a statistical test of a right sampler would fail, were its seeds not fixed."""

DRAWS: Final = {"reference": 10_000}
"""Draws per goodness of fit, where 200,000 take minutes."""


def draws(backend: str) -> int:
    return DRAWS.get(backend, 200_000)


def laws(
    backend: str, logits: Tensor, *parts: Any, state: Any = None, **options: Any
) -> list[dict[int, float]]:
    """The tokens that each row may draw, by id, with their probabilities."""
    sampler = Sampler(*parts, top=logits.shape[1], backend=backend, **options)
    draw = sampler(logits, sampler.start(len(logits), seed=0) if state is None else state)
    assert draw.processed.top_tokens is not None and draw.processed.top_logprobs is not None
    found = []
    for row, tokens in enumerate(draw.processed.top_tokens.tolist()):
        chances = draw.processed.top_logprobs[row].double().exp().tolist()
        law = {token: chance for token, chance in zip(tokens, chances, strict=True) if token >= 0}
        assert len(law) == draw.kept[row], "kept counts what can be drawn"
        assert int(draw.tokens[row]) in law or not law
        found.append(dict(sorted(law.items())))
    return found


def kept(backend: str, logits: Tensor, *parts: Any, **options: Any) -> list[list[int]]:
    """The tokens that each row may draw."""
    return [list(law) for law in laws(backend, logits, *parts, **options)]


def drawn(
    backend: str, row: Tensor, count: int, *parts: Any, seed: int = 0, over: str = "seeds", **options: Any
) -> NDArray[np.int64]:
    """Tokens drawn from the same logits [vocabulary] at as many seeds, or positions of one seed, in a row."""
    chunk = min(count, 5_000)
    sampler = Sampler(*parts, backend=backend, **options)
    tokens = []
    for first in range(0, count, chunk):
        size = min(chunk, count - first)
        if over == "seeds":
            state = sampler.start(size, seed=seed + first)
        else:
            state = sampler.start(size, seed=[seed] * size)
            state = replace(state, positions=np.arange(first, first + size))
        tokens.append(sampler(row.expand(size, -1), state).tokens.numpy())
    return np.concatenate(tokens)


def softmax(logits: Tensor | Sequence[float]) -> NDArray[np.float64]:
    return np.asarray(torch.as_tensor(logits).double().softmax(-1).numpy())


def fit(tokens: NDArray[np.int64], chances: NDArray[np.float64]) -> float:
    """The chance that draws from this law fit it worse (Pearson's chi-square, bins of 5 or more expected)."""
    counts = np.bincount(tokens, minlength=len(chances))
    assert len(counts) == len(chances), "an id beyond the vocabulary"
    assert not counts[chances == 0].any(), "a token without a chance was drawn"
    order = np.argsort(chances, kind="stable")[int((chances == 0).sum()) :]
    expected, observed = (chances / chances.sum() * len(tokens))[order], counts[order]
    # The least likely tokens share bins.
    bins = np.unique(np.floor(np.cumsum(expected) / 5), return_inverse=True)[1]
    expected, observed = np.bincount(bins, expected), np.bincount(bins, observed)
    if len(expected) < 2:
        return 1.0
    statistic = float(((observed - expected) ** 2 / expected).sum())
    half = torch.tensor([(len(expected) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
