"""A verification of drafts: what it is asked for, and what comes out; the nouns that its backends share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortition.sampling.draw import Draw, Request

Method: TypeAlias = Literal["coupled", "greedy", "token", "distinct", "block", "typical"]
"""How a row's drafts are judged; see `verify`."""

METHODS: Final[tuple[Method, ...]] = ("coupled", "greedy", "token", "distinct", "block", "typical")
COUPLED, GREEDY, TOKEN, DISTINCT, BLOCK, TYPICAL = range(len(METHODS))
"""Their codes."""

USE_LAWS: Final = (TOKEN, DISTINCT, BLOCK)
"""Methods that look at the laws of drafts."""

TYPICAL_SHARE: Final = 0.09
TYPICAL_SPREAD: Final = 0.3
"""Epsilon and delta of typical acceptance, as Medusa's code has them: delta is the root of epsilon."""


@dataclass(frozen=True, eq=False)
class Verified:
    """What becomes of each row's drafts; all of it on the device of the target's logits.

    It unpacks into the first two: ``accepted, tokens = so.verify(...)``.

    Attributes:
        accepted: int64 [rows], how many drafts stand.
        tokens: int64 [rows, drafts + 1], these drafts and the token drawn after them, then -1.
        logprobs: float32 [rows, drafts + 1], ln of each token's probability under the target's law, as of a
            `Draw`; then -inf.
        path: int64 [rows, drafts], which drafts stand, then -1; in a chain the first ones.
        flags: uint8 [rows], of the law after the drafts that stand, as of a `Draw`: where it is not 0, no
            token was drawn there but what the sampler's policy says.
    """

    accepted: Tensor
    tokens: Tensor
    logprobs: Tensor
    path: Tensor
    flags: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.accepted, self.tokens))

    def to(self, device: torch.device) -> Verified:
        """The same on another device."""
        parts = self.accepted, self.tokens, self.logprobs, self.path, self.flags
        return Verified(*(part.to(device) for part in parts))

    def with_last(self, rows: Tensor, draw: Draw) -> Verified:
        """The same, but in these rows [n] the last token is what a draw of all rows has."""
        at = rows, self.accepted[rows]
        tokens = self.tokens.index_put(at, draw.tokens[rows])
        logprobs = self.logprobs.index_put(at, draw.logprobs[rows])
        return replace(self, tokens=tokens, logprobs=logprobs)


@dataclass(frozen=True, eq=False)
class Verification:
    """What a backend is asked for: a batch of rows, everything on the host.

    A row's drafts are nodes of a tree. Its places are where a token is drawn: first the tree's root, and then
    after each node. Requests have the places of a row one after another.

    Attributes:
        tokens: int64 [rows, nodes]; a negative one is no draft, and what hangs on it is none, either.
        parents: int64 [rows, nodes], nodes before them, `ROOT` for drafts of the next token.
        methods: int8 [rows], codes; `BLOCK` only where each node's parent is the one before.
        coins: int64 [rows], seeds of coins.
        targets: for each place, rows * (nodes + 1).
        drafts: the same for the drafter, whose nodes are drawn where their parents lead; None for drafts
            without a law, which are certain.
    """

    tokens: NDArray[np.int64]
    parents: NDArray[np.int64]
    methods: NDArray[np.int8]
    coins: NDArray[np.int64]
    targets: Request
    drafts: Request | None = None


Verifier: TypeAlias = Callable[[Tensor, Tensor | None, Verification], Verified]
"""Logits [rows, nodes + 1, vocabulary] of the target, [rows, nodes, vocabulary] of the drafter -> outcome.

A row whose law is flagged where it stops has no token there.
"""
