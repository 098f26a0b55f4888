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


@triton.jit
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
def judge(logits, row_stride, stride, width, bits, words, judgement, BLOCK: tl.constexpr):
    """Grid (rows, tiles): whether eligible logits are above -inf, and whether any is NaN."""
    row = tl.program_id(0)
    values, eligible = masked_tile(row, logits, row_stride, stride, width, bits, words, BLOCK)
    hope = tl.max(tl.where(eligible & (values > OUT), HOPE, 0), axis=0)
    is_nan = tl.max(tl.where(eligible & (values != values), IS_NAN, 0), axis=0)
    tl.atomic_or(judgement + row, hope | is_nan)


@triton.jit
def apply(logits, row_stride, stride, width, bits, words, judgement, row_facts, into, BLOCK: tl.constexpr):
    """Grid (rows, tiles): logits as `Constraint.apply` has them, into [rows, width]."""
    row = tl.program_id(0)
    values, eligible = masked_tile(row, logits, row_stride, stride, width, bits, words, BLOCK)
    hopeless = (tl.load(judgement + row) != HOPE) & ((tl.load(row_facts + row) & IS_FREE) == 0)
    values = tl.where(eligible, tl.where(hopeless, 0.0, values), OUT)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(into + row.to(tl.int64) * width + tokens, values, mask=tokens < width)


@triton.jit
def masked_tile(row, logits, row_stride, stride, width, bits, words, BLOCK: tl.constexpr):
    """One tile of logits as float32, and which of them may come next."""
    wide = row.to(tl.int64)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    offset = wide * row_stride + tokens.to(tl.int64) * stride
    values = tl.load(logits + offset, mask=tokens < width, other=OUT).to(tl.float32)
    word = tl.load(bits + wide * words + (tokens >> 5), mask=tokens < width, other=0)
    return values, ((word >> (tokens & 31)) & 1) != 0
