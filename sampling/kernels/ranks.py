"""The order of a row's tokens, and its law: which of them filters leave, and the d that these have then.

Tokens are ordered by d, the greatest first, and by id where d are equal. A token's *rank* is a number with
the same order: the bits of -d, which are ordered as -d is, and below them the id. Most filters keep the first
tokens, so what they leave is told by one rank, that of the last token.

A *turn* is where d changes between filters, and the order may with it: a temperature makes some d equal, and
`typical` keeps the tokens that are nearest to a centre, among which the likeliest need not be. So a law is
told by what is kept before each of its turns, the turns, and the last rank after them. Of a row, `turns` are
float64, which has every rank exactly: how many there are, and for each of them

    last        the last rank before it
    centre      of d
    reach       the last rank by distance from the centre
    peak        the greatest d that is left, which becomes 0
    divisor     a temperature
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from sortition.sampling.kernels.numerics import tempered
from sortition.sampling.numerics import WIDEST

TOKEN_BITS = tl.constexpr((WIDEST - 1).bit_length())
"""Of a rank, for the id."""
TOKENS = tl.constexpr((1 << TOKEN_BITS.value) - 1)
LAST = tl.constexpr((0x7F7FFFFF << TOKEN_BITS.value) | TOKENS.value)
"""No rank is greater."""

TURN = tl.constexpr(5)
"""Numbers of a turn."""
TURNS = tl.constexpr(2)
"""Of a row, at most: `typical`, and a temperature before it or after it."""
TURNS_SIZE = tl.constexpr(1 + TURNS.value * TURN.value)
"""Numbers of a row's turns."""


@triton.jit
def rank_of(d, tokens):
    """The rank of tokens."""
    distance = d.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return (distance.to(tl.int64) << TOKEN_BITS) | tokens


@triton.jit
def d_at(rank):
    """The d of a rank; 0 has no sign."""
    return 0.0 - (rank >> TOKEN_BITS).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def distance_rank_of(d, tokens, centre):
    """The rank of tokens by how far they are from a centre."""
    return rank_of(tl.abs(d - centre), tokens)


@triton.jit
def add_turn(turns, number, last, centre, reach, peak, divisor):
    """Write down a row's next turn."""
    turn = turns + 1 + number * TURN
    tl.store(turn, last.to(tl.float64))
    tl.store(turn + 1, centre.to(tl.float64))
    tl.store(turn + 2, reach.to(tl.float64))
    tl.store(turn + 3, peak.to(tl.float64))
    tl.store(turn + 4, divisor.to(tl.float64))
    tl.debug_barrier()


@triton.jit
def turned(d, tokens, inside, turns, count):
    """d after a row's first turns, and which tokens are left then.

    Args:
        d, tokens: before the first turn.
        inside: which of them are candidates.
        turns: of the row.
        count: how many of them.
    """
    for number in range(count):
        turn = turns + 1 + number * TURN
        inside &= rank_of(d, tokens) <= tl.load(turn).to(tl.int64)
        centre, reach = tl.load(turn + 1).to(tl.float32), tl.load(turn + 2).to(tl.int64)
        inside &= distance_rank_of(d, tokens, centre) <= reach
        d = tempered(d - tl.load(turn + 3).to(tl.float32), tl.load(turn + 4).to(tl.float32))
    return d, inside
