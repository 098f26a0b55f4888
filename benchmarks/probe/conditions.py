"""The axes along which runs may differ, and the conditions that a probe tries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import torch

from sortition.benchmarks.probe.options import DTYPES
from sortition.benchmarks.probe.target import Condition, Settings, Value


@dataclass(frozen=True)
class Axis:
    """One thing that may differ between two runs.

    Attributes:
        name: in settings.
        counts: users do not choose it, so that the verdict counts what it changes. The others are choices:
            they may well change scores, and are there to be tried as remedies.
        values: where on it a run may be: these words, or at least this number; () for an axis that is its
            own value, None for any word.
        meaning: for people.
    """

    name: str
    counts: bool
    values: tuple[str, ...] | int | None
    meaning: str

    def check(self, value: Value) -> None:
        """Raises ValueError for a value that is not on this axis."""
        match self.values:
            case ():
                fits, wanted = value is True, "no value"
            case int(least):
                fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
                wanted = f"a whole number of at least {least}"
            case None:
                fits, wanted = isinstance(value, str), "a name"
            case words:
                fits, wanted = value in words, " or ".join(words)
        if not fits:
            given = "" if value is True else f", not {value!r}"
            raise ValueError(f"{self.name} takes {wanted}{given}")


AXES: Final = {
    axis.name: axis
    for axis in (
        Axis("rerun", True, (), "the same once more"),
        Axis("process", True, ("fresh",), "the same in a fresh process"),
        Axis(
            *("batch_size", True, 1),
            "rows that run together, copies of the prompt unless neighbours are given",
        ),
        Axis("position", True, ("last",), "where in the batch the prompt is, which is first elsewhere"),
        Axis(
            *("neighbours", True, ("other", "longer")),
            "other texts in the other rows: other of the same length, or longer",
        ),
        Axis("padding", True, 1, "pad tokens on the left"),
        Axis("chunk", True, 1, "tokens of the prompt that are read in one pass"),
        Axis(
            *("prefix_cache", True, ("warm",)),
            "the prompt's beginning was read for another request before",
        ),
        Axis("drafts", True, 1, "tokens that speculative decoding guesses in one pass"),
        Axis("logprobs", True, 1, "log-probabilities are asked for"),
        Axis("prefill", False, (), "all of the text is read in one pass, not token by token"),
        Axis("threads", False, 1, "threads of a process"),
        Axis("attention", False, None, "implementation of attention"),
        Axis("dtype", False, DTYPES, "numbers of the whole model"),
        Axis("lm_head", False, DTYPES, "numbers of the last layer"),
        Axis("seed", False, 0, "tokens are drawn by the target's own sampler under this seed"),
        Axis("draw", False, 0, "tokens are drawn by Sortition's sampler under this seed"),
    )
}

BATCH_SIZES: Final = (2, 4, 8, 16)
"""Where kernels change their ways: vectors, small and larger tiles. More with the option."""
PADDING: Final = (1, 8)
DRAFTS: Final = 4
CHUNK: Final = 4
"""Short, so that ordinary prompts have several."""
LOGPROBS: Final = 10
"""More than engines are asked for anyway, to compare them."""
SEED: Final = 7
COMPANY: Final = 8
"""Rows, where the question is not how many."""


def condition(*varies: tuple[str, Value], given: Settings = ()) -> Condition:
    """A condition of settings; raises ValueError for an axis or a value on it that is not known."""
    for axis, value in (*varies, *given):
        if axis not in AXES:
            raise ValueError(f"there is no axis {axis!r}; there are {', '.join(AXES)}")
        AXES[axis].check(value)
    for settings in (varies, given):
        names = [axis for axis, _ in settings]
        twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
        if twice is not None:
            raise ValueError(f"{twice} is there twice")
    return Condition(tuple(varies), given)


def plan(batch_sizes: Sequence[int] = BATCH_SIZES, *, pairs: bool = False) -> tuple[Condition, ...]:
    """What is tried, what people meet most often first, since time may run out.

    Axes that count, one at a time; then in pairs; draws under a seed; what varies again under each likely
    remedy; axes that users choose.

    Args:
        batch_sizes: rows.
        pairs: also pairs without a batch.
    """
    company: tuple[str, Value] = ("batch_size", COMPANY)
    threads = 2 if torch.get_num_threads() == 1 else 1
    last: tuple[str, Value] = ("position", "last")
    reading: tuple[tuple[str, Value], ...] = (
        ("padding", PADDING[-1]),
        ("chunk", CHUNK),
        ("prefix_cache", "warm"),
        ("drafts", DRAFTS),
    )
    single = [
        condition(("rerun", True)),
        *(condition(("batch_size", rows)) for rows in batch_sizes),
        *(condition(("padding", count)) for count in PADDING),
        *(condition(each) for each in reading[1:]),
        condition(("process", "fresh")),
        condition(("logprobs", LOGPROBS)),
    ]
    together = [
        condition(company, last),
        condition(company, ("neighbours", "other")),
        condition(company, ("neighbours", "longer")),
        *(condition(company, each) for each in reading),
    ]
    alone = [condition(*pair) for pair in combinations((*reading, ("threads", threads)), 2)] if pairs else []
    drawn = [condition(company, last, given=((axis, SEED),)) for axis in ("seed", "draw")]
    remedied = [
        condition(reading[0], given=(("attention", "eager"),)),
        condition(company, given=(("lm_head", "float32"),)),
        condition(company, given=(("dtype", "float32"),)),
    ]
    chosen = [
        condition(("prefill", True)),
        condition(("threads", threads)),
        condition(("attention", "eager")),
        condition(("lm_head", "float32")),
        condition(("dtype", "float32")),
    ]
    return (*single, *together, *alone, *drawn, *remedied, *chosen)


def served_plan(batch_sizes: Sequence[int] = BATCH_SIZES, *, pairs: bool = False) -> tuple[Condition, ...]:
    """The same for engines, whose batches may be put together otherwise each time."""
    again = condition(("rerun", True), given=(("batch_size", COMPANY),))
    first, *others = plan(batch_sizes, pairs=pairs)
    return (first, again, *others)


def parse(text: str) -> Condition:
    """A condition as `Condition.name` writes it: "batch_size 8 and position last, given attention eager".

    Raises:
        ValueError: it is not one.
    """
    varies, _, given = text.partition(", given ")
    return condition(*_settings(varies), given=_settings(given) if given else ())


def _settings(text: str) -> Settings:
    pairs = (part.strip().partition(" ") for part in text.split(" and "))
    return tuple((axis, _value(value)) for axis, _, value in pairs)


def _value(text: str) -> Value:
    if not text:
        return True
    return int(text) if text.isdigit() else text


def counts(tried: Condition) -> bool:
    """Whether only things vary that users do not choose, and nothing is given."""
    return all(AXES[axis].counts for axis, _ in tried.varies) and not tried.given
