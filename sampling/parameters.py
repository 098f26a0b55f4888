"""What a request asks of its draws: parameters, their bounds, and the orders that engines apply them in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import lru_cache
from numbers import Integral, Real
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
        see_prompt: the stages that look at the prompt as at what has been generated: penalties count its
            tokens, and bad words may begin in it.
        spares_end_tokens: whether a bad word that is an end token and nothing else is ignored.
        penalty_window: how many of the last tokens penalties see, None for all.
        joint: whether top-p takes its share of the mass before the filters, not of what they have left.
        more_than: filters by mass that keep tokens until they have more than the given share, not as much.
    """

    name: str
    stages: tuple[str, ...]
    see_prompt: frozenset[str] = frozenset()
    spares_end_tokens: bool = False
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
            see_prompt=frozenset({"repetition_penalty"}),
        ),
        # generation/utils.py of 5.19, `_get_logits_processor`.
        Order(
            "hf",
            (
                *("logit_bias", *_PENALTIES, "bad_words", "min_tokens", "allowed_tokens", "grammar"),
                *("temperature", "top_n_sigma", "top_k", "top_p", "min_p", "typical", "epsilon", "eta"),
            ),
            see_prompt=frozenset({*_PENALTIES, "bad_words"}),
            spares_end_tokens=True,
        ),
        # common/sampling.cpp: temperature comes last, and penalties see the last 64 tokens.
        Order(
            "llama.cpp",
            (
                *("grammar", "allowed_tokens", "bad_words", "min_tokens", "logit_bias", *_PENALTIES),
                *("top_n_sigma", "top_k", "typical", "top_p", "min_p", "epsilon", "eta", "temperature"),
            ),
            see_prompt=frozenset({*_PENALTIES, "bad_words"}),
            penalty_window=64,
            more_than=frozenset({"typical"}),
        ),
        # `apply_logits_bias` of srt/sampling/sampling_batch_info.py, and the torch backend of
        # srt/layers/sampler.py: no penalty sees the prompt, and filters look at the law that none has cut.
        Order(
            "sglang",
            (
                *("frequency_penalty", "presence_penalty", "min_tokens", "repetition_penalty"),
                *("grammar", "allowed_tokens", "bad_words", "logit_bias", "temperature"),
                *("top_n_sigma", "top_k", "top_p", "min_p", "typical", "epsilon", "eta"),
            ),
            joint=True,
            more_than=frozenset({"top_p"}),
        ),
    )
}
"""The presets by name."""


@lru_cache
def order_of(stages: tuple[str, ...]) -> Order:
    """A user's own order; in all else it is as vLLM's.

    Edits and filters that are not named come after those that are. Temperature is between the two, unless it
    is named among the edits, with one after it, or among the filters.

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
    vllm = ORDERS["vllm"]
    rest = [stage for stage in vllm.stages if stage not in stages]
    edits = list(stages[:first])
    if edits[-1:] == ["temperature"]:
        edits.pop()
    edits += [stage for stage in rest if stage in EDITS]
    filters = [*stages[first:], *(stage for stage in rest if stage in FILTERS)]
    temperature = [] if "temperature" in (*edits, *filters) else ["temperature"]
    return replace(vllm, name="own", stages=(*edits, *temperature, *filters))


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
        for name, bound in BOUNDS.items():
            _check_number(name, getattr(self, name), *bound)
        for name in ("top_k", "min_tokens", "min_keep"):
            _check_whole(name, getattr(self, name))
        if self.penalty_window is not None:
            _check_whole("penalty_window", self.penalty_window)
            _check_number("penalty_window", self.penalty_window, 0, WHOLE, "0 or more")
        if self.ties not in ("exact", "keep"):
            raise ValueError(f"ties is 'exact' or 'keep', not {self.ties!r}")
        if not isinstance(self.logit_bias, Mapping):
            raise ValueError(f"logit_bias maps tokens to numbers, and {self.logit_bias!r} does not")
        _check_tokens("logit_bias", self.logit_bias)
        for token, bias in self.logit_bias.items():
            if bias != -math.inf:
                _check_number(
                    f"logit_bias of token {token}", bias, -FLOAT32, FLOAT32, "-inf or within float32"
                )
        if self.allowed_tokens is not None:
            _check_tokens("allowed_tokens", self.allowed_tokens)
            if not self.allowed_tokens:
                raise ValueError("allowed_tokens is empty, so nothing could be drawn")
        _check_phrases("bad_words", self.bad_words)
        order = self.resolved_order
        if self.min_p > 1 and order.name != "llama.cpp":
            raise ValueError(f"min_p is from 0 to 1, not {self.min_p!r}")

    @property
    def resolved_order(self) -> Order:
        """The order as a whole.

        Raises:
            ValueError: there is no such preset, or stages cannot come in this order.
        """
        if isinstance(self.order, str) and self.order in ORDERS:
            return ORDERS[self.order]
        if isinstance(self.order, Sequence) and not isinstance(self.order, str):
            return order_of(tuple(self.order))
        raise ValueError(f"unknown order {self.order!r}{_nearest(self.order, ORDERS)}")

    @property
    def sees_history(self) -> bool:
        """Whether draws depend on which tokens came before."""
        return bool(self.bad_words) or self.penalises

    @property
    def penalises(self) -> bool:
        """Whether a penalty changes anything."""
        return bool(
            self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
        )

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of all parameters."""
        return tuple(each.name for each in fields(cls))


GREEDY_BELOW: Final = 1e-5
"""Temperatures below are 0, as in vLLM: divided by less, logits that differ in the last bit are far apart."""

FLOAT32: Final = 3.4028234663852886e38
"""The greatest float32: draws are made of these."""

WHOLE: Final = 2**63 - 1
"""The greatest integer of 64 bits."""

TOKENS: Final = 2**31
"""Ids of tokens are below, in every engine: they are kept as int32."""

BOUNDS: Final[dict[str, tuple[float, float, str]]] = {
    "temperature": (0.0, FLOAT32, "0 or more, within float32"),
    "top_k": (-1, WHOLE, "a whole number, 0 or -1 for all tokens"),
    "top_p": (0.0, 1.0, "from 0 to 1"),
    "min_p": (0.0, FLOAT32, "from 0 to 1"),
    "typical": (math.ulp(0.0), 1.0, "above 0, up to 1"),
    "epsilon": (0.0, math.nextafter(1.0, 0.0), "from 0 to below 1"),
    "eta": (0.0, math.nextafter(1.0, 0.0), "from 0 to below 1"),
    "top_n_sigma": (-FLOAT32, FLOAT32, "a number within float32, 0 or less for all tokens"),
    # A smaller one would be 0 or denormal in float32, and 0 times -inf is nothing.
    "repetition_penalty": (1.1754943508222875e-38, FLOAT32, "above 0, within float32"),
    "presence_penalty": (-FLOAT32, FLOAT32, "a number within float32"),
    "frequency_penalty": (-FLOAT32, FLOAT32, "a number within float32"),
    "min_tokens": (0, WHOLE, "0 or more"),
    "min_keep": (1, WHOLE, "1 or more"),
}
"""Least, greatest and how to say so: what some engine accepts and that means something.

top_p = 0 keeps the likeliest in transformers and llama.cpp, and vLLM refuses it; top_k = 0 and -1 are off in
vLLM and llama.cpp, and transformers refuses them; min_p above 1 means 1 in llama.cpp, and nothing elsewhere;
penalties beyond 2 are refused by vLLM, and by nobody else.
"""


def _is(kind: type, value: Any) -> bool:
    """Whether a value is such a number, of Python or of numpy; true and false are none."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _check_number(name: str, value: Any, least: float, greatest: float, text: str) -> None:
    if not _is(Real, value) or value != value:
        raise ValueError(f"{name} is a number, not {value!r}")
    # An integer may be beyond all floats, and too long to be shown.
    if not least <= value <= greatest:
        raise ValueError(f"{name} is {text}, not {float('inf') if value > FLOAT32 else value!r}")


def _check_whole(name: str, value: Any) -> None:
    if not _is(Integral, value):
        raise ValueError(f"{name} is a whole number, not {value!r}")


def _check_tokens(name: str, tokens: Any) -> None:
    if not isinstance(tokens, Iterable) or isinstance(tokens, str):
        raise ValueError(f"{name} is a list of tokens, not {tokens!r}")
    for token in tokens:
        if not _is(Integral, token) or token < 0:
            raise ValueError(f"{name} names tokens by their ids, and {token!r} is none")
        if token >= TOKENS:
            raise ValueError(f"{name} names token {token}, and ids are below {TOKENS}")


def _check_phrases(name: str, phrases: Any) -> None:
    if not isinstance(phrases, Iterable) or isinstance(phrases, str):
        raise ValueError(f"{name} is a list of phrases, not {phrases!r}")
    for phrase in phrases:
        _check_tokens(f"a phrase of {name}", phrase)
        if not phrase:
            raise ValueError(f"a phrase of {name} is empty, which would rule out everything")


def _nearest(name: Any, names: Any) -> str:
    near = get_close_matches(str(name), list(names), n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names)}"
