"""What an engine has to offer to be measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from sortition.benchmarks.overhead.load import Load
from sortition.benchmarks.overhead.stopwatch import Stopwatch

Script: TypeAlias = Sequence[Sequence[int]]
"""The tokens that each row has written, or is made to write."""


class Engine(Protocol):
    """A model that writes texts step by step, and lets the parts of a step be timed or left out.

    Attributes:
        name: for people.
        structures: those of `load.STRUCTURES` that it has.
    """

    name: str
    structures: tuple[str, ...]

    def run(self, load: Load, stopwatch: Stopwatch, script: Script | None = None) -> Script:
        """Do what the load says, and return what was written, if detokenising is not left out.

        Args:
            script: tokens that are written in place of those that are drawn, so that runs with and without a
                part do the same work everywhere else. They come from a run of the same load.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Which model and which versions, as plain JSON values."""
        ...
