"""What engines did with schemas, summed up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sortition.benchmarks.timing import percentiles
from sortition.grammars.schema_keywords import KEYWORDS, Shape


@dataclass(slots=True)
class Outcome:
    """What an engine did with one schema and its instances; times in seconds.

    Attributes:
        refused: the keyword for which the schema was refused, or the kind of error; None if it was not.
        first_mask: for compiling the schema and the first mask.
        masks, steps: of every token: the mask, and the mask with the commit.
        heap: bytes that the compiled schema holds after all instances; None where that cannot be measured.
        table: bytes of the compiled schema, as the engine says; None if it does not.
        wrongly_accepted, wrongly_refused: instances.
    """

    refused: str | None = None
    first_mask: float = 0.0
    masks: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    heap: int | None = None
    table: int | None = None
    wrongly_accepted: int = 0
    wrongly_refused: int = 0

    def keep_quieter(self, other: Outcome) -> None:
        """Of every step, the smaller time of this run and another one of the same texts."""
        self.masks = list(map(min, self.masks, other.masks))
        self.steps = list(map(min, self.steps, other.steps))

    @property
    def passed(self) -> bool:
        """Whether it compiled and every verdict is right."""
        return self.refused is None and not self.wrongly_accepted and not self.wrongly_refused


def engine_json(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Counts and percentiles over the schemas that an engine was given, as plain JSON values."""
    compiled = [each for each in outcomes if each.refused is None]
    return {
        "compiled": len(compiled),
        "passed": sum(each.passed for each in compiled),
        "wrongly accepted instances": sum(each.wrongly_accepted for each in compiled),
        "wrongly refused instances": sum(each.wrongly_refused for each in compiled),
        "first mask us": percentiles([1e6 * each.first_mask for each in compiled], (50, 90, 99)),
        "mask us": percentiles(
            [1e6 * value for each in compiled for value in each.masks], (50, 90, 99, 99.9)
        ),
        "mask + advance us": percentiles(
            [1e6 * value for each in compiled for value in each.steps], (50, 90, 99, 99.9)
        ),
        "heap KiB": percentiles(
            [each.heap / 1024 for each in compiled if each.heap is not None], (50, 90, 99)
        ),
        "table KiB": percentiles(
            [each.table / 1024 for each in compiled if each.table is not None], (50, 90, 99)
        ),
        "refused": dict(Counter(each.refused for each in outcomes if each.refused).most_common()),
    }


def keywords(schema: Any) -> set[str]:
    """Every keyword in a schema that decides on values, those of the schemas inside included."""
    return set(_keywords(schema))


def _keywords(schema: Any) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    for name, value in schema.items():
        known = KEYWORDS.get(name)
        if known is None:
            continue
        yield name
        if known.shape in (Shape.SCHEMA_MAP, Shape.DEPENDENCIES) and isinstance(value, dict):
            inside = list(value.values())
        elif isinstance(value, list):
            inside = value if known.shape in (Shape.SCHEMAS, Shape.ITEMS) else []
        else:
            inside = [value] if known.shape in (Shape.SCHEMA, Shape.ITEMS, Shape.FLAG_OR_SCHEMA) else []
        for each in inside:
            yield from _keywords(each)
