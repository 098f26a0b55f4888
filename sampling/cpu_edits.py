"""Edits of one row for numba: `reference.EDIT`, in place, in time that grows with history and not vocabulary.

`Settings` are the arrays of `Columns`, `Batch` those of `Request`; both as `cpu.py` packs them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sortition.sampling.columns import CODES
from sortition.sampling.cpu_numerics import ZERO, compiled, inlined

GRAMMAR: Final = CODES["grammar"]
ALLOWED_TOKENS: Final = CODES["allowed_tokens"]
BAD_WORDS: Final = CODES["bad_words"]
MIN_TOKENS: Final = CODES["min_tokens"]
LOGIT_BIAS: Final = CODES["logit_bias"]
REPETITION_PENALTY: Final = CODES["repetition_penalty"]
PRESENCE_PENALTY: Final = CODES["presence_penalty"]
FREQUENCY_PENALTY: Final = CODES["frequency_penalty"]
TEMPERATURE: Final = CODES["temperature"]

OUT: Final = np.float32(-np.inf)


@inlined
def edited(row: int, settings: Any, batch: Any) -> bool:
    """Whether a row has edits at all."""
    count = settings.first[row]
    return count > 1 or (count == 1 and (settings.stages[row, 0] != GRAMMAR or len(batch.grammar) > 0))


@compiled
def edit(values: Any, row: int, settings: Any, batch: Any, counts: Any, spare: Any) -> None:
    """All edits of a row.

    Args:
        values: float32 [vocabulary].
        counts: int32 [vocabulary], all 0, before and after.
        spare: float32 [vocabulary], of any content.
    """
    for at in range(settings.first[row]):
        stage = settings.stages[row, at]
        if stage == GRAMMAR:
            if len(batch.grammar):
                mask(values, batch.grammar[row])
        elif stage == ALLOWED_TOKENS:
            begin, end = settings.allowed[row]
            allow(values, settings.allowed_tokens[begin:end], spare)
        elif stage == BAD_WORDS:
            rule_out_phrases(values, row, settings, batch)
        elif stage == MIN_TOKENS:
            if batch.positions[row] < settings.min_tokens[row]:
                rule_out(values, batch.end_tokens[row])
        elif stage == LOGIT_BIAS:
            begin, end = settings.bias[row]
            add(values, settings.bias_tokens[begin:end], settings.bias_values[begin:end])
        elif stage == TEMPERATURE:
            divide(values, len(values), settings.temperature[row])
        else:
            penalise(values, row, stage, settings, batch, counts)


@inlined
def mask(values: Any, keep: Any) -> None:
    for token in range(len(values)):
        values[token] = values[token] if keep[token] else OUT


@inlined
def allow(values: Any, tokens: Any, spare: Any) -> None:
    # Through another array, so that an id may be named twice.
    for token in tokens:
        spare[token] = values[token]
    for token in range(len(values)):
        values[token] = OUT
    for token in tokens:
        values[token] = spare[token]


@inlined
def rule_out(values: Any, tokens: Any) -> None:
    for token in tokens:
        if 0 <= token < len(values):
            values[token] = OUT


@inlined
def add(values: Any, tokens: Any, bias: Any) -> None:
    for at in range(len(tokens)):
        token = tokens[at]
        values[token] = OUT if bias[at] == OUT else values[token] + bias[at]


@compiled
def divide(values: Any, count: int, divisor: Any) -> None:
    for at in range(count):
        values[at] = values[at] / divisor


@compiled
def rule_out_phrases(values: Any, row: int, settings: Any, batch: Any) -> None:
    for phrase in range(settings.phrases[row, 0], settings.phrases[row, 1]):
        begin, end = settings.phrase_spans[phrase]
        last = settings.phrase_tokens[end - 1]
        if end - begin == 1 and settings.spares_end_tokens[row] and among(last, batch.end_tokens[row]):
            continue
        # What is left of the phrase, compared from its end with the text's.
        left = compared(settings.phrase_tokens, begin, end - 1, batch.output[row])
        if settings.phrases_see_prompt[row] and left > begin:
            left = compared(settings.phrase_tokens, begin, left, batch.prompt[row])
        if left == begin:
            values[last] = OUT


@inlined
def among(token: int, tokens: Any) -> bool:
    found = False
    for each in tokens:
        found |= each == token
    return found


@inlined
def compared(phrase: Any, begin: int, end: int, text: Any) -> int:
    """Where what the end of a text spells begins in a phrase; -1 if it spells something else."""
    at = len(text) - 1
    while end > begin and at >= 0:
        if text[at] >= 0:
            if text[at] != phrase[end - 1]:
                return -1
            end -= 1
        at -= 1
    return end


@compiled
def penalise(values: Any, row: int, stage: int, settings: Any, batch: Any, counts: Any) -> None:
    """One penalty, for each token that occurs in the window that it sees."""
    if stage == REPETITION_PENALTY:
        sees_prompt, penalty = settings.repetition_sees_prompt[row], settings.repetition_penalty[row]
    elif stage == PRESENCE_PENALTY:
        sees_prompt, penalty = settings.presence_sees_prompt[row], settings.presence_penalty[row]
    else:
        sees_prompt, penalty = settings.frequency_sees_prompt[row], settings.frequency_penalty[row]
    output, prompt = batch.output[row], batch.prompt[row]
    left = settings.penalty_window[row]
    first, left = count_tokens(output, left, counts)
    first_of_prompt = len(prompt)
    if sees_prompt:
        first_of_prompt, left = count_tokens(prompt, left, counts)
    subtract(values, stage, penalty, output[first:], counts)
    subtract(values, stage, penalty, prompt[first_of_prompt:], counts)


@inlined
def count_tokens(text: Any, left: int, counts: Any) -> tuple[int, int]:
    """Count the last tokens of a text; returns where they begin, and how many more may be counted."""
    first = len(text)
    while first > 0 and left > 0:
        first -= 1
        token = text[first]
        if token >= 0:
            left -= 1
            if token < len(counts):
                counts[token] += 1
    return first, left


@inlined
def subtract(values: Any, stage: int, penalty: Any, text: Any, counts: Any) -> None:
    """Apply a penalty to each token that has a count, and set that to 0: so each has its turn once."""
    for token in text:
        if 0 <= token < len(counts) and counts[token]:
            if stage == REPETITION_PENALTY:
                values[token] = values[token] / penalty if values[token] > ZERO else values[token] * penalty
            elif stage == PRESENCE_PENALTY:
                values[token] = values[token] - penalty
            else:
                values[token] = values[token] - np.float32(counts[token]) * penalty
            counts[token] = 0
