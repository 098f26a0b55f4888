"""Rules: one parameter each, by the name that users know it under, for all rows or for each its own.

Sampler(Temperature(0.7), TopK([50, 0, 20]))    # three rows with a top-k of their own
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from sortition.grammars.table import Table
from sortition.sampling.parameters import Parameters


class Rule:
    """A parameter and its value, or a sequence with a value for each row.

    Attributes:
        parameter: the name of the parameter; see `Parameters` for what it means.
    """

    parameter: ClassVar[str]

    def __init__(self, value: Any) -> None:
        self._each = self._listed(value)
        # Out of bounds is said here, where the caller wrote it.
        for each in self._each:
            Parameters(**{self.parameter: each})

    def __repr__(self) -> str:
        shown = self._each[0] if len(self._each) == 1 else list(self._each)
        return f"{type(self).__name__}({shown!r})"

    def __len__(self) -> int:
        """How many rows have a value of their own, 1 for one that all share."""
        return len(self._each)

    def value(self, row: int, rows: int) -> Any:
        """The value of one row among so many.

        Raises:
            ValueError: there are values for another number of rows.
        """
        if len(self._each) == 1:
            return self._each[0]
        if len(self._each) != rows:
            raise ValueError(f"{self!r} has values for {len(self._each)} rows, not for {rows}")
        return self._each[row]

    def _listed(self, value: Any) -> tuple[Any, ...]:
        """The values of all rows; one value stands for every row."""
        values = value.tolist() if hasattr(value, "tolist") else value
        each = values if isinstance(values, Sequence) and not isinstance(values, str) else [values]
        if not each:
            raise ValueError(f"{type(self).__name__} has no value")
        return tuple(each)


class Temperature(Rule):
    """See `Parameters.temperature`."""

    parameter = "temperature"


class TopK(Rule):
    """See `Parameters.top_k`."""

    parameter = "top_k"


class TopP(Rule):
    """See `Parameters.top_p`."""

    parameter = "top_p"


class MinP(Rule):
    """See `Parameters.min_p`."""

    parameter = "min_p"


class Typical(Rule):
    """See `Parameters.typical`."""

    parameter = "typical"


class Epsilon(Rule):
    """See `Parameters.epsilon`."""

    parameter = "epsilon"


class Eta(Rule):
    """See `Parameters.eta`."""

    parameter = "eta"


class TopNSigma(Rule):
    """See `Parameters.top_n_sigma`."""

    parameter = "top_n_sigma"


class RepetitionPenalty(Rule):
    """See `Parameters.repetition_penalty`."""

    parameter = "repetition_penalty"


class PresencePenalty(Rule):
    """See `Parameters.presence_penalty`."""

    parameter = "presence_penalty"


class FrequencyPenalty(Rule):
    """See `Parameters.frequency_penalty`."""

    parameter = "frequency_penalty"


class MinTokens(Rule):
    """See `Parameters.min_tokens`."""

    parameter = "min_tokens"


class LogitBias(Rule):
    """See `Parameters.logit_bias`: a mapping from token to bias, or a list of them."""

    parameter = "logit_bias"

    def _listed(self, value: Any) -> tuple[Any, ...]:
        return (value,) if isinstance(value, Mapping) else tuple(value)


class AllowedTokens(Rule):
    """See `Parameters.allowed_tokens`: ids, or a list of such lists."""

    parameter = "allowed_tokens"

    def _listed(self, value: Any) -> tuple[Any, ...]:
        values = list(value)
        if all(isinstance(each, int) for each in values):
            return (tuple(values),)
        return tuple(each if each is None else tuple(each) for each in values)


class BadWords(Rule):
    """See `Parameters.bad_words`: phrases of ids, or a list of such lists."""

    parameter = "bad_words"

    def _listed(self, value: Any) -> tuple[Any, ...]:
        values = list(value)
        if all(isinstance(token, int) for phrase in values for token in phrase):
            return (tuple(map(tuple, values)),)
        return tuple(tuple(map(tuple, phrases)) for phrases in values)


class Constrain:
    """The grammar of all rows, or of each its own, None for no grammar."""

    def __init__(self, table: Table | Sequence[Table | None]) -> None:
        self.tables: tuple[Table | None, ...] = (table,) if isinstance(table, Table) else tuple(table)
        if not self.tables:
            raise ValueError("Constrain has no table")

    def __repr__(self) -> str:
        return f"Constrain({', '.join(map(repr, self.tables))})"
