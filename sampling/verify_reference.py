"""The definition of a verification: one row, by the rules of `verify_rules.py`, nothing done for speed.

Laws are those of `reference.py`, of masses that are integers; chances below 2^-35 of the greatest count as
nothing, and what the rules make of laws is rounded to the same masses again. What is compared or drawn from
are products and quotients of these as float64, in an order that is fixed; sums are of integers. So a chance
is off by 2^-35 of the greatest at most for each token, and everything has the same bits everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortition.sampling import noise, reference
from sortition.sampling.draw import NO_TOKEN, Request
from sortition.sampling.numerics import MASS_BITS, Float32, exp, log
from sortition.sampling.reference import Context, Law, Tokens
from sortition.sampling.verification import (
    BLOCK,
    COUPLED,
    DISTINCT,
    GREEDY,
    TYPICAL,
    TYPICAL_SHARE,
    TYPICAL_SPREAD,
    Verification,
    Verified,
)
from sortition.sampling.verify_rules import FLOATS, ROOT, Weights, block, first_accepted, first_equal, walk


def verify_rows(targets: Tensor, drafts: Tensor | None, asked: Verification) -> Verified:
    """Verify each row's drafts; see `Verifier`."""
    rows, nodes = asked.tokens.shape
    found = Verified(
        accepted=torch.zeros(rows, dtype=torch.int64),
        tokens=torch.full((rows, nodes + 1), NO_TOKEN),
        logprobs=torch.full((rows, nodes + 1), -torch.inf),
        path=torch.full((rows, nodes), NO_TOKEN),
        flags=torch.zeros(rows, dtype=torch.uint8),
    )
    for number in range(rows):
        row = Row(
            number,
            targets[number].float().numpy(),
            None if drafts is None else drafts[number].float().numpy(),
            asked,
        )
        path, last = row.verified()
        laws = [row.target(node) for node in (ROOT, *path)]
        tokens = [*(row.token(node) for node in path), last]
        found.accepted[number] = len(path)
        found.tokens[number, : len(tokens)] = torch.tensor(tokens)
        found.path[number, : len(path)] = torch.tensor(path, dtype=torch.int64)
        found.logprobs[number, : len(tokens)] = torch.tensor(
            [float(law.logprob(token)) for law, token in zip(laws, tokens, strict=True)]
        )
        found.flags[number] = laws[-1].flags
    return found


@dataclass(frozen=True, eq=False)
class Row:
    """One row of a verification.

    Attributes:
        number: of it.
        targets: float32 [nodes + 1, vocabulary], logits.
        drafts: float32 [nodes, vocabulary of the drafter], logits, None for drafts without a law.
        asked: of all rows.
    """

    number: int
    targets: NDArray[np.float32]
    drafts: NDArray[np.float32] | None
    asked: Verification

    def verified(self) -> tuple[list[int], int]:
        """The nodes that stand, and the token after them."""
        if self.asked.methods[self.number] == BLOCK:
            return self._block()
        return walk(self._children, self._judge)

    def token(self, node: int) -> int:
        """The draft of a node."""
        return int(self.asked.tokens[self.number, node])

    def target(self, node: int) -> Law:
        """The target's law after a node."""
        place = self._place(node)
        context = Context.of(self.asked.targets, place)
        return reference.law_of(self.targets[node + 1], self.asked.targets.columns.parameters[place], context)

    def _draft(self, node: int) -> Weights:
        """The law that a node's draft was drawn from."""
        width = self._width
        if self.drafts is None or self.asked.drafts is None:
            return Weights.of((np.arange(width) == self.token(node)).astype(np.float64))
        place = self._place(int(self.asked.parents[self.number, node]))
        context = Context.of(self.asked.drafts, place)
        law = reference.law_of(self.drafts[node], self.asked.drafts.columns.parameters[place], context)
        return weights(law, width)

    def _place(self, node: int) -> int:
        return self.number * len(self.targets) + node + 1

    @property
    def _width(self) -> int:
        """Of all laws; a token that one of the models does not have has no chance there."""
        widths = [int(logits.shape[1]) for logits in (self.targets, self.drafts) if logits is not None]
        return max(*widths, int(self.asked.tokens[self.number].max(initial=0)) + 1)

    def _children(self, node: int) -> list[int]:
        parents, tokens = self.asked.parents[self.number], self.asked.tokens[self.number]
        return [int(child) for child in np.flatnonzero((parents == node) & (tokens >= 0))]

    def _judge(self, node: int, below: Sequence[int]) -> tuple[int | None, int]:
        """Which of a node's children stands, if any, by its number; and the token to draw if none does."""
        law, place = self.target(node), self._place(node)
        if law.flags:
            return None, NO_TOKEN
        candidates = [self.token(child) for child in below]
        method = self.asked.methods[self.number]
        if method == GREEDY:
            token = int(law.tokens[np.argmax(law.d)])
        elif method == COUPLED:
            token = drawn(law.tokens, law.d, self.asked.targets, place)
        elif method == TYPICAL:
            return first_typical(law, candidates), drawn(law.tokens, law.d, self.asked.targets, place)
        else:
            target = weights(law, self._width)
            number, left = first_accepted(
                target,
                candidates,
                [self._draft(child) for child in below],
                bool(method == DISTINCT),
                lambda number: self._coin(place, number),
                FLOATS,
            )
            return number, self._drawn(law, target, left, place)
        return first_equal(token, candidates), token

    def _block(self) -> tuple[list[int], int]:
        """The same for a chain as a whole, as far as its drafts can be judged."""
        laws, drafts = [self.target(ROOT)], list[Weights]()
        while not laws[-1].flags and (below := self._children(len(drafts) - 1)):
            draft = self._draft(*below)
            if not draft.total:
                break
            drafts.append(draft)
            laws.append(self.target(*below))
        targets = [weights(law, self._width) for law in laws]
        tokens = [self.token(node) for node in range(len(drafts))]
        accepted, left = block(
            targets, drafts, tokens, lambda number: self._coin(self._place(number - 1), 0), FLOATS
        )
        place = self._place(accepted - 1)
        return list(range(accepted)), self._drawn(laws[accepted], targets[accepted], left, place)

    def _coin(self, place: int, number: int) -> float:
        position = int(self.asked.targets.positions[place])
        return noise.coin(int(self.asked.coins[self.number]), position, number)

    def _drawn(self, law: Law, target: Weights, left: Weights, place: int) -> int:
        """A token from what is left of a law."""
        if left is target:
            return drawn(law.tokens, law.d, self.asked.targets, place)
        tokens = np.flatnonzero(left.mass)
        parts = (left.mass[tokens] * 2.0**-MASS_BITS).astype(np.float32)
        return drawn(tokens, log(parts), self.asked.targets, place)


def weights(law: Law, width: int) -> Weights:
    """The masses of a law, all 0 if it is flagged."""
    mass = np.zeros(width)
    if not law.flags:
        mass[law.tokens] = law.mass
    return Weights.of(mass)


def drawn(tokens: Tokens, d: Float32, request: Request, place: int) -> int:
    """The token that wins with these ln of chances, if there is one."""
    if not len(tokens):
        return NO_TOKEN
    words = noise.words(int(request.seeds[place]), int(request.positions[place]), request.stream, tokens)
    return int(tokens[np.argmax(d + noise.gumbel(words))])


def first_typical(law: Law, candidates: Sequence[int]) -> int | None:
    """Which candidate is likely enough for so spread a law: p > min(epsilon, delta e^-H).

    Cai et al., Medusa, ICML 2024, section 2.3.1.
    """
    spread = float(exp(np.minimum(-law.entropy(), np.float32(0.0))[None])[0])
    least = min(TYPICAL_SHARE, TYPICAL_SPREAD * spread) * float(law.mass.sum())
    likely = set(law.tokens[law.mass > least].tolist())
    return next((number for number, token in enumerate(candidates) if token in likely), None)
