"""Rules: one parameter each, by the name that users know it under, for all rows or for each its own.

Sampler(Temperature(0.7), TopK([50, 0, 20]))    # three rows with a top-k of their own
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
        self._each = self._listed(plain(value))
        # Out of bounds is said here, where the caller wrote it; of llama.cpp's order, which has the widest.
        for each in self._each:
            Parameters(**{self.parameter: each}, order="llama.cpp")

    def __repr__(self) -> str:
        shown = self._each[0] if len(self._each) == 1 else list(self._each)
        return f"{type(self).__name__}({shown!r})"

    def __len__(self) -> int:
        """How many rows have a value of their own, 1 for one that all share."""
        return len(self._each)

    def check(self, rows: int) -> None:
        """That there is a value for each of so many rows.

        Raises:
            ValueError: there are values for another number of rows.
        """
        if len(self._each) not in (1, rows):
            raise ValueError(f"{self!r} has values for {len(self._each)} rows, not for {rows}")

    def value(self, row: int) -> Any:
        """The value of one row."""
        return self._each[0] if len(self._each) == 1 else self._each[row]

    def _listed(self, value: Any) -> tuple[Any, ...]:
        """The values of all rows; one value stands for every row."""
        each = value if isinstance(value, list) else [value]
        if not each:
            raise ValueError(f"{type(self).__name__} has no value")
        return tuple(each)


def _holds_lists(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(each, list) for each in value)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def plain(value: Any) -> Any:
    """The same, of numpy, torch or any container, in Python's own numbers, lists and dicts."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {plain(key): plain(each) for key, each in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [plain(each) for each in value]
    return value


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
    """See `Parameters.logit_bias`: a mapping from token to bias, or one for each row, None for no bias."""

    parameter = "logit_bias"

    def _listed(self, value: Any) -> tuple[Any, ...]:
        return tuple({} if each is None else each for each in super()._listed(value))


class AllowedTokens(Rule):
    """See `Parameters.allowed_tokens`: ids, or a list of such lists, None for a row that may draw any."""

    parameter = "allowed_tokens"

    def _listed(self, value: Any) -> tuple[Any, ...]:
        rows = value if isinstance(value, list) else [value]
        if not any(each is None or isinstance(each, list) for each in rows):
            rows = [rows]
        return tuple(map(_tuples, rows))


class BadWords(Rule):
    """See `Parameters.bad_words`: phrases of ids, or a list of such lists, None for a row without any."""

    parameter = "bad_words"

    def _listed(self, value: Any) -> tuple[Any, ...]:
        rows = value if isinstance(value, list) else [value]
        if not any(row is None or _holds_lists(row) for row in rows):
            rows = [rows]
        return tuple(() if row is None else _tuples(row) for row in rows)


class Constrain:
    """The grammar of all rows, or of each its own, None for no grammar."""

    def __init__(self, table: Table | Sequence[Table | None]) -> None:
        tables = (table,) if isinstance(table, Table) else table
        if not isinstance(tables, Sequence) or not all(isinstance(each, Table | None) for each in tables):
            raise TypeError(f"Constrain takes a table, or one for each row, not {table!r}")
        self.tables: tuple[Table | None, ...] = tuple(tables)
        if not self.tables:
            raise ValueError("Constrain has no table")

    def __repr__(self) -> str:
        return f"Constrain({', '.join(map(repr, self.tables))})"
