"""What a feature of requests costs on a server: rounds with it and without it, in turns, at equal load."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

from sortition.benchmarks.diagnosis.load import Load, Timed
from sortition.benchmarks.overhead.intervals import Interval, signed_rank
from sortition.benchmarks.overhead.load import SCHEMA, Sampling
from sortition.integrations.errors import InputError
from sortition.integrations.request import request

Verdict: TypeAlias = Literal["slower", "faster", "no difference seen"]

STRUCTURES: Final = ("none", "ours", "server")
"""What may hold texts to a grammar: nothing, this package's processor, or what the server itself has."""

FULL_LENGTH: Final = {"ignore_eos": True}
"""What requests of both sides have, so that they write as many tokens."""


@dataclass(frozen=True, slots=True)
class Feature:
    """Further fields of the bodies of requests, and a name for people."""

    name: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds: the median and the 99th percentile, None of nothing."""

    p50: float | None
    p99: float | None

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Of any number of values."""
        if not seconds:
            return cls(None, None)
        ordered = sorted(seconds)
        return cls(statistics.median(ordered), ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))])


@dataclass(frozen=True, slots=True)
class Pair:
    """One figure of requests with a feature and without it.

    Attributes:
        longer: seconds by which it is longer with the feature, with the interval over the rounds.
        on, off: of all rounds with the feature, and of all without.
    """

    longer: Interval
    on: Spread
    off: Spread

    @property
    def verdict(self) -> Verdict:
        """Whether the interval leaves 0 out."""
        if self.longer.low > 0:
            return "slower"
        return "faster" if self.longer.high < 0 else "no difference seen"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a feature costs.

    Attributes:
        between: tokens.
        first: the time to the first token, in which grammars are compiled.
    """

    feature: Feature
    between: Pair
    first: Pair

    def as_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "feature": self.feature.name,
            "fields": dict(self.feature.fields),
            "between tokens": _json(self.between),
            "to the first token": _json(self.first),
        }


@dataclass
class _Side:
    """What the rounds of one side have given: of each round the medians, of all of them everything."""

    gaps: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    medians: list[tuple[float, float]] = field(default_factory=list)

    def add(self, requests: Sequence[Timed]) -> None:
        gaps = [gap for each in requests for gap in each.gaps]
        if not gaps:
            raise InputError("no answer has a second token: more --tokens are needed to time them")
        firsts = [each.first for each in requests]
        self.gaps += gaps
        self.firsts += firsts
        # A stall of the machine is in one gap, and what a field costs is in all.
        self.medians.append((statistics.median(gaps), statistics.median(firsts)))


def features(samplings: Sequence[Sampling], structures: Sequence[str], schema: Any = None) -> list[Feature]:
    """All combinations of ways to draw and of structures, but for greedy without structure."""
    found = []
    for sampling in samplings:
        for structure in structures:
            fields = {**_drawing(sampling), **_structure(structure, SCHEMA if schema is None else schema)}
            if fields:
                found.append(Feature(f"{sampling.name}, structure {structure}", fields))
    return found


def costs(
    root: str, plain: Load, features: Sequence[Feature], rounds: int, progress: Callable[[str], None]
) -> list[Cost]:
    """What each feature costs under a load; prompts, concurrency and lengths are equal on both sides.

    Raises:
        InputError: the server refuses the load, stops answering, or writes no second token.
    """
    sides = [_Side() for _ in range(len(features) + 1)]
    fields = [{}, *(feature.fields for feature in features)]
    for turn in range(rounds):
        progress(f"with and without {_named(features)}: round {turn + 1} of {rounds}")
        # Each round begins with another side, so that none is always the first.
        for at in [*range(turn % len(sides), len(sides)), *range(turn % len(sides))]:
            # A few other characters in front, so that no round finds another's prefixes in a cache.
            prompts = [f"{turn}.{at} {prompt}" for prompt in plain.prompts]
            load = replace(plain, prompts=prompts, fields={**FULL_LENGTH, **fields[at]})
            sides[at].add(load.run(root))
    without, *with_feature = sides
    return [
        Cost(
            feature,
            _pair(side.gaps, without.gaps, _longer(side, without, 0)),
            _pair(side.firsts, without.firsts, _longer(side, without, 1)),
        )
        for feature, side in zip(features, with_feature, strict=True)
    ]


def _pair(on: Sequence[float], off: Sequence[float], longer: Interval) -> Pair:
    return Pair(longer, Spread.of(on), Spread.of(off))


def _longer(on: _Side, off: _Side, which: int) -> Interval:
    return signed_rank(
        [one[which] - other[which] for one, other in zip(on.medians, off.medians, strict=True)]
    )


def _json(pair: Pair) -> dict[str, Any]:
    return {
        "verdict": pair.verdict,
        "longer s": pair.longer.estimate,
        "interval s": [pair.longer.low, pair.longer.high],
        "with s": {"p50": pair.on.p50, "p99": pair.on.p99},
        "without s": {"p50": pair.off.p50, "p99": pair.off.p99},
    }


def _named(features: Sequence[Feature]) -> str:
    return features[0].name if len(features) == 1 else f"{len(features)} features"


def _drawing(sampling: Sampling) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if sampling.temperature > 0:
        fields = {"temperature": sampling.temperature, "top_p": sampling.top_p}
        fields |= {"top_k": sampling.top_k} if sampling.top_k else {}
        fields |= {"min_p": sampling.min_p} if sampling.min_p else {}
    if sampling.repetition_penalty != 1:
        fields["repetition_penalty"] = sampling.repetition_penalty
    if sampling.logprobs is not None:
        fields["logprobs"] = sampling.logprobs
    return fields


def _structure(structure: str, schema: Any) -> dict[str, Any]:
    if structure == "none":
        return {}
    if structure == "ours":
        return {
            "vllm_xargs": {name: json.dumps(value) for name, value in request(json_schema=schema).items()}
        }
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "schema", "schema": schema}}}
