"""How a probe is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sortition.benchmarks.probe.verdict import Requirement

BLOCK: Final = 8
"""Prompts between two looks of the sequential test; a fresh process loads its model for each."""

DTYPES: Final = ("bfloat16", "float16", "float32")
"""Numbers that a model, or its last layer, may be asked to have."""


@dataclass(frozen=True)
class Options:
    """How a probe is run.

    Attributes:
        steps: tokens after each prompt.
        require: what must be the same.
        max_divergence: the share of prompts that may differ; see `verdict`.
        confidence: of intervals.
        attribute: whether to look for causes.
        asked: users named the conditions themselves.
        block: prompts that run before the sequential test looks again.
    """

    steps: int = 12
    require: Requirement = "tokens"
    max_divergence: float = 0.0
    confidence: float = 0.95
    attribute: bool = True
    asked: bool = False
    block: int = BLOCK


DEFAULTS: Final = Options()
