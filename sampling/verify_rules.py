"""The rules by which drafts are accepted, in whatever numbers laws are made of: floats, or fractions.

A drafter has proposed tokens, each drawn from a law of its own. The rules decide which of them stand and from
which law the next token is drawn, so that what comes out has the law of the target, as if there had been no
drafts. Enumerating their outcomes in fractions proves it of this very code.

A coin is a number from (0, 1), all equally likely. Every coin is compared once, as ``coin * q < p``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sortition.sampling.numerics import MASS_BITS

Numbers = NDArray[Any]
"""float64, or objects."""

Coin = Callable[[int], Any]
"""Number of a candidate, or of a draft in its chain -> its coin."""

ROOT: Final = -1
"""The node where drafts begin."""


@dataclass(frozen=True, eq=False)
class Weights:
    """A law: the chance of each token is its mass over the total.

    Attributes:
        mass: numbers [vocabulary]; all 0 for what is no law.
        total: the sum of them.
    """

    mass: Numbers
    total: Any

    @classmethod
    def of(cls, mass: Numbers) -> Weights:
        """The law of these masses."""
        return cls(mass, mass.sum())

    def without(self, tokens: Sequence[int]) -> Weights:
        """The law given that it is none of these tokens."""
        mass = self.mass.copy()
        mass[list(tokens)] = 0
        return Weights.of(mass)


class Arithmetic(NamedTuple):
    """What rounds, where it is floats that are computed with.

    Attributes:
        masses: numbers of which the greatest is 1, as masses of a law.
        sum: numbers whose sum is 1 at most.
    """

    masses: Callable[[Numbers], Numbers]
    sum: Callable[[Numbers], Any]


SUM_BITS: Final = 50
"""Of a number's fraction in a sum, which is one of integers: so it is the same in any order of its terms."""

FLOATS: Final = Arithmetic(
    masses=lambda parts: np.asarray(np.rint(parts * 2.0**MASS_BITS)),
    sum=lambda parts: float(np.rint(parts * 2.0**SUM_BITS).sum()) * 2.0**-SUM_BITS,
)
"""Of masses that are integers below 2^53."""


def accepts(coin: Any, p: Any, q: Any) -> bool:
    """Whether a draft stands that the target has with p, and that was drawn with q, on whatever scale."""
    return bool(q > 0 and coin * q < p)


def excess(target: Weights, draft: Weights, share: Any = 1) -> Numbers:
    """max(share p - q, 0) of each token, times both totals."""
    return np.asarray(np.maximum(share * (target.mass * draft.total) - draft.mass * target.total, 0))


def residual(target: Weights, draft: Weights, arithmetic: Arithmetic, share: Any = 1) -> Weights:
    """The law of what the target has more than its share of the draft; its own where that is nothing."""
    more = excess(target, draft, share)
    most = more.max()
    return Weights.of(arithmetic.masses(more / most)) if most > 0 else target


def first_equal(token: int, candidates: Sequence[int]) -> int | None:
    """Which candidate is the token that was drawn from the target, whatever they were made from.

    With noise that drafter and target share, the chance is between (1 - TV) / (1 + TV) and 1 - TV, where TV
    is the total variation distance of their laws: Daliri et al., Coupling without Communication and
    Drafter-Invariant Speculative Decoding, arXiv 2408.07978.
    """
    return next((number for number, candidate in enumerate(candidates) if candidate == token), None)


def first_accepted(
    target: Weights,
    candidates: Sequence[int],
    drafts: Sequence[Weights],
    distinct: bool,
    coin: Coin,
    arithmetic: Arithmetic,
) -> tuple[int | None, Weights]:
    """Recursive rejection: which candidate for one position stands, and from which law to draw if none does.

    One candidate: Leviathan et al., Fast Inference from Transformers via Speculative Decoding, ICML 2023,
    algorithm 1; Chen et al., arXiv 2302.01318, algorithm 2. Several: Miao et al., SpecInfer, ASPLOS 2024,
    algorithm 3; drawn without replacement: Jeon et al., Recursive Speculative Decoding, arXiv 2402.14160.

    Args:
        target: the law.
        candidates: tokens, in the order in which they were drawn.
        drafts: the law that each was drawn from, as it was for the first of them.
        distinct: whether they were drawn without replacement, and not each for itself.
        coin: by the candidate's number.
        arithmetic: of the laws.
    """
    law = target
    for number, (token, draft) in enumerate(zip(candidates, drafts, strict=True)):
        if distinct:
            draft = draft.without(candidates[:number])
        if accepts(coin(number), law.mass[token] * draft.total, draft.mass[token] * law.total):
            return number, law
        law = residual(law, draft, arithmetic)
    return None, law


def block(
    targets: Sequence[Weights],
    drafts: Sequence[Weights],
    tokens: Sequence[int],
    coin: Coin,
    arithmetic: Arithmetic,
) -> tuple[int, Weights]:
    """Block verification: how many drafts stand, and from which law to draw what follows.

    Sun et al., Block Verification Accelerates Speculative Decoding, ICLR 2025, algorithm 2. No rule that
    looks at chains has more accepted. A draft that is refused counts in what becomes of those before it.

    Args:
        targets: the laws before each draft and after the last.
        drafts: the laws that drafts were drawn from.
        tokens: the drafts.
        coin: by the draft's number.
        arithmetic: of the laws.
    """
    accepted, share, shares = 0, 1, [1]
    for number, token in enumerate(tokens):
        target, draft = targets[number], drafts[number]
        share = carried(share, target.mass[token] * draft.total, draft.mass[token] * target.total)
        shares.append(share)
        if number + 1 == len(tokens):
            stands = accepts(coin(number), share, 1)
        else:
            stands = block_stands(coin(number), share, targets[number + 1], drafts[number + 1], arithmetic)
        if stands:
            accepted = number + 1
    if accepted == len(tokens):
        return accepted, targets[accepted]
    return accepted, residual(targets[accepted], drafts[accepted], arithmetic, shares[accepted])


def carried(share: Any, p: Any, q: Any) -> Any:
    """How much of a chain's chance under its drafter the target takes, from that of the chain before."""
    return min(share * p / q, 1) if q > 0 else 0


def block_stands(coin: Any, share: Any, target: Weights, draft: Weights, arithmetic: Arithmetic) -> bool:
    """Whether a chain stands that more drafts follow, by the laws of the next of them."""
    more = arithmetic.sum(excess(target, draft, share) / (target.total * draft.total))
    return accepts(coin, more, more + (1 - share)) if share < 1 else True


def walk(
    children: Callable[[int], Sequence[int]], rule: Callable[[int, Sequence[int]], tuple[int | None, Any]]
) -> tuple[list[int], Any]:
    """The nodes of a tree that stand, one below the other, and what the rule says where it goes no further.

    Args:
        children: of a node.
        rule: a node and its children -> which of these stands, by its number, and whatever else.
    """
    path: list[int] = []
    node = ROOT
    while True:
        below = children(node)
        number, rest = rule(node, below)
        if number is None:
            return path, rest
        node = below[number]
        path.append(node)
