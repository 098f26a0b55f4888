"""The parts of a step, by the names that reports use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

SCHEDULE: Final = "schedule"
INPUTS: Final = "inputs"
FORWARD: Final = "forward"
LOGITS: Final = "logits"
MASK_FILL: Final = "mask fill"
MASK_APPLY: Final = "mask apply"
PENALTIES: Final = "penalties"
FILTERS: Final = "filters"
DRAW: Final = "draw"
LOGPROBS: Final = "log-probs"
BOOKKEEPING: Final = "bookkeeping"
DETOKENISE: Final = "detokenise"

ORDER: Final = (
    *(SCHEDULE, INPUTS, FORWARD, LOGITS, MASK_FILL, MASK_APPLY, PENALTIES, FILTERS, DRAW, LOGPROBS),
    *(BOOKKEEPING, DETOKENISE),
)
"""As a step has them; processors come after the penalties."""

DECISION: Final = (MASK_FILL, MASK_APPLY, PENALTIES, FILTERS, DRAW, LOGPROBS)
"""What is done to decide on a token, besides processors: the parts that this tool is about."""

INSTRUMENT: Final = "instrument"
"""No part of the engine: the timing of its parts, which can be left out as they can."""

JOINT: Final = " + "
"""Between the names of parts that are meant together."""

_PROCESSOR: Final = "processor: "


def processors(instances: Iterable[object]) -> list[str]:
    """Names of processors that are not the engine's own; several of one class are numbered."""
    seen: Counter[str] = Counter()
    names = []
    for instance in instances:
        kind = type(instance).__name__
        seen[kind] += 1
        names.append(_PROCESSOR + (kind if seen[kind] == 1 else f"{kind} {seen[kind]}"))
    return names


def is_processor(part: str) -> bool:
    """Whether the part is a processor that is not the engine's own."""
    return part.startswith(_PROCESSOR)


def is_decision(part: str) -> bool:
    """Whether the part is there to decide on a token."""
    return part in DECISION or is_processor(part)


def is_structure(part: str) -> bool:
    """Whether the part holds texts to a grammar, or is a processor, which may do that as well."""
    return part in (MASK_FILL, MASK_APPLY) or is_processor(part)


def place(part: str) -> tuple[int, str]:
    """The part's place among all of them, as a key to sort by."""
    return (ORDER.index(FILTERS) if is_processor(part) else ORDER.index(part), part)
