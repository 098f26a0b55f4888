"""What may come next as bits of tokens, or applied to logits: `Constraint.allowed` and `Constraint.apply`."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from sortition.sampling.kernels.advance import IS_FREE
from sortition.sampling.kernels.numerics import OUT

HOPE = tl.constexpr(1)
"""Of a row: an eligible logit is above -inf."""
IS_NAN = tl.constexpr(2)
"""Of a row: an eligible logit is NaN."""


# What grammars and requests bring must not make another kernel.
@triton.jit(do_not_specialize=["vocabulary", "token_words", "end_tokens_size"])
def mask(
    token_class, vocabulary, token_words, row_grammar, row_classes, row_facts, row_slots,
    end_tokens, end_tokens_size, width, bits, words, judgement,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows, tiles).

    Args:
        token_class, vocabulary: of `Arena`.
        token_words, row_grammar, row_classes, row_facts, end_tokens, end_tokens_size: as of `advance`.
        row_slots: int64 [rows].
        width: of logits.
        bits, words: int32 [rows, words], a bit for each token that may come next; written.
        judgement: int32 [rows], set to 0 for `judge`.
    """
    row = tl.program_id(0)
    wide = row.to(tl.int64)
    facts = tl.load(row_facts + row)
    grammar = tl.maximum(tl.load(row_grammar + row), 0).to(tl.int64)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = (tokens < vocabulary) & (tokens < width)
    unit = tl.load(token_class + grammar * vocabulary + tokens, mask=known, other=0)
    word = tl.load(row_classes + wide * token_words + (unit >> 5), mask=known, other=0)
    eligible = (word >> (unit & 31)) & 1
    # Whoever has no grammar may also end.
    eligible = tl.where((facts & IS_FREE) != 0, 1, eligible)
    may_end = tl.where(facts != 0, 1, 0)
    ends = end_tokens + tl.load(row_slots + row) * end_tokens_size
    for at in range(end_tokens_size):
        eligible = tl.where(tokens == tl.load(ends + at), may_end, eligible)
    packed = tl.sum(eligible.reshape(BLOCK // 32, 32) << tl.arange(0, 32)[None, :], axis=1)
    to = tl.program_id(1) * (BLOCK // 32) + tl.arange(0, BLOCK // 32)
    tl.store(bits + wide * words + to, packed, mask=to < words)
    tl.store(judgement + row, 0)


@triton.jit
def judge(logits, row_stride, stride, width, bits, words, judgement, row_facts, BLOCK: tl.constexpr):
    """Grid (rows, tiles): whether eligible logits are above -inf, and whether any is NaN."""
    row = tl.program_id(0)
    if (tl.load(row_facts + row) & IS_FREE) != 0:
        return
    tokens, bit = bits_of(row, width, bits, words, BLOCK)
    at = logits + row.to(tl.int64) * row_stride + tokens.to(tl.int64) * stride
    eligible = bit != 0
    values = tl.load(at, mask=tokens < width, other=OUT).to(tl.float32)
    hope = tl.max(tl.where(eligible & (values > OUT), HOPE, 0), axis=0)
    is_nan = tl.max(tl.where(eligible & (values != values), IS_NAN, 0), axis=0)
    tl.atomic_or(judgement + row, hope | is_nan)


@triton.jit
def apply(logits, row_stride, stride, width, bits, words, judgement, row_facts, BLOCK: tl.constexpr):
    """Grid (rows, tiles): logits become what `Constraint.apply` makes of them; those of free rows stay."""
    row = tl.program_id(0)
    if (tl.load(row_facts + row) & IS_FREE) != 0:
        return
    tokens, bit = bits_of(row, width, bits, words, BLOCK)
    at = logits + row.to(tl.int64) * row_stride + tokens.to(tl.int64) * stride
    # What is eligible stays, unless nothing of the row can be drawn as it is.
    changes = tl.where(tl.load(judgement + row) != HOPE, 1, 1 - bit) != 0
    tl.store(at, tl.where(bit != 0, 0.0, OUT), mask=(tokens < width) & changes)


@triton.jit
def bits_of(row, width, bits, words, BLOCK: tl.constexpr):
    """One tile of tokens, and 1 for each of them that may come next."""
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(bits + row.to(tl.int64) * words + (tokens >> 5), mask=tokens < width, other=0)
    return tokens, (word >> (tokens & 31)) & 1
