"""What a request asks of its draws: parameters, their bounds, and the orders that engines apply them in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Final, Literal, TypeAlias

Ties: TypeAlias = Literal["exact", "keep"]

EDITS: Final = (
    "grammar",
    "allowed_tokens",
    "bad_words",
    "min_tokens",
    "logit_bias",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
"""Stages that change logits; all of them come before the filters."""

FILTERS: Final = ("top_n_sigma", "top_k", "top_p", "min_p", "typical", "epsilon", "eta")
"""Stages that rule out all but the most likely of the tokens that the stages before have left."""

STAGES: Final = (*EDITS, "temperature", *FILTERS)


@dataclass(frozen=True)
class Order:
    """In which order stages are applied, and what else engines do differently.

    Attributes:
        name: of the engine.
        stages: a permutation of `STAGES`; temperature may stand among the edits or among the filters.
        counts_prompt: whether presence and frequency penalties count the prompt, too.
        phrases_see_prompt: whether a bad word may begin in the prompt.
        penalty_window: how many of the last tokens penalties see, None for all.
        joint: whether top-p takes its share of the mass before the filters, not of what they have left.
        more_than: filters by mass that keep tokens until they have more than the given share, not as much.
    """

    name: str
    stages: tuple[str, ...]
    counts_prompt: bool = True
    phrases_see_prompt: bool = True
    penalty_window: int | None = None
    joint: bool = False
    more_than: frozenset[str] = frozenset()


_PENALTIES: Final = ("repetition_penalty", "frequency_penalty", "presence_penalty")

ORDERS: Final[dict[str, Order]] = {
    order.name: order
    for order in (
        # v1/sample/sampler.py and v1/worker/gpu/sample/sampler.py of 0.32.
        Order(
            "vllm",
            (
                *("grammar", "allowed_tokens", "bad_words", "min_tokens", "logit_bias", *_PENALTIES),
                *("temperature", "top_n_sigma", "min_p", "top_k", "top_p", "typical", "epsilon", "eta"),
            ),
            counts_prompt=False,
            phrases_see_prompt=False,
        ),
        # generation/utils.py of 5.19, `_get_logits_processor`.
        Order(
            "hf",
            (
                *("logit_bias", *_PENALTIES, "bad_words", "min_tokens", "allowed_tokens", "grammar"),
                *("temperature", "top_n_sigma", "top_k", "top_p", "min_p", "typical", "epsilon", "eta"),
            ),
        ),
        # common/sampling.cpp: temperature comes last, and penalties see the last 64 tokens.
        Order(
            "llama.cpp",
            (
                *("grammar", "allowed_tokens", "bad_words", "min_tokens", "logit_bias", *_PENALTIES),
                *("top_n_sigma", "top_k", "typical", "top_p", "min_p", "epsilon", "eta", "temperature"),
            ),
            penalty_window=64,
            more_than=frozenset({"typical"}),
        ),
        # srt/layers/sampler.py, the torch backend: filters look at the law that none of them has cut.
        Order(
            "sglang",
            (
                *("temperature", "logit_bias", "grammar", "allowed_tokens", "bad_words", "min_tokens"),
                *(*_PENALTIES, "top_n_sigma", "top_k", "top_p", "min_p", "typical", "epsilon", "eta"),
            ),
            counts_prompt=False,
            phrases_see_prompt=False,
            joint=True,
            more_than=frozenset({"top_p"}),
        ),
    )
}
"""The presets by name."""


def order_of(stages: tuple[str, ...]) -> Order:
    """A user's own order: stages that are not named come after those that are, as in vLLM's.

    Raises:
        ValueError: an unknown stage, one named twice, or an edit after a filter.
    """
    for stage in stages:
        if stage not in STAGES:
            raise ValueError(f"unknown stage {stage!r}{_nearest(stage, STAGES)}")
    if len(set(stages)) < len(stages):
        raise ValueError(f"an order names a stage once: {', '.join(stages)}")
    first = next((at for at, stage in enumerate(stages) if stage in FILTERS), len(stages))
    late = [stage for stage in stages[first:] if stage in EDITS]
    if late:
        raise ValueError(
            f"{late[0]} changes logits, so it comes before the filters, not after {stages[first]}"
        )
    rest = [stage for stage in ORDERS["vllm"].stages if stage not in stages]
    edits = [*stages[:first], *(stage for stage in rest if stage in EDITS)]
    if "temperature" in stages:
        return Order("own", (*edits, *stages[first:], *(stage for stage in rest if stage in FILTERS)))
    return Order("own", (*edits, "temperature", *stages[first:], *(s for s in rest if s in FILTERS)))


@dataclass(frozen=True)
class Parameters:
    """What one request asks of its draws; what is left out changes nothing.

    Attributes:
        temperature: divides the logits; below `GREEDY_BELOW` only the most likely token is left.
        top_k: how many tokens are left; 0 or less for all.
        top_p: the fewest most likely tokens with this share of the mass (Holtzman et al. 2020, section 3.1).
        min_p: tokens at least this many times as likely as the likeliest (Nguyen et al. 2024, section 3).
        typical: the tokens whose surprise is nearest to the entropy, until they have this share of the mass
            (Meister et al. 2023, section 4).
        epsilon: tokens of at least this probability (Hewitt et al. 2022, section 3.1).
        eta: tokens of at least min(eta, sqrt(eta) exp(-entropy)) (Hewitt et al. 2022, section 3.2).
        top_n_sigma: tokens whose logit is at most so many standard deviations of all finite logits below the
            greatest (Tang et al. 2024, section 3); 0 for all.
        repetition_penalty: divides positive logits of tokens that have occurred, and multiplies the others
            (Keskar et al. 2019, section 4.1).
        presence_penalty: is taken from logits of tokens that have occurred.
        frequency_penalty: is taken from logits once for each time that the token has occurred.
        penalty_window: how many of the last tokens penalties see, instead of what the order says.
        logit_bias: is added to logits, by token.
        allowed_tokens: no other tokens are drawn, if given.
        bad_words: phrases, as token ids, that are not completed.
        min_tokens: no end token is drawn before so many tokens have been.
        order: a preset's name, or stages in the user's own order; see `ORDERS` and `order_of`.
        ties: whether a cut by rank or mass may part tokens of equal logits (lowest ids first), or keeps all.
        min_keep: how many tokens each filter leaves at least.

    Raises:
        ValueError: a value is out of its bounds.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical: float = 1.0
    epsilon: float = 0.0
    eta: float = 0.0
    top_n_sigma: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_tokens: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    order: str | tuple[str, ...] = "vllm"
    ties: Ties = "exact"
    min_keep: int = 1

    def __post_init__(self) -> None:
        for name, (least, greatest, text) in BOUNDS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
                raise ValueError(f"{name} is a number, not {value!r}")
            if not least <= value <= greatest or (name in _POSITIVE and value <= 0) or math.isinf(value):
                raise ValueError(f"{name} is {text}, not {value!r}")
        for name in ("top_k", "min_tokens", "min_keep", "penalty_window"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise ValueError(f"{name} is a whole number, not {value!r}")
        if self.penalty_window is not None and self.penalty_window < 0:
            raise ValueError(f"penalty_window is 0 or more, not {self.penalty_window!r}")
        if self.ties not in ("exact", "keep"):
            raise ValueError(f"ties is 'exact' or 'keep', not {self.ties!r}")
        for token, bias in self.logit_bias.items():
            if not isinstance(bias, int | float) or math.isnan(bias) or bias == math.inf:
                raise ValueError(f"logit_bias of token {token} is a number below infinity, not {bias!r}")
        if self.allowed_tokens is not None and not self.allowed_tokens:
            raise ValueError("allowed_tokens is empty, so nothing could be drawn")
        if not all(self.bad_words):
            raise ValueError("a phrase of bad_words is empty, which would rule out everything")
        order = self.resolved_order
        if self.min_p > 1 and order.name != "llama.cpp":
            raise ValueError(f"min_p is from 0 to 1, not {self.min_p!r}")

    @property
    def resolved_order(self) -> Order:
        """The order as a whole.

        Raises:
            ValueError: there is no such preset, or stages cannot come in this order.
        """
        if not isinstance(self.order, str):
            return order_of(tuple(self.order))
        if self.order not in ORDERS:
            raise ValueError(f"unknown order {self.order!r}{_nearest(self.order, ORDERS)}")
        return ORDERS[self.order]

    @property
    def sees_history(self) -> bool:
        """Whether draws depend on which tokens came before."""
        return bool(
            self.bad_words
            or self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of all parameters."""
        return tuple(each.name for each in fields(cls))


GREEDY_BELOW: Final = 1e-5
"""Temperatures below are 0, as in vLLM: divided by less, logits that differ in the last bit are far apart."""

BOUNDS: Final[dict[str, tuple[float, float, str]]] = {
    "temperature": (0.0, math.inf, "0 or more"),
    "top_k": (-1, math.inf, "a whole number, 0 or -1 for all tokens"),
    "top_p": (0.0, 1.0, "from 0 to 1"),
    "min_p": (0.0, math.inf, "from 0 to 1"),
    "typical": (0.0, 1.0, "above 0, up to 1"),
    "epsilon": (0.0, 1.0, "from 0 to below 1"),
    "eta": (0.0, 1.0, "from 0 to below 1"),
    "top_n_sigma": (-math.inf, math.inf, "a number, 0 or less for all tokens"),
    "repetition_penalty": (0.0, math.inf, "above 0"),
    "presence_penalty": (-math.inf, math.inf, "a finite number"),
    "frequency_penalty": (-math.inf, math.inf, "a finite number"),
    "min_tokens": (0, math.inf, "0 or more"),
    "min_keep": (1, math.inf, "1 or more"),
}
"""Least, greatest and how to say so: what some engine accepts and that means something.

top_p = 0 keeps the likeliest in transformers and llama.cpp, and vLLM refuses it; top_k = 0 and -1 are off in
vLLM and llama.cpp, and transformers refuses them; min_p above 1 means 1 in llama.cpp, and nothing elsewhere.
"""

_POSITIVE: Final = ("typical", "repetition_penalty")


def _nearest(name: Any, names: Any) -> str:
    near = get_close_matches(str(name), list(names), n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names)}"
