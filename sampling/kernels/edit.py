"""Which tokens a row may draw as the model has them, and the few whose logits are changed, as a list.

Only grammars and lists of allowed tokens say something about every token, and they are bits. All other edits
are about tokens that somebody names: biases, phrases, end tokens, history. Each of these tokens is put in the
list once, in which each of the row's edits is applied to it in turn; the caller's logits stay as they are.

A token's place in the list is the number of tokens in it that are less, which a bitmap of the list tells. So
counting a history needs room for as many numbers as it has tokens, not for the whole vocabulary.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from sortition.sampling.kernels.layout import (
    ALLOWED,
    AS_LIKELY,
    BIAS_BEGIN,
    BIAS_END,
    BINS,
    EDIT_TEMPERATURE,
    FREQUENCY_PENALTY,
    FREQUENCY_SEES_PROMPT,
    MIN_TOKENS,
    PENALTY_WINDOW,
    PHRASES_BEGIN,
    PHRASES_END,
    PHRASES_SEE_PROMPT,
    PRESENCE_PENALTY,
    PRESENCE_SEES_PROMPT,
    REAL,
    REPETITION_PENALTY,
    REPETITION_SEES_PROMPT,
    SKIPPED,
    SPARES_END_TOKENS,
    STAGE_ALLOWED_TOKENS,
    STAGE_BAD_WORDS,
    STAGE_END,
    STAGE_FREQUENCY_PENALTY,
    STAGE_GRAMMAR,
    STAGE_LOGIT_BIAS,
    STAGE_MIN_TOKENS,
    STAGE_PRESENCE_PENALTY,
    STAGE_REPETITION_PENALTY,
    STAGE_TEMPERATURE,
    WHOLE,
    WITHOUT_EDITS,
)
from sortition.sampling.kernels.numerics import OUT, counted
from sortition.sampling.kernels.rows import divided, treated, treatment_of

MARK = tl.constexpr(0)
"""Put tokens into the bitmap of the list."""
PLACE = tl.constexpr(1)
"""Write them into the list, with nothing known about them."""
TELL = tl.constexpr(2)
"""Write down what edits have to know about them."""

BAD_WORD = tl.constexpr(1)
END_TOKEN = tl.constexpr(2)


# What changes from step to step must not make another kernel; drafts may be a part of something.
@triton.jit(
    do_not_specialize=["history_size", "drafts_size", "end_tokens_size", "capacity"],
    do_not_specialize_on_alignment=["drafts", "local"],
)
def edit(
    logits, row_stride, stride, width, treatments,
    whole, real, stages, stages_size, slots, positions,
    mask, allowed,
    history, history_size, lengths, prompt_lengths, drafts, drafts_size, local, end_tokens, end_tokens_size,
    bias_tokens, bias_values, phrase_spans, phrase_tokens,
    touched, places, biases, outs, in_prompt, in_output,
    plain, words, masked, divisors, edited, edited_values, edited_count, capacity, bins,
    MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows).

    Args:
        logits, row_stride, stride, width: see `rows.py`.
        treatments: int32 [rows], see `layout.py`; None for none.
        whole, real: see `layout.py`.
        stages, stages_size: int8 [slots, n], the edits of each slot in its order, then `END`.
        slots: int64 [rows], which slot each row is of.
        positions: int64 [rows].
        mask: int32 [rows, words], a bit for each token that the grammar allows; only with `MASKED`.
        allowed: int32 [some, words], the same for lists of allowed tokens.
        history, history_size: int32 [slots, n], prompt and output as one text, from the left.
        lengths, prompt_lengths: int32 [slots], of the text and of its prompt.
        drafts, drafts_size: int32 [rows, n], the last drafts before each row, at its right end; with fewer
            than come before it, they go on in the rows before.
        local: int32 [rows], how many drafts come before a row.
        end_tokens, end_tokens_size: int [slots, n]; negative ids are padding.
        bias_tokens, bias_values, phrase_spans, phrase_tokens: as in `Columns`, ids as int32.
        touched, places: int32 [rows, words], of any content.
        biases, outs, in_prompt, in_output: float32 and three int32 [rows, capacity], of any content.
        plain to capacity: see `rows.py`, what the other kernels read; all of it is written.
        bins: int32 [rows, `BINS`], set to 0 for `select`.
    """
    row = tl.program_id(0).to(tl.int64)
    treatment = treatment_of(row, treatments)
    if (treatment & SKIPPED) != 0:
        return
    slot = tl.load(slots + row)
    settings = whole + slot * WHOLE
    program = stages + slot * stages_size
    tl.store(bins + row * BINS + tl.arange(0, BINS), tl.zeros([BINS], tl.int32))

    names, penalises = tl.zeros([], tl.int1), tl.zeros([], tl.int1)
    stage = 0
    code = tl.load(program)
    while code != STAGE_END:
        names |= (code != STAGE_GRAMMAR) & (code != STAGE_ALLOWED_TOKENS) & (code != STAGE_TEMPERATURE)
        penalises |= code == STAGE_REPETITION_PENALTY
        penalises |= (code == STAGE_PRESENCE_PENALTY) | (code == STAGE_FREQUENCY_PENALTY)
        stage += 1
        code = tl.load(program + stage)

    divisor = tl.load(real + slot * REAL + EDIT_TEMPERATURE).to(tl.float32)
    divisor = tl.where((treatment & AS_LIKELY) != 0, 1.0, divisor)
    tl.store(divisors + row, divisor)
    edits = (treatment & (WITHOUT_EDITS | AS_LIKELY)) == 0
    names &= edits
    allowed_row = tl.where(edits, tl.load(settings + ALLOWED), -1)
    row_plain, row_touched, row_places = plain + row * words, touched + row * words, places + row * words
    for first in range(0, words, BLOCK):
        at = first + tl.arange(0, BLOCK)
        there = at < words
        word = tl.full([BLOCK], -1, tl.int32)
        if MASKED:
            word = tl.load(mask + row * words + at, mask=there, other=0)
        if allowed_row >= 0:
            word &= tl.load(allowed + allowed_row * words + at, mask=there, other=0)
        tl.store(row_plain + at, word, mask=there)
        tl.store(row_touched + at, tl.zeros([BLOCK], tl.int32), mask=there)
    tl.store(masked + row, (names | (allowed_row >= 0) | MASKED).to(tl.int32))

    count = tl.zeros([], tl.int32)
    if names:
        before = tl.load(local + row)
        text = (
            history + slot * history_size, tl.load(lengths + slot), tl.load(prompt_lengths + slot),
            drafts + (row + 1) * drafts_size - before, before,
        )  # fmt: skip
        named = (
            settings, width, penalises, text, end_tokens + slot * end_tokens_size, end_tokens_size,
            bias_tokens, bias_values, phrase_spans, phrase_tokens,
        )  # fmt: skip
        start = row * capacity
        into = (
            row_touched, row_places, edited + start,
            biases + start, outs + start, in_prompt + start, in_output + start,
        )  # fmt: skip
        tl.debug_barrier()
        visit(named, into, MARK, BLOCK)
        tl.debug_barrier()
        for first in range(0, words, BLOCK):
            at = first + tl.arange(0, BLOCK)
            there = at < words
            word = tl.load(row_touched + at, mask=there, other=0)
            marks = counted(word.to(tl.uint32, bitcast=True))
            tl.store(row_places + at, count + tl.cumsum(marks, axis=0) - marks, mask=there)
            tl.store(row_plain + at, tl.load(row_plain + at, mask=there, other=0) & ~word, mask=there)
            count += tl.sum(marks, axis=0)
        tl.debug_barrier()
        visit(named, into, PLACE, BLOCK)
        tl.debug_barrier()
        visit(named, into, TELL, BLOCK)
        tl.debug_barrier()
        early = tl.load(positions + row) < tl.load(settings + MIN_TOKENS)
        for first in range(0, count, BLOCK):
            at = first + tl.arange(0, BLOCK)
            there = at < count
            token = tl.load(edited + start + at, mask=there, other=0)
            offset = row * row_stride + token.to(tl.int64) * stride
            value = treated(tl.load(logits + offset, mask=there, other=0.0).to(tl.float32), treatment)
            bias = tl.load(biases + start + at, mask=there, other=0.0)
            out = tl.load(outs + start + at, mask=there, other=0)
            prompt = tl.load(in_prompt + start + at, mask=there, other=0)
            output = tl.load(in_output + start + at, mask=there, other=0)
            stage = 0
            code = tl.load(program)
            while code != STAGE_END:
                if code == STAGE_GRAMMAR:
                    if MASKED:
                        value = tl.where(bit_of(mask + row * words, token, there), value, OUT)
                elif code == STAGE_ALLOWED_TOKENS:
                    value = tl.where(bit_of(allowed + allowed_row * words, token, there), value, OUT)
                elif code == STAGE_BAD_WORDS:
                    value = tl.where((out & BAD_WORD) != 0, OUT, value)
                elif code == STAGE_MIN_TOKENS:
                    value = tl.where(((out & END_TOKEN) != 0) & early, OUT, value)
                elif code == STAGE_LOGIT_BIAS:
                    value = tl.where(bias == OUT, OUT, value + bias)
                elif code == STAGE_TEMPERATURE:
                    value = divided(value, divisor)
                else:
                    value = penalised(code, value, prompt, output, settings, real + slot * REAL)
                stage += 1
                code = tl.load(program + stage)
            tl.store(edited_values + start + at, value, mask=there)
    tl.store(edited_count + row, count)


@triton.jit
def visit(named, into, PASS: tl.constexpr, BLOCK: tl.constexpr):
    """Go through all tokens that a row's edits name; one may come more than once."""
    (
        settings, width, penalises, text, ends, ends_size,
        bias_tokens, bias_values, phrase_spans, phrase_tokens,
    ) = named  # fmt: skip
    _, _, _, biases, outs, in_prompt, in_output = into

    end = tl.load(settings + BIAS_END).to(tl.int32)
    for first in range(tl.load(settings + BIAS_BEGIN).to(tl.int32), end, BLOCK):
        at = first + tl.arange(0, BLOCK)
        token = tl.load(bias_tokens + at, mask=at < end, other=-1)
        named_here, place = visited(token, width, into, PASS)
        if PASS == TELL:
            bias = tl.load(bias_values + at, mask=at < end, other=0.0)
            tl.store(biases + place, bias, mask=named_here)

    end = tl.load(settings + PHRASES_END).to(tl.int32)
    for first in range(tl.load(settings + PHRASES_BEGIN).to(tl.int32), end, BLOCK):
        at = first + tl.arange(0, BLOCK)
        phrase_end = tl.load(phrase_spans + 2 * at + 1, mask=at < end, other=0)
        token = tl.load(phrase_tokens + phrase_end - 1, mask=at < end, other=-1)
        named_here, place = visited(token, width, into, PASS)
        if PASS == TELL:
            phrase_begin = tl.load(phrase_spans + 2 * at, mask=at < end, other=0)
            completes = completed(phrase_begin, phrase_end, token, named, BLOCK)
            tl.atomic_or(outs + place, BAD_WORD, mask=named_here & completes)

    for first in range(0, ends_size, BLOCK):
        at = first + tl.arange(0, BLOCK)
        token = tl.load(ends + at, mask=at < ends_size, other=-1).to(tl.int32)
        named_here, place = visited(token, width, into, PASS)
        if PASS == TELL:
            tl.atomic_or(outs + place, END_TOKEN, mask=named_here)

    if penalises:
        _, committed, prompt_length, _, drafted = text
        length = committed + drafted
        seen = tl.maximum(length - tl.load(settings + PENALTY_WINDOW), 0).to(tl.int32)
        for first in range(seen, length, BLOCK):
            at = first + tl.arange(0, BLOCK)
            token = token_at(text, at)
            named_here, place = visited(token, width, into, PASS)
            if PASS == TELL:
                tl.atomic_add(in_prompt + place, 1, mask=named_here & (at < prompt_length))
                tl.atomic_add(in_output + place, 1, mask=named_here & (at >= prompt_length))


@triton.jit
def visited(token, width, into, PASS: tl.constexpr):
    """Which of these are tokens at all, and their places in the list."""
    touched, places, edited, biases, outs, in_prompt, in_output = into
    there = (token >= 0) & (token < width)
    word = tl.where(there, token >> 5, 0)
    bit = 1 << (token & 31)
    if PASS == MARK:
        tl.atomic_or(touched + word, bit, mask=there)
        place = word
    else:
        less = tl.load(touched + word, mask=there, other=0) & (bit - 1)
        place = tl.load(places + word, mask=there, other=0) + counted(less.to(tl.uint32, bitcast=True))
    if PASS == PLACE:
        nothing = tl.zeros_like(token)
        tl.store(edited + place, token, mask=there)
        # Adding -0 changes no number.
        tl.store(biases + place, -tl.zeros_like(token).to(tl.float32), mask=there)
        tl.store(outs + place, nothing, mask=there)
        tl.store(in_prompt + place, nothing, mask=there)
        tl.store(in_output + place, nothing, mask=there)
    return there, place


@triton.jit
def completed(begin, end, last, named, BLOCK: tl.constexpr):
    """Which phrases their last token would complete."""
    settings, _, _, text, ends, ends_size, _, _, _, phrase_tokens = named
    _, committed, prompt_length, _, drafted = text
    length = committed + drafted
    seen = tl.where(tl.load(settings + PHRASES_SEE_PROMPT) != 0, 0, prompt_length)
    completes = end > begin
    for back in range(1, tl.max(end - begin, axis=0)):
        at = end - 1 - back
        known = tl.where(length - back >= seen, token_at(text, length - back), -1)
        token = tl.load(phrase_tokens + at, mask=at >= begin, other=0)
        completes &= (at < begin) | (token == known)
    if tl.load(settings + SPARES_END_TOKENS) != 0:
        for at in range(ends_size):
            completes &= (end - begin > 1) | (last != tl.load(ends + at))
    return completes


@triton.jit
def token_at(text, at):
    """The tokens at places in a row's text, drafts included; -1 where there are none."""
    history, committed, _, drafts, drafted = text
    token = tl.load(history + at, mask=(at >= 0) & (at < committed), other=-1)
    after = at - committed
    return tl.where(
        after < 0, token, tl.load(drafts + after, mask=(after >= 0) & (after < drafted), other=-1)
    )


@triton.jit
def bit_of(words, token, there):
    """Whether the token's bit is set."""
    return ((tl.load(words + (token >> 5), mask=there, other=0) >> (token & 31)) & 1) != 0


@triton.jit
def penalised(code, value, prompt, output, settings, reals):
    """One penalty of tokens that occur so many times in the window's part of prompt and output."""
    if code == STAGE_REPETITION_PENALTY:
        sees_prompt = tl.load(settings + REPETITION_SEES_PROMPT)
        penalty = tl.load(reals + REPETITION_PENALTY).to(tl.float32)
    elif code == STAGE_PRESENCE_PENALTY:
        sees_prompt = tl.load(settings + PRESENCE_SEES_PROMPT)
        penalty = tl.load(reals + PRESENCE_PENALTY).to(tl.float32)
    else:
        sees_prompt = tl.load(settings + FREQUENCY_SEES_PROMPT)
        penalty = tl.load(reals + FREQUENCY_PENALTY).to(tl.float32)
    count = output + prompt * sees_prompt.to(tl.int32)
    if code == STAGE_REPETITION_PENALTY:
        changed = tl.where(value > 0.0, tl.div_rn(value, penalty), value * penalty)
    elif code == STAGE_PRESENCE_PENALTY:
        changed = value - penalty
    else:
        changed = value - count.to(tl.float32) * penalty
    return tl.where(count > 0, changed, value)
