"""Whether a condition took effect in a transformers model, by what was seen while it ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from sortition.benchmarks.probe.target import Evidence, Value


@dataclass
class Seen:
    """What was seen of a run over all prompts.

    Attributes:
        passes: rows and columns of forward passes.
        prompt_passes: of each prompt, the passes that read it.
        padding: the fewest pad tokens beside a prompt's row.
        rows: where the prompts were.
        company: prompts whose neighbours were other texts.
        cached: tokens of each prompt that were in the cache before it was read.
        guessed, accepted: drafts.
        lucky: draws that were not the likeliest token.
        attention, threads, scores, weights: implementation, number, and dtypes in use.
        process: its number.
    """

    passes: set[tuple[int, int]] = field(default_factory=set)
    prompt_passes: list[int] = field(default_factory=list)
    padding: list[int] = field(default_factory=list)
    rows: set[int] = field(default_factory=set)
    company: list[bool] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    guessed: int = 0
    accepted: int = 0
    lucky: int = 0
    attention: str = ""
    threads: int = 0
    scores: str = ""
    weights: str = ""
    process: int = 0


class Found(NamedTuple):
    """One axis: whether it took effect, and by what one can tell."""

    took_effect: bool
    seen: str


Check: TypeAlias = Callable[[Seen, Value], Found]


def _batch_size(seen: Seen, value: Value) -> Found:
    rows = {rows for rows, _ in seen.passes}
    return Found(rows == {value}, f"passes of {_listed(rows)} rows")


def _position(seen: Seen, value: Value) -> Found:
    return Found(0 not in seen.rows, f"the prompt in row {_listed(seen.rows)}")


def _neighbours(seen: Seen, value: Value) -> Found:
    others = sum(seen.company)
    return Found(others == len(seen.company) > 0, f"other texts beside {others} prompts")


def _padding(seen: Seen, value: Value) -> Found:
    least = min(seen.padding, default=0)
    return Found(least >= int(value) > 0, f"{least} pad tokens or more beside each prompt")


def _chunk(seen: Seen, value: Value) -> Found:
    split = sum(passes > 1 for passes in seen.prompt_passes)
    return Found(split > 0, f"{split} of {len(seen.prompt_passes)} prompts read in several passes")


def _prefix_cache(seen: Seen, value: Value) -> Found:
    warm = sum(cached > 0 for cached in seen.cached)
    return Found(warm > 0, f"{sum(seen.cached)} tokens of {warm} prompts came from the cache")


def _drafts(seen: Seen, value: Value) -> Found:
    return Found(seen.accepted > 0, f"{seen.guessed} tokens guessed, {seen.accepted} accepted")


def _threads(seen: Seen, value: Value) -> Found:
    return Found(seen.threads == value, f"{seen.threads} threads")


def _attention(seen: Seen, value: Value) -> Found:
    return Found(seen.attention == value, f"attention {seen.attention}")


def _dtype(seen: Seen, value: Value) -> Found:
    return Found(seen.weights == value, f"weights of {seen.weights}")


def _lm_head(seen: Seen, value: Value) -> Found:
    return Found(seen.scores == value, f"scores of {seen.scores}")


def _draws(seen: Seen, value: Value) -> Found:
    return Found(seen.lucky > 0, f"{seen.lucky} draws were not the likeliest token")


CHECKS: Final[Mapping[str, Check]] = {
    "rerun": lambda seen, value: Found(bool(seen.passes), "ran again"),
    "process": lambda seen, value: Found(seen.process != 0, f"process {seen.process}"),
    "batch_size": _batch_size,
    "position": _position,
    "neighbours": _neighbours,
    "padding": _padding,
    "chunk": _chunk,
    "prefix_cache": _prefix_cache,
    "drafts": _drafts,
    "threads": _threads,
    "attention": _attention,
    "dtype": _dtype,
    "lm_head": _lm_head,
    "seed": _draws,
    "draw": _draws,
}


def judge(seen: Seen, settings: Mapping[str, Value]) -> Evidence:
    """All settings took effect, or the first that did not."""
    found = {axis: CHECKS[axis](seen, value) for axis, value in settings.items()}
    failed = [each.seen for each in found.values() if not each.took_effect]
    words = failed or [each.seen for each in found.values()] or [f"{len(seen.rows)} row"]
    return Evidence(not failed, ", ".join(words))


def _listed(numbers: set[int]) -> str:
    return ", ".join(map(str, sorted(numbers))) or "no"
