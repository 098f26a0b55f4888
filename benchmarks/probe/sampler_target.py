"""Sortition's sampler and grammar by themselves: given logits, in batches of every size."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from sortition.benchmarks.probe.conditions import condition
from sortition.benchmarks.probe.target import Condition, Evidence, NotPossible, Outcome, Prompt, Run
from sortition.benchmarks.timing import machine
from sortition.grammars.regex import regex
from sortition.grammars.table import Table
from sortition.grammars.vocabulary import Vocabulary
from sortition.sampling.rules import Constrain, Temperature, TopP
from sortition.sampling.sampler import Sampler

TEXTS: Final = 512
STEPS: Final = 20
"""Together 10,240 draws."""
BATCH_SIZES: Final = (1, 2, 3, 7, 16, 64, 100, 256, 512)
"""The largest is all texts; some leave a remainder."""

PATTERN: Final = "([a-m]{1,4}-[0-9]+;)*"
"""A grammar that every text is at another place of."""


class SamplerTarget:
    """Texts that are drawn from given logits, under a grammar; in the reference, all in one batch.

    A text's logits depend on its number and the step alone, so whatever else differs is the sampler's doing.

    Args:
        sampler: draws.
        vocabulary: number of logits.
        texts: how many.
        spell: what a token says.
    """

    name = "Sortition's sampler"
    axes = frozenset({"rerun", "batch_size", "position"})
    forces = True

    def __init__(self, sampler: Sampler, vocabulary: int, texts: int, spell: Sequence[bytes]) -> None:
        self._sampler = sampler
        self._texts = texts
        self._spell = spell
        generator = torch.Generator().manual_seed(0)
        self._logits = torch.randn(texts, vocabulary, generator=generator) * 3

    @classmethod
    def default(cls, texts: int = TEXTS) -> SamplerTarget:
        """Temperature, top-p and a grammar over a small vocabulary of bytes and pairs."""
        letters = [bytes([letter]) for letter in b"abcdefghijklmnopqrstuvwxyz0123456789-;"]
        tokens = [*letters, *(one + two for one in letters for two in letters), b""]
        vocabulary = Vocabulary.of(tokens, end_tokens=[len(tokens) - 1])
        table: Table = regex(PATTERN).compile(vocabulary)
        sampler = Sampler(vocabulary, Constrain(table), Temperature(0.8), TopP(0.95))
        return cls(sampler, len(tokens), texts, tokens)

    def prompts(self) -> list[Prompt]:
        """One for each text; its token is its number and its seed."""
        return [Prompt(f"text {number}", (number,)) for number in range(self._texts)]

    def describe(self) -> dict[str, Any]:
        """See `Target`."""
        return {**machine(), "torch": torch.__version__, "sampler": repr(self._sampler)}

    def text(self, tokens: Sequence[int]) -> str:
        """See `Target`."""
        return b"".join(self._spell[token] for token in tokens).decode()

    def run(
        self,
        prompts: Sequence[Prompt],
        condition: Condition,
        steps: int,
        forced: Sequence[Sequence[int]] | None = None,
    ) -> Outcome:
        """See `Target`; scores are log-probabilities of what is drawn."""
        settings = condition.settings
        unknown = settings.keys() - self.axes
        if unknown:
            raise NotPossible(f"a sampler has nothing to set for {', '.join(sorted(unknown))}")
        numbers = [prompt.tokens[0] for prompt in prompts]
        order = list(range(len(numbers)))
        if settings.get("position") == "last":
            order.reverse()
        size = min(int(settings.get("batch_size", len(order))), len(order))
        begun = time.process_time()
        runs: list[Run | None] = [None] * len(order)
        for begin in range(0, len(order), size):
            batch = order[begin : begin + size]
            told = None if forced is None else [forced[at] for at in batch]
            for at, run in zip(batch, self._batch([numbers[at] for at in batch], steps, told), strict=True):
                runs[at] = run
        seconds = time.process_time() - begun
        evidence = Evidence(
            settings.get("batch_size", size) == size,
            f"batches of {size} rows" + (", in reverse" if "position" in settings else ""),
        )
        return Outcome(tuple(run for run in runs if run is not None), evidence, seconds)

    def _batch(self, numbers: list[int], steps: int, told: Sequence[Sequence[int]] | None) -> list[Run]:
        """Texts of these numbers, drawn together."""
        state = self._sampler.start(len(numbers), numbers)
        drawn, scores, taken = [], [], []
        for step in range(steps):
            draw = self._sampler(self._at(numbers, step), state)
            following = draw.tokens if told is None else torch.tensor([each[step] for each in told])
            state = self._sampler.advance(state, following)
            drawn.append(draw.tokens)
            scores.append(draw.logprobs)
            taken.append(following)
        columns = (torch.stack(each, 1) for each in (drawn, scores, taken))
        return [
            Run(tuple(choices.tolist()), tuple(tokens.tolist()), logprobs[:, None].clone(), choices[:, None])
            for choices, logprobs, tokens in zip(*columns, strict=True)
        ]

    def _at(self, numbers: list[int], step: int) -> Tensor:
        """The logits of a step: each text's own, turned round by one a step."""
        return self._logits[numbers].roll(step, 1)


def sampler_plan(batch_sizes: Sequence[int] | None = None) -> tuple[Condition, ...]:
    """Batches of every size, and each text at another place."""
    sizes = batch_sizes or BATCH_SIZES
    return (
        condition(("rerun", True)),
        condition(("position", "last")),
        *(condition(("batch_size", size)) for size in sizes),
        condition(("batch_size", sizes[len(sizes) // 2]), ("position", "last")),
    )
