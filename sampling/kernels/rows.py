"""How kernels read a row: its logits as a tile of tokens, those that were edited from a list.

A row is a tuple of what belongs to it alone:

    logits      the row's first logit; any floating type
    stride      between logits, in numbers
    width       how many there are
    plain       int32 words, a bit for each token that is eligible and not edited
    masked      whether `plain` has to be looked at; without, all tokens are eligible
    divisor     by which logits are divided that are not edited one by one; 1 for a temperature elsewhere
    edited      int32, the tokens that edits have changed, each once
    values      float32, their logits afterwards
    count       how many
    treatment   what becomes of its logits before anything else; see `layout.py`
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from sortition.sampling.kernels.layout import AS_LIKELY, ONLY_INFINITE, WITHOUT_EDITS, WITHOUT_NAN
from sortition.sampling.kernels.numerics import OUT, ordered

LEAST_KEY = tl.constexpr(-0x80000000)
OUT_KEY = tl.constexpr(-0x7F800001)
"""-inf as `ordered` has it."""
NO_SUCH_TOKEN = tl.constexpr(0x7FFFFFFF)
FLAG_EMPTY = tl.constexpr(1)
FLAG_NAN = tl.constexpr(2)
FLAG_INFINITE = tl.constexpr(4)


@triton.jit
def row_of(
    row, logits, row_stride, stride, width,
    plain, words, masked, divisors, edited, values, counts, capacity, treatment,
):  # fmt: skip
    """The tuple of one row of a batch."""
    wide = row.to(tl.int64)
    return (
        logits + wide * row_stride,
        stride,
        width,
        plain + wide * words,
        tl.load(masked + row),
        tl.load(divisors + row),
        edited + wide * capacity,
        values + wide * capacity,
        tl.load(counts + row),
        treatment,
    )


@triton.jit
def treatment_of(row, treatments):
    """The treatment of one row, none where there are no treatments."""
    if treatments is None:
        return tl.zeros([], tl.int32)
    else:
        return tl.load(treatments + row)


@triton.jit
def treated(values, treatment):
    """Logits, float32, after a treatment."""
    if treatment != 0:
        if (treatment & WITHOUT_NAN) != 0:
            values = tl.where(values != values, OUT, values)
        if (treatment & ONLY_INFINITE) != 0:
            values = tl.where(values == -OUT, 0.0, OUT)
        if (treatment & WITHOUT_EDITS) != 0:
            # NaN is not below +inf, either.
            values = tl.where(tl.abs(values) < -OUT, values, OUT)
        if (treatment & AS_LIKELY) != 0:
            values = tl.zeros_like(values)
    return values


@triton.jit
def divided(values, divisor):
    """Logits after a temperature that stands among the edits."""
    if divisor != 1.0:
        values = tl.div_rn(values, divisor)
    return values


@triton.jit
def chunks_of(row, BLOCK: tl.constexpr):
    """How many tiles a row has, without and with those of edited tokens."""
    _, _, width, _, _, _, _, _, count, _ = row
    plain = tl.cdiv(width, BLOCK)
    return plain, plain + tl.cdiv(count, BLOCK)


@triton.jit
def tile_of(row, chunk, BLOCK: tl.constexpr):
    """One tile: tokens int32, values float32, and which of them are eligible, that is, above -inf.

    A zero has no sign.
    """
    logits, stride, width, plain, masked, divisor, edited, edited_values, count, treatment = row
    chunks = tl.cdiv(width, BLOCK)
    if chunk < chunks:
        tokens = chunk * BLOCK + tl.arange(0, BLOCK)
        inside = tokens < width
        values = tl.load(logits + tokens.to(tl.int64) * stride, mask=inside, other=OUT).to(tl.float32)
        values = tl.where(inside, divided(treated(values, treatment), divisor), OUT)
        if masked != 0:
            word = tl.load(plain + (tokens >> 5), mask=inside, other=0)
            values = tl.where(((word >> (tokens & 31)) & 1) != 0, values, OUT)
    else:
        at = (chunk - chunks) * BLOCK + tl.arange(0, BLOCK)
        tokens = tl.load(edited + at, mask=at < count, other=0)
        values = tl.load(edited_values + at, mask=at < count, other=OUT)
    values = values + 0.0
    return tokens, values, values != OUT


@triton.jit
def top_of(row, best, tokens, flags, programs, PROGRAMS: tl.constexpr):
    """What `scan` says of a row: its greatest value as `ordered` has it, its lowest token, and the flags."""
    at = tl.arange(0, PROGRAMS)
    there = at < programs
    first = row * programs
    keys = tl.load(best + first + at, mask=there, other=LEAST_KEY)
    top = tl.max(keys, axis=0)
    some = tl.load(tokens + first + at, mask=there, other=NO_SUCH_TOKEN)
    token = tl.min(tl.where(keys == top, some, NO_SUCH_TOKEN), axis=0)
    wrong = tl.load(flags + first + at, mask=there, other=0)
    is_nan = tl.max(wrong & FLAG_NAN, axis=0)
    is_infinite = tl.max(wrong & FLAG_INFINITE, axis=0)
    is_empty = tl.where((top == OUT_KEY) & (is_nan == 0), FLAG_EMPTY, 0)
    return top, token, is_nan | is_infinite | is_empty


@triton.jit
def best_of(scores, tokens, eligible):
    """The greatest of scores as `ordered` has it, and the lowest token that has it."""
    keys = tl.where(eligible, ordered(scores), LEAST_KEY)
    best = tl.max(keys, axis=0)
    return best, tl.min(tl.where(eligible & (keys == best), tokens, NO_SUCH_TOKEN), axis=0)


@triton.jit
def better_of(key, token, other_key, other_token):
    """The greater of two scores, or the one of the lower token."""
    other = (other_key > key) | ((other_key == key) & (other_token < token))
    return tl.where(other, other_key, key), tl.where(other, other_token, token)
