"""What a probe asks of the thing it probes: run prompts under a condition and hand over the scores."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from sortition.benchmarks.probe.bisect import Recorded

Value: TypeAlias = bool | int | float | str
Settings: TypeAlias = tuple[tuple[str, Value], ...]
"""Names of axes (`conditions.AXES`) and where on them, in the order in which they were given."""


@dataclass(frozen=True)
class Condition:
    """One way to run prompts, and what it is held against.

    Attributes:
        varies: what is different from the reference; nothing for a reference itself.
        given: what this run and its reference have in common; nothing for the target as it is.
    """

    varies: Settings = ()
    given: Settings = ()

    @property
    def settings(self) -> dict[str, Value]:
        """All of them; where both name an axis, `varies` wins."""
        return {**dict(self.given), **dict(self.varies)}

    @property
    def kind(self) -> str:
        """The axes that vary, "reference" if none does."""
        return " and ".join(axis for axis, _ in self.varies) or "reference"

    @property
    def name(self) -> str:
        """Unique within a probe, and what people read."""
        varies = _written(self.varies) or "reference"
        return f"{varies}, given {_written(self.given)}" if self.given else varies

    @property
    def reference(self) -> Condition:
        """What it is held against."""
        return Condition(given=self.given)


def _written(settings: Settings) -> str:
    return " and ".join(axis if value is True else f"{axis} {value}" for axis, value in settings)


@dataclass(frozen=True)
class Prompt:
    """A text to go on from.

    Attributes:
        text: what people read.
        tokens: ids; none where only a server knows them.
    """

    text: str
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """Whether a condition took effect, and by what one can tell.

    Attributes:
        took_effect: False makes the condition "not exercised", whatever the scores say.
        seen: in words, such as "forward passes of 8 rows".
    """

    took_effect: bool
    seen: str


@dataclass(frozen=True, eq=False)
class Run:
    """What became of one prompt.

    Attributes:
        choices: the token that the target would take at each step, by its own rule.
        tokens: the token that it went on with: that choice, or the one it was told.
        scores: [steps, width], logits or log-probabilities as they were, in their own dtype; width 0 where
            the target shows none.
        ids: int64 [steps, width], the token of each score; None where scores are of the whole vocabulary.
    """

    choices: tuple[int, ...]
    tokens: tuple[int, ...]
    scores: Tensor
    ids: Tensor | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of all prompts, in their order.

    Attributes:
        runs: one a prompt.
        evidence: that the condition took effect.
        seconds: of processor time where the target runs here, else of wall time.
        notes: for the report, such as cache hits or a server's fingerprints.
    """

    runs: tuple[Run, ...]
    evidence: Evidence
    seconds: float = 0.0
    notes: Mapping[str, Any] = field(default_factory=dict)


class NotPossible(Exception):
    """The target cannot be put under a condition; the message says why, and it is "not exercised"."""


class Target(Protocol):
    """Something that goes on from prompts.

    Attributes:
        name: what people read.
        axes: those that it can vary.
        forces: it can be told the tokens to go on with, so that all steps stay comparable.
    """

    name: str
    axes: frozenset[str]
    forces: bool

    def describe(self) -> dict[str, Any]:
        """Versions, machine and options that could matter, as plain JSON values."""

    def text(self, tokens: Sequence[int]) -> str:
        """What the tokens say."""

    def run(
        self,
        prompts: Sequence[Prompt],
        condition: Condition,
        steps: int,
        forced: Sequence[Sequence[int]] | None = None,
    ) -> Outcome:
        """Go on from every prompt for so many steps.

        The scores of step 0 follow the prompt alone; those of step i, i tokens more.

        Args:
            prompts: each is one unit of the statistics, whatever else the condition puts beside it.
            condition: of this run.
            steps: tokens; fewer come back where a text ends.
            forced: for each prompt the tokens to go on with, `steps` of them; None to go on freely.

        Raises:
            NotPossible: the target cannot be put under the condition.
            ValueError: it cannot be told how to go on.
        """


@runtime_checkable
class Chooses(Protocol):
    """A target whose choice can be replayed on scores that are given, apart from its model."""

    def choose(self, scores: Tensor, condition: Condition, step: int) -> list[int]:
        """What it takes from each row of scores [rows, vocabulary], at a step, as the rows of one batch."""


@runtime_checkable
class Inspects(Protocol):
    """A target whose model can be looked into, and mended for an experiment."""

    def record(
        self, prompts: Sequence[Prompt], index: int, condition: Condition, forced: Sequence[int]
    ) -> Mapping[str, Recorded]:
        """What every operation does with one prompt and the tokens that it is told to go on with, by name."""

    def can_mend(self, kind: str) -> bool:
        """Whether operations of this kind can be made independent of the batch."""

    def mended(self, kinds: Collection[str]) -> AbstractContextManager[None]:
        """While entered, operations of these kinds are independent of the batch, in every run."""

    def linear(self, kind: str) -> tuple[int, int, torch.dtype] | None:
        """Inputs, outputs and numbers of linear layers of this kind; None if it is none."""
