"""The first read of the logits: the greatest of each tile, and whether anything in it is NaN or +inf."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from sortition.sampling.kernels.layout import SKIPPED
from sortition.sampling.kernels.numerics import OUT
from sortition.sampling.kernels.rows import (
    FLAG_INFINITE,
    FLAG_NAN,
    NO_SUCH_TOKEN,
    OUT_KEY,
    best_of,
    better_of,
    chunks_of,
    row_of,
    tile_of,
    treatment_of,
)


@triton.jit(do_not_specialize=["capacity"])
def scan(
    logits, row_stride, stride, width, treatments,
    plain, words, masked, divisors, edited, edited_values, edited_count, capacity,
    best, best_token, flags,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows, tiles + 1): the last program of a row reads what was edited.

    Args:
        logits, row_stride, stride, width, plain to edited_count: see `rows.py`; one row after another.
        treatments: int32 [rows], see `layout.py`; None for none.
        words, capacity: of a row of `plain`, and of `edited` and `edited_values`.
        best, best_token, flags: int32 [rows, tiles + 1], the greatest value of each tile as `ordered` has it;
            the lowest token that has it; `NAN` and `INFINITE`.
    """
    at, program, programs = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    treatment = treatment_of(at, treatments)
    if (treatment & SKIPPED) != 0:
        return
    row = row_of(
        at, logits, row_stride, stride, width,
        plain, words, masked, divisors, edited, edited_values, edited_count, capacity, treatment,
    )  # fmt: skip
    chunks, all_chunks = chunks_of(row, BLOCK)
    key = tl.full([], OUT_KEY, tl.int32)
    token = tl.full([], NO_SUCH_TOKEN, tl.int32)
    wrong = tl.zeros([], tl.int32)
    for chunk in range(program, tl.where(program < chunks, program + 1, all_chunks)):
        tokens, values, eligible = tile_of(row, chunk, BLOCK)
        is_nan = values != values
        some_key, some_token = best_of(values, tokens, eligible & (values == values))
        key, token = better_of(key, token, some_key, some_token)
        wrong |= tl.max(tl.where(is_nan, FLAG_NAN, 0), axis=0)
        wrong |= tl.max(tl.where(values == -OUT, FLAG_INFINITE, 0), axis=0)
    to = at * programs + program
    tl.store(best + to, key)
    tl.store(best_token + to, token)
    tl.store(flags + to, wrong)
