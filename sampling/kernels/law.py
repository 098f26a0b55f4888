"""The law that a row was drawn from, token by token: for reports of the likeliest."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from sortition.sampling.kernels.layout import GREEDY, REAL, TEMPERATURE, WHOLE
from sortition.sampling.kernels.numerics import OUT, log_total, shifted, tempered, unordered
from sortition.sampling.kernels.ranks import TURNS_SIZE, rank_of, turned
from sortition.sampling.kernels.rows import chunks_of, row_of, tile_of, top_of
from sortition.sampling.kernels.select import mode_of, temperature_of


@triton.jit(do_not_specialize=["capacity"])
def law(
    logits, row_stride, stride, width, treatments, whole, real, slots,
    plain, words, masked, divisors, edited, edited_values, edited_count, capacity, touched,
    best, best_token, flags, turns, lasts, sums,
    distances, log_totals,
    PROGRAMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows, tiles + 1), as of `scan`; after the draw of every row.

    Args:
        logits to flags: as of `finish`, but treatments are those that it has written.
        touched: int32 [rows, words], a bit for each token that was edited, as `edit` has left it.
        turns, lasts, sums: float64 [rows, `TURNS_SIZE`] and two int64 [rows], as `finish` has left them.
        distances: float32 [rows, width], results: d of each token of the law, -inf for all others.
        log_totals: float64 [rows], results: ln of the law's mass, in probability.
        PROGRAMS: a power of two, at least tiles + 1.
    """
    at, program, programs = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    wide = at.to(tl.int64)
    treatment = tl.load(treatments + at)
    slot = tl.load(slots + at)
    reals = real + slot * REAL
    mode = mode_of(whole + slot * WHOLE, treatment)
    top_key, _, _ = top_of(at, best, best_token, flags, programs, PROGRAMS)
    top = unordered(top_key)
    temperature = tl.where(mode == GREEDY, 1.0, temperature_of(reals + TEMPERATURE, treatment))
    row_turns = turns + wide * TURNS_SIZE
    turn_count = tl.load(row_turns).to(tl.int32)
    last = tl.load(lasts + at)
    row = row_of(
        at, logits, row_stride, stride, width,
        plain, words, masked, divisors, edited, edited_values, edited_count, capacity, treatment,
    )  # fmt: skip
    chunks, all_chunks = chunks_of(row, BLOCK)
    for chunk in range(program, tl.where(program < chunks, program + 1, all_chunks)):
        tokens, values, eligible = tile_of(row, chunk, BLOCK)
        d = tempered(shifted(tl.where(eligible, values, top), top), temperature)
        d, inside = turned(d, tokens, eligible, row_turns, turn_count)
        d = tl.where(inside & (rank_of(d, tokens) <= last), d, OUT)
        # What was edited is in the last program's list, and nowhere else.
        there = (chunk - chunks) * BLOCK + tl.arange(0, BLOCK) < tl.load(edited_count + at)
        if chunk < chunks:
            word = tl.load(touched + wide * words + (tokens >> 5), mask=tokens < width, other=0)
            there = (tokens < width) & (((word >> (tokens & 31)) & 1) == 0)
        tl.store(distances + wide * width + tokens, d, mask=there)
    if program == 0:
        total = tl.maximum(tl.load(sums + at), 1)
        tl.store(log_totals + at, log_total(total))
