"""Parameters of a batch as columns: the arrays that backends read, one value for each row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from sortition.sampling.parameters import Parameters


@dataclass(frozen=True, eq=False)
class Columns:
    """The parameters of rows.

    Attributes:
        parameters: of each row.
    """

    parameters: tuple[Parameters, ...]

    def __len__(self) -> int:
        return len(self.parameters)

    @classmethod
    def of(cls, parameters: Iterable[Parameters]) -> Self:
        """The columns of these rows."""
        return cls(tuple(parameters))

    def check(self, width: int) -> None:
        """That every token which is named has a logit.

        Raises:
            ValueError: one is beyond the width, or negative.
        """
        for each in self.parameters:
            for name, tokens in (
                ("logit_bias", each.logit_bias),
                ("allowed_tokens", each.allowed_tokens or ()),
                ("bad_words", (token for phrase in each.bad_words for token in phrase)),
            ):
                for token in tokens:
                    if not 0 <= token < width:
                        raise ValueError(f"{name} names token {token}, and there are {width} tokens")
