"""Rows that go on to somebody else's sampler with one token left, whatever their logits were.

A row that cannot be drawn from draws one of what is +inf, if that is what is wrong with it; else of whatever
its grammar left above -inf, or of the ends of its text where it has no grammar: each as likely as the other.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from sortition.sampling.kernels.layout import SKIPPED
from sortition.sampling.kernels.numerics import OUT, gumbel, words_from
from sortition.sampling.kernels.rows import (
    FLAG_INFINITE,
    LEAST_KEY,
    NO_SUCH_TOKEN,
    best_of,
    better_of,
)


@triton.jit(do_not_specialize=["stream", "end_tokens_size"])
def elect(
    logits, row_stride, stride, width, treatments, slots, seeds, positions, stream,
    constrained, end_tokens, end_tokens_size, tokens, flags, counts,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows).

    Args:
        logits to stream: as of `edit` and `select`; with treatments.
        constrained: bool [slots], whether the logits have a grammar's mask.
        end_tokens, end_tokens_size: int [slots, n]; negative ids are padding.
        tokens: int64 [rows], changed where a row is flagged.
        flags: uint8 [rows], what `finish` has left.
        counts: int64 [2], added to: rows that were drawn, and rows that were flagged.
    """
    row = tl.program_id(0)
    if (tl.load(treatments + row) & SKIPPED) != 0:
        return
    flag = tl.load(flags + row).to(tl.int32)
    one = tl.full([], 1, tl.int64)
    tl.atomic_add(counts, one)
    if flag == 0:
        return
    tl.atomic_add(counts + 1, one)
    slot = tl.load(slots + row)
    seed, position = tl.load(seeds + slot), tl.load(positions + row).to(tl.uint32)
    ends = end_tokens + slot * end_tokens_size
    has_grammar = tl.load(constrained + slot) != 0
    certain = (flag & FLAG_INFINITE) != 0
    token = tl.full([], NO_SUCH_TOKEN, tl.int32)
    tries = 0
    # What edits made +inf cannot be seen here, so that there may be none of it.
    while (token == NO_SUCH_TOKEN) & (tries < 2):
        key = tl.full([], LEAST_KEY, tl.int32)
        for chunk in range(tl.cdiv(width, BLOCK)):
            some = chunk * BLOCK + tl.arange(0, BLOCK)
            at = logits + row.to(tl.int64) * row_stride + some.to(tl.int64) * stride
            values = tl.load(at, mask=some < width, other=OUT).to(tl.float32)
            eligible = tl.where(certain, values == -OUT, values != OUT)
            if (certain == 0) & (has_grammar == 0):
                is_end = tl.zeros_like(some)
                for end in range(end_tokens_size):
                    is_end += (some == tl.load(ends + end)).to(tl.int32)
                eligible = (is_end != 0) & (some < width)
            noise = gumbel(words_from(chunk * BLOCK, seed, position, stream, BLOCK))
            some_key, some_token = best_of(noise, some, eligible)
            key, token = better_of(key, token, some_key, some_token)
        certain = certain & (tries < 0)
        tries += 1
    tl.store(tokens + row, token.to(tl.int64))


@triton.jit
def leave(logits, row_stride, stride, width, treatments, tokens, BLOCK: tl.constexpr):
    """Grid (rows, tiles): logits become 0 at the token that the row draws, and -inf everywhere else."""
    row = tl.program_id(0)
    if (tl.load(treatments + row) & SKIPPED) != 0:
        return
    token = tl.load(tokens + row)
    some = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = logits + row.to(tl.int64) * row_stride + some.to(tl.int64) * stride
    tl.store(at, tl.where(some == token, 0.0, OUT), mask=some < width)
