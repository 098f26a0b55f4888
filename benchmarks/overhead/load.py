"""What an engine is given to do: prompts, how tokens are drawn, and what holds them to a grammar."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

TEXT: Final = (
    "The ferry left the harbour a little after nine. There were eleven passengers, two of them "
    "children, and a crate of oranges that nobody had asked for. Behind the island the wind turned to "
    "the north, and the captain, who had made the crossing four thousand times, wrote the hour and the "
    "direction into his book. In the evening he would compare it with the forecast, as he always did, "
    "and find that one of the two had been wrong. "
)
"""Prompts are cut from it, so that those of a batch have one length and none of them is padded."""

SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 40, "maxLength": 200},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
"""Where none is given; no text that is valid under it has fewer than about 30 tokens."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is drawn; what is neutral is not done.

    Attributes:
        name: for people.
        logprobs: how many of the likeliest tokens are reported with their log-probabilities; None for none.
    """

    name: str
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: int | None = None


SAMPLINGS: Final = {
    sampling.name: sampling
    for sampling in (
        Sampling("greedy"),
        Sampling("temperature", temperature=1.0),
        Sampling("top-k, top-p", temperature=1.0, top_k=50, top_p=0.9),
        Sampling("top-p", temperature=1.0, top_p=0.9),
        Sampling("min-p, penalty", temperature=1.0, min_p=0.05, repetition_penalty=1.1),
        Sampling("log-probs", logprobs=5),
    )
}
"""By name; the values are those that people use most."""

STRUCTURES: Final = ("none", "ours", "xgrammar", "guidance", "outlines")
"""What may hold texts to a grammar: nothing, this package, or a backend of vLLM's."""


@dataclass(frozen=True, slots=True)
class Load:
    """A batch of requests.

    Attributes:
        batch: how many texts are written at a time.
        context: tokens of a prompt.
        tokens: how many are written after it, at most.
        late: how many of the batch come after the others have begun to write, where an engine can have that.
        structure: one of `STRUCTURES`.
        schema: the JSON Schema that texts are held to, if they are.
    """

    batch: int = 1
    context: int = 32
    tokens: int = 24
    late: int = 0
    sampling: Sampling = SAMPLINGS["greedy"]
    structure: str = "none"
    schema: Any = field(default_factory=lambda: SCHEMA, hash=False)

    def __str__(self) -> str:
        return f"batch {self.batch}, {self.sampling.name}, structure {self.structure}"


def prompts(tokenizer: Any, load: Load) -> list[list[int]]:
    """Token ids of a prompt for each row, all of one length and no two alike."""
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    ids = ids * (1 + (load.batch + load.context) // len(ids))
    return [ids[row : row + load.context] for row in range(load.batch)]
