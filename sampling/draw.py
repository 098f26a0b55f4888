"""A draw: what it is asked for, and what comes out; the nouns that backends and the sampler share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortition.sampling import noise
from sortition.sampling.columns import Columns

NO_TOKEN: Final = -1
"""What a row draws that may draw nothing: no id, so that nobody can take it for one."""

EMPTY: Final = 1
"""Flag: no token is left whose logit is above -inf."""

NAN: Final = 2
"""Flag: the logit of an eligible token is NaN."""

INFINITE: Final = 4
"""Flag: the logit of an eligible token is +inf."""


@dataclass(frozen=True, eq=False)
class Report:
    """What a law says about a draw; all of it on the device of the logits.

    Attributes:
        logprobs: float32 [rows], ln of the drawn token's probability, -inf where it has none.
        entropy: float32 [rows], in nats; None unless asked for.
        top_tokens: int64 [rows, n], the most likely tokens, -1 where there are fewer; None unless asked for.
        top_logprobs: float32 [rows, n], ln of their probabilities; None unless asked for.
    """

    logprobs: Tensor
    entropy: Tensor | None = None
    top_tokens: Tensor | None = None
    top_logprobs: Tensor | None = None

    def to(self, device: torch.device) -> Report:
        """The same on another device."""
        return Report(*(part if part is None else part.to(device) for part in self.parts))  # type: ignore[arg-type]

    def with_rows(self, rows: Tensor, other: Report) -> Report:
        """This report, but its rows [n] are those of another, which has only them."""
        pairs = zip(self.parts, other.parts, strict=True)
        return Report(*(mine if mine is None else mine.index_copy(0, rows, theirs) for mine, theirs in pairs))  # type: ignore[arg-type]

    @property
    def parts(self) -> tuple[Tensor | None, ...]:
        """All of it."""
        return self.logprobs, self.entropy, self.top_tokens, self.top_logprobs


@dataclass(frozen=True, eq=False)
class Draw:
    """The token of each row; all of it on the device of the logits.

    Attributes:
        tokens: int64 [rows], -1 in a row that could not be drawn from.
        kept: int64 [rows], how many tokens could have been drawn.
        flags: uint8 [rows], 0 or a sum of `EMPTY`, `NAN` and `INFINITE`.
        processed: under the law that the token was drawn from.
        raw: under the law of the logits as they came; None unless asked for.
    """

    tokens: Tensor
    kept: Tensor
    flags: Tensor
    processed: Report
    raw: Report | None = None

    @property
    def logprobs(self) -> Tensor:
        """float32 [rows], ln of the drawn token's probability under the law that it was drawn from."""
        return self.processed.logprobs

    def to(self, device: torch.device) -> Draw:
        """The same on another device."""
        raw = None if self.raw is None else self.raw.to(device)
        tokens, kept, flags = (part.to(device) for part in (self.tokens, self.kept, self.flags))
        return Draw(tokens, kept, flags, self.processed.to(device), raw)

    def with_rows(self, rows: Tensor, other: Draw) -> Draw:
        """This draw with what rows [n] draw in another, which has only them; flags stay."""
        return replace(
            self,
            tokens=self.tokens.index_copy(0, rows, other.tokens),
            kept=self.kept.index_copy(0, rows, other.kept),
            processed=self.processed.with_rows(rows, other.processed),
        )


@dataclass(frozen=True, eq=False)
class Request:
    """What a backend is asked for: a batch of rows, everything on the host.

    Attributes:
        columns: the parameters of the rows.
        seeds, positions: int64 [rows].
        prompt, output: int64 [rows, n], [rows, m]; negative ids are padding.
        end_tokens: int64 [rows, k]; negative ids are padding.
        grammar: bool [rows, vocabulary], None without any.
        top: how many of the most likely tokens to report.
        raw: whether to report the raw law, too.
        entropy: whether to report entropies.
        stream: of the noise.
    """

    columns: Columns
    seeds: NDArray[np.int64]
    positions: NDArray[np.int64]
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    end_tokens: NDArray[np.int64]
    grammar: NDArray[np.bool_] | None = None
    top: int = 0
    raw: bool = False
    entropy: bool = False
    stream: int = noise.TARGET

    def rows(self, index: NDArray[np.int64]) -> Request:
        """The same for these rows alone."""
        return replace(
            self,
            columns=self.columns.rows(index),
            seeds=self.seeds[index],
            positions=self.positions[index],
            prompt=self.prompt[index],
            output=self.output[index],
            end_tokens=self.end_tokens[index],
            grammar=None if self.grammar is None else self.grammar[index],
        )


Backend: TypeAlias = Callable[[Tensor, Request], Draw]
"""Logits [rows, vocabulary] of any floating type and strides, on the host -> a draw."""
