"""One line for a test: the batch does not change what a model says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sortition.benchmarks.probe.conditions import condition
from sortition.benchmarks.probe.deadline import Deadline
from sortition.benchmarks.probe.findings import Findings
from sortition.benchmarks.probe.options import Options
from sortition.benchmarks.probe.study import study
from sortition.benchmarks.probe.transformers_target import TransformersTarget
from sortition.benchmarks.probe.verdict import Requirement

PADDING: Final = 3
"""Pad tokens: few, and not a number that kernels like."""


def assert_batch_invariant(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    *,
    batch_sizes: Sequence[int] = (2, 8),
    steps: int = 8,
    require: Requirement = "tokens",
    seconds: float | None = None,
) -> Findings:
    """Fail unless a model of transformers says the same alone, in batches, at their ends and beside padding.

    Args:
        model, tokenizer: of transformers.
        prompts: what it goes on from, greedily.
        batch_sizes: rows, each 2 or more.
        steps: tokens after each prompt.
        require: "tokens", or "bitwise" for all bits of all logits.
        seconds: after which nothing new is begun, so that the answer may stay open; None for no end.

    Returns:
        what was found, if that is within the requirement.

    Raises:
        AssertionError: it is not, or that is still open; the message says under what, how often, and why as
            far as that is known.
        ValueError: no prompts, batches of one, or another requirement.
    """
    if require not in ("tokens", "bitwise"):
        raise ValueError(f"require is 'tokens' or 'bitwise', not {require!r}")
    if not batch_sizes or min(batch_sizes) < 2:
        raise ValueError(f"a batch to hold against a lone row has 2 rows or more, not {list(batch_sizes)}")
    conditions = (
        condition(("rerun", True)),
        *(condition(("batch_size", rows)) for rows in batch_sizes),
        condition(("batch_size", max(batch_sizes)), ("position", "last")),
        condition(("batch_size", max(batch_sizes)), ("neighbours", "other")),
        condition(("padding", PADDING)),
    )
    target = TransformersTarget(model, tokenizer)
    findings = study(
        target,
        target.prompts(prompts),
        conditions,
        Options(steps=steps, require=require, asked=True),
        deadline=Deadline(seconds),
    )
    if findings.verdict.answer != "within":
        raise AssertionError("\n".join((findings.verdict.headline, *findings.verdict.reasons)))
    return findings
