"""transformers: what `generate` returns, and what it keeps of each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import GenerateDecoderOnlyOutput


@dataclass
class Generated(GenerateDecoderOnlyOutput):
    """What `generate` returns with ``return_dict_in_generate=True``.

    Attributes:
        logprobs: float32 [rows, generated], ln of each token's probability under the law that it was drawn
            from, which filters have cut; 0 after a row's end.
        forwards: how often the model ran.
        drafted: how many drafts it was shown, those of all rows.
        accepted: how many of them became part of a text.
    """

    logprobs: Tensor | None = None
    forwards: int | None = None
    drafted: int | None = None
    accepted: int | None = None

    @property
    def acceptance(self) -> float:
        """The share of drafts that became part of the text, 0 without any."""
        return (self.accepted or 0) / (self.drafted or 1)

    @property
    def tokens_per_forward(self) -> float:
        """How many tokens the longest row got each time that the model ran."""
        return 0.0 if self.logprobs is None else self.logprobs.shape[1] / (self.forwards or 1)


class Record:
    """What is kept of each step, as far as the generation config asks for it."""

    def __init__(self, config: GenerationConfig) -> None:
        self._returns = bool(config.return_dict_in_generate)
        self._logits: list[Tensor] | None = [] if self._returns and config.output_logits else None
        self._scores: list[Tensor] | None = [] if self._returns and config.output_scores else None
        self._logprobs: list[Tensor] = []
        self._forwards = self._drafted = self._accepted = 0

    @classmethod
    def of_rows(cls, config: GenerationConfig, records: Sequence[Self]) -> Self:
        """The record of rows that have one each, zeros after the end of a row."""
        joined = cls(config)
        for mine, theirs in (
            (joined._logits, [each._logits for each in records]),
            (joined._scores, [each._scores for each in records]),
            (joined._logprobs, [each._logprobs for each in records]),
        ):
            if mine is not None:
                mine.extend(_steps([each for each in theirs if each is not None]))
        return joined

    @property
    def scores(self) -> tuple[Tensor, ...] | None:
        """Of all steps, None unless asked for."""
        return None if self._scores is None else tuple(self._scores)

    def add(self, logits: Tensor, scores: Tensor, logprobs: Tensor) -> None:
        """Keep what a step has: [rows, vocabulary] from the model and from processors, [rows]."""
        if self._logits is not None:
            self._logits.append(logits)
        if self._scores is not None:
            self._scores.append(scores)
        self._logprobs.append(logprobs)

    def count(self, forwards: int, drafted: int = 0, accepted: int = 0) -> None:
        """Count forward passes, and the drafts that they were about."""
        self._forwards += forwards
        self._drafted += drafted
        self._accepted += accepted

    def output(self, ids: Tensor, cache: Any) -> Tensor | Generated:
        """What `generate` returns."""
        if not self._returns:
            return ids
        return Generated(
            sequences=ids,
            scores=self.scores,
            logits=None if self._logits is None else tuple(self._logits),
            past_key_values=cache,
            logprobs=torch.stack(self._logprobs, dim=1),
            forwards=self._forwards,
            drafted=self._drafted,
            accepted=self._accepted,
        )


def _steps(rows: Sequence[list[Tensor]]) -> list[Tensor]:
    """Steps of all rows, from those of each."""
    nothing = torch.zeros_like(rows[0][0])
    longest = max(map(len, rows))
    return [torch.cat([row[at] if at < len(row) else nothing for row in rows]) for at in range(longest)]
