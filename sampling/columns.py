"""Parameters of a batch as columns: the arrays that backends read, one value for each row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from sortition.sampling.numerics import Float32, Float64, aimed, min_p_cut
from sortition.sampling.parameters import (
    FILTERS,
    GREEDY_BELOW,
    STAGES,
    WHOLE,
    Order,
    Parameters,
)

END: Final = 0
"""Code of no stage."""

CODES: Final = {stage: code for code, stage in enumerate(STAGES, 1)}
"""Of stages."""

GREEDY: Final = len(STAGES) + 1
"""Code of a temperature of 0, which leaves the likeliest token alone."""

NEUTRAL: Final = {stage: getattr(Parameters(), stage) for stage in STAGES if stage != "grammar"}
"""Where a stage changes nothing, whatever rounding would do."""

Int8 = NDArray[np.int8]
Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Columns:
    """The parameters of rows, as far as they do something.

    Attributes:
        parameters: of each row.
        stages: int8 [rows, stages], codes of the stages that do something, in each row's order, then `END`;
            the grammar is among them whether or not there is one.
        first: int64 [rows], how many of them are edits; the others are filters.
        temperature: float32 [rows].
        top_k: int64 [rows], already at least `min_keep`.
        top_p, typical: float64 [rows], the shares that are aimed at.
        epsilon: float64 [rows], the probability that is aimed at.
        eta, top_n_sigma: float64 [rows].
        min_p: float32 [rows], its logarithm.
        repetition_penalty, presence_penalty, frequency_penalty: float32 [rows].
        penalty_window: int64 [rows], the greatest number for no window.
        min_tokens, min_keep: int64 [rows].
        repetition_sees_prompt, presence_sees_prompt, frequency_sees_prompt, phrases_see_prompt,
            spares_end_tokens, joint, top_p_more, typical_more: bool [rows], of the order.
        keep_ties: bool [rows].
        bias: int64 [rows, 2], where in `bias_tokens` (int64) and `bias_values` (float32) a row's begin and
            end.
        allowed: int64 [rows, 2], where in `allowed_tokens` (int64) a row's begin and end.
        phrases: int64 [rows, 2], where in `phrase_spans` a row's bad words begin and end.
        phrase_spans: int64 [phrases, 2], where in `phrase_tokens` (int64) they begin and end.
    """

    parameters: tuple[Parameters, ...]
    stages: Int8
    first: Int64
    temperature: Float32
    top_k: Int64
    top_p: Float64
    typical: Float64
    epsilon: Float64
    eta: Float64
    top_n_sigma: Float64
    min_p: Float32
    repetition_penalty: Float32
    presence_penalty: Float32
    frequency_penalty: Float32
    penalty_window: Int64
    min_tokens: Int64
    min_keep: Int64
    repetition_sees_prompt: Bool
    presence_sees_prompt: Bool
    frequency_sees_prompt: Bool
    phrases_see_prompt: Bool
    spares_end_tokens: Bool
    joint: Bool
    top_p_more: Bool
    typical_more: Bool
    keep_ties: Bool
    bias: Int64
    bias_tokens: Int64
    bias_values: Float32
    allowed: Int64
    allowed_tokens: Int64
    phrases: Int64
    phrase_spans: Int64
    phrase_tokens: Int64

    def __len__(self) -> int:
        return len(self.parameters)

    @classmethod
    def of(cls, parameters: Iterable[Parameters]) -> Self:
        """The columns of these rows."""
        rows = tuple(parameters)
        orders = [each.resolved_order for each in rows]
        programs = [_program(each, order) for each, order in zip(rows, orders, strict=True)]
        stages = np.full((len(rows), len(STAGES) + 1), END, np.int8)
        for row, (codes, _) in enumerate(programs):
            stages[row, : len(codes)] = codes

        def column(kind: Any, name: str) -> NDArray[Any]:
            return np.array([getattr(each, name) for each in rows], kind)

        def flag(values: Iterable[bool]) -> Bool:
            return np.array(list(values), np.bool_)

        bias = [each.logit_bias for each in rows]
        allowed = [each.allowed_tokens or () for each in rows]
        phrases = [phrase for each in rows for phrase in each.bad_words]
        return cls(
            parameters=rows,
            stages=stages,
            first=np.array([first for _, first in programs], np.int64),
            temperature=column(np.float32, "temperature"),
            top_k=np.array([max(each.top_k, each.min_keep) for each in rows], np.int64),
            top_p=_aims("top_p", rows, orders),
            typical=_aims("typical", rows, orders),
            epsilon=np.array([aimed(each.epsilon, False) for each in rows], np.float64),
            **{name: column(np.float64, name) for name in ("eta", "top_n_sigma")},
            min_p=np.array([min_p_cut(each.min_p) if each.min_p else 0.0 for each in rows], np.float32),
            **{
                name: column(np.float32, name)
                for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")
            },
            penalty_window=np.array(
                [_window(each, order) for each, order in zip(rows, orders, strict=True)], np.int64
            ),
            min_tokens=column(np.int64, "min_tokens"),
            min_keep=column(np.int64, "min_keep"),
            repetition_sees_prompt=flag("repetition_penalty" in order.see_prompt for order in orders),
            presence_sees_prompt=flag("presence_penalty" in order.see_prompt for order in orders),
            frequency_sees_prompt=flag("frequency_penalty" in order.see_prompt for order in orders),
            phrases_see_prompt=flag("bad_words" in order.see_prompt for order in orders),
            spares_end_tokens=flag(order.spares_end_tokens for order in orders),
            joint=flag(order.joint for order in orders),
            top_p_more=flag("top_p" in order.more_than for order in orders),
            typical_more=flag("typical" in order.more_than for order in orders),
            keep_ties=flag(each.ties == "keep" for each in rows),
            bias=_spans(bias),
            bias_tokens=_flat(np.int64, bias),
            bias_values=_flat(np.float32, [each.values() for each in bias]),
            allowed=_spans(allowed),
            allowed_tokens=_flat(np.int64, allowed),
            phrases=_spans([each.bad_words for each in rows]),
            phrase_spans=_spans(phrases),
            phrase_tokens=_flat(np.int64, phrases),
        )

    def rows(self, index: NDArray[np.int64]) -> Self:
        """The columns of these rows [n], in this order."""
        parts = {name: getattr(self, name)[index] for name in _BY_ROW}
        return replace(self, parameters=tuple(self.parameters[row] for row in index.tolist()), **parts)

    def seen(self, output: Int64) -> Int64:
        """What parameters look at of an output [rows, n]: its end, or all of it where that has padding."""
        if output.shape[1] <= self._reach:
            return output
        end = output[:, output.shape[1] - self._reach :]
        return end if bool((end >= 0).all()) else output

    @cached_property
    def _reach(self) -> int:
        """How many of the last tokens parameters look at."""
        penalised = [each.penalises for each in self.parameters]
        windows = self.penalty_window[penalised]
        phrases = [len(phrase) - 1 for each in self.parameters for phrase in each.bad_words]
        return int(max([0, *phrases, *windows.tolist()]))

    def check(self, width: int) -> None:
        """That every token which is named has a logit.

        Raises:
            ValueError: one is beyond the width.
        """
        for name, tokens in (
            ("logit_bias", self.bias_tokens),
            ("allowed_tokens", self.allowed_tokens),
            ("bad_words", self.phrase_tokens),
        ):
            if len(tokens) and (greatest := int(tokens.max())) >= width:
                raise ValueError(f"{name} names token {greatest}, and there are {width} tokens")


_SHARED: Final = (
    "parameters",
    "bias_tokens",
    "bias_values",
    "allowed_tokens",
    "phrase_spans",
    "phrase_tokens",
)
_BY_ROW: Final = tuple(each.name for each in fields(Columns) if each.name not in _SHARED)


def _aims(name: str, rows: Sequence[Parameters], orders: Sequence[Order]) -> Float64:
    """The shares of the mass that a filter aims at."""
    pairs = zip(rows, orders, strict=True)
    return np.array(
        [aimed(getattr(each, name), name in order.more_than) for each, order in pairs], np.float64
    )


@lru_cache
def _parts(stages: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Edits and filters; temperature right before the filters is one of them."""
    first = next(at for at, stage in enumerate(stages) if stage in FILTERS)
    first -= stages[first - 1] == "temperature"
    return stages[:first], stages[first:]


def _program(parameters: Parameters, order: Order) -> tuple[list[int], int]:
    """Codes of the stages that do something, and how many of them are edits."""
    edits, filters = _parts(order.stages)
    greedy = parameters.temperature < GREEDY_BELOW
    codes = [
        CODES[stage]
        for stage in edits
        if _acts(parameters, stage) and not (greedy and stage == "temperature")
    ]
    first = len(codes)
    if greedy and "temperature" in edits:
        codes.append(GREEDY)
        return codes, first
    for stage in filters:
        if greedy and stage == "temperature":
            codes.append(GREEDY)
            # One token is left, and every filter would leave it.
            break
        if _acts(parameters, stage):
            codes.append(CODES[stage])
    return codes, first


def _acts(parameters: Parameters, stage: str) -> bool:
    if stage == "grammar":
        return True
    value = getattr(parameters, stage)
    return bool(value > 0 if stage in ("top_k", "top_n_sigma") else value != NEUTRAL[stage])


def _window(parameters: Parameters, order: Order) -> int:
    window = order.penalty_window if parameters.penalty_window is None else parameters.penalty_window
    return WHOLE if window is None else window


def _spans(parts: Sequence[Sequence[Any] | Any]) -> Int64:
    """[n, 2], where each part begins and ends if all of them stand in a row."""
    ends = [0, *accumulate(map(len, parts))]
    return np.array([ends[:-1], ends[1:]], np.int64).T.copy()


def _flat(kind: Any, parts: Iterable[Iterable[Any]]) -> NDArray[Any]:
    return np.array([each for part in parts for each in part], kind)
