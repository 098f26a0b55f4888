"""The definition of a draw: one row, every rule in a few lines of numpy, nothing done for speed.

    logits -> edits -> d (logits less the greatest) -> filters -> survivors -> d + Gumbel noise -> argmax

Faster backends are judged by this module: they give the same ids and the same bits. Where tokens are ordered,
it is by value, the greatest first, and by id where values are equal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortition.sampling import noise
from sortition.sampling.draw import EMPTY, INFINITE, NAN, NO_TOKEN, Draw, Report, Request
from sortition.sampling.numerics import (
    MASS_BITS,
    Float32,
    Float64,
    aimed,
    exp,
    log_of,
    mass,
    mass_times,
    min_p_cut,
)
from sortition.sampling.parameters import GREEDY_BELOW, Parameters

FURTHEST: Final = np.finfo(np.float32).min
"""The least d."""

Mask = NDArray[np.bool_]
Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class Context:
    """What a row's draw depends on beside its logits and parameters.

    Attributes:
        seed: of the request, an integer of 64 bits.
        position: tokens generated before this one.
        prompt: ids of the prompt; negative ones are padding.
        output: ids generated before this one; negative ones are padding.
        end_tokens: ids that end a text.
        grammar: bool [vocabulary], the tokens that the row's grammar allows, None without one.
        stream: of the noise.
    """

    seed: int
    position: int
    prompt: Sequence[int] = ()
    output: Sequence[int] = ()
    end_tokens: Sequence[int] = ()
    grammar: Mask | None = None
    stream: int = noise.TARGET

    @classmethod
    def of(cls, request: Request, row: int) -> Self:
        """That of one row of a request."""
        return cls(
            seed=int(request.seeds[row]),
            position=int(request.positions[row]),
            prompt=request.prompt[row].tolist(),
            output=request.output[row].tolist(),
            end_tokens=request.end_tokens[row].tolist(),
            grammar=None if request.grammar is None else request.grammar[row],
            stream=request.stream,
        )


@dataclass(frozen=True)
class Law:
    """The tokens that may be drawn, the lowest id first, and how likely each is.

    Attributes:
        tokens: int64 [n], ids.
        d: float32 [n], logits less the greatest one.
        flags: of the row.
    """

    tokens: Tokens
    d: Float32
    flags: int = 0

    @property
    def mass(self) -> Float64:
        """Integers [n], as float64; see `numerics`."""
        return mass(self.d)

    def of(self, keep: Mask) -> Law:
        """These tokens alone; the greatest may not be among them."""
        d = self.d[keep]
        return Law(self.tokens[keep], plain_zeros(d - d.max()), self.flags)

    def tempered(self, temperature: float) -> Law:
        """The law at a temperature."""
        if temperature < GREEDY_BELOW:
            return self.of(best(self, 1, False))
        return Law(self.tokens, plain_zeros(np.maximum(self.d / np.float32(temperature), FURTHEST)))

    def logprob(self, token: int) -> np.float32:
        """ln of the token's probability, -inf for one that cannot be drawn."""
        at = np.flatnonzero(self.tokens == token)
        if self.flags or not len(at):
            return np.float32(-np.inf)
        return np.float32(float(self.d[at[0]]) - self._log_total)

    def entropy(self) -> np.float32:
        """In nats, NaN in a flagged row."""
        if self.flags:
            return np.float32(np.nan)
        return np.float32(self._log_total - float(mass_times(self.d).sum()) / float(self.mass.sum()))

    def top(self, count: int) -> tuple[Tokens, Float32]:
        """The most likely tokens and ln of their probabilities, filled up with `NO_TOKEN` and -inf."""
        best = np.argsort(-self.d, kind="stable")[: 0 if self.flags else count]
        room = (0, count - len(best))
        tokens = np.pad(self.tokens[best], room, constant_values=NO_TOKEN)
        total = 0.0 if self.flags else self._log_total
        logprobs = (self.d[best].astype(np.float64) - total).astype(np.float32)
        return tokens, np.pad(logprobs, room, constant_values=np.float32(-np.inf))

    @property
    def _log_total(self) -> float:
        return log_of(float(self.mass.sum())) - log_of(2.0**MASS_BITS)


def draw_rows(logits: Tensor, request: Request) -> Draw:
    """Draw a token for each row; see `Backend`."""
    tokens, laws, raws = [], [], []
    for row, parameters in enumerate(request.columns.parameters):
        values = np.asarray(logits[row].float().numpy())
        token, law = draw(values, parameters, Context.of(request, row))
        tokens.append(token)
        laws.append(law)
        if request.raw:
            raws.append(raw_law(values))
    return Draw(
        tokens=torch.tensor(tokens, dtype=torch.int64),
        kept=torch.tensor([0 if law.flags else len(law.tokens) for law in laws], dtype=torch.int64),
        flags=torch.tensor([law.flags for law in laws], dtype=torch.uint8),
        processed=_report(tokens, laws, request),
        raw=_report(tokens, raws, request) if request.raw else None,
    )


def _report(tokens: Sequence[int], laws: Sequence[Law], request: Request) -> Report:
    def stack(parts: list[np.float32]) -> Tensor:
        return torch.from_numpy(np.array(parts, np.float32))

    logprobs = stack([law.logprob(token) for token, law in zip(tokens, laws, strict=True)])
    entropy = stack([law.entropy() for law in laws]) if request.entropy else None
    if not request.top:
        return Report(logprobs, entropy)
    ids = np.full((len(laws), request.top), NO_TOKEN, np.int64)
    values = np.full((len(laws), request.top), -np.inf, np.float32)
    for row, law in enumerate(laws):
        ids[row], values[row] = law.top(request.top)
    return Report(logprobs, entropy, torch.from_numpy(ids), torch.from_numpy(values))


def draw(logits: Float32, parameters: Parameters, context: Context) -> tuple[int, Law]:
    """Draw one token; and from which law. `NO_TOKEN` where no token is left, or a logit is NaN or +inf.

    Args:
        logits: float32 [vocabulary]; not changed.
        parameters: of the request.
        context: what else the draw depends on.
    """
    law = law_of(logits, parameters, context)
    if law.flags:
        return NO_TOKEN, law
    words = noise.words(context.seed, context.position, context.stream, law.tokens)
    return int(law.tokens[np.argmax(law.d + noise.gumbel(words))]), law


@np.errstate(over="ignore", invalid="ignore")
def law_of(logits: Float32, parameters: Parameters, context: Context) -> Law:
    """The law that a token is drawn from: see `draw`."""
    stages = parameters.resolved_order.stages
    values = np.array(logits, np.float32)
    first = next(at for at, stage in enumerate(stages) if stage in FILTER)
    # Temperature right before the filters divides d, and no finite logits overflow.
    last = stages[first - 1] == "temperature"
    for stage in stages[: first - last]:
        values = EDIT[stage](values, parameters, context)
    law = shifted(values)
    if law.flags:
        return law
    if last or ("temperature" in stages[:first] and parameters.temperature < GREEDY_BELOW):
        law = law.tempered(parameters.temperature)
    total = float(law.mass.sum()) if parameters.resolved_order.joint else None
    for stage in stages[first:]:
        if stage == "temperature":
            law = law.tempered(parameters.temperature)
        elif getattr(parameters, stage) != NEUTRAL[stage]:
            law = law.of(FILTER[stage](law, parameters, total))
    return law


@np.errstate(over="ignore")
def raw_law(logits: Float32) -> Law:
    """The law of the logits as the model gave them."""
    return shifted(np.asarray(logits, np.float32))


def shifted(values: Float32) -> Law:
    """The law of values before the filters, with the row's flags."""
    tokens = np.flatnonzero(values != -np.inf)
    values = values[tokens]
    flags = EMPTY * (not len(values)) | NAN * bool(np.isnan(values).any()) | INFINITE * bool(np.inf in values)
    if flags:
        return Law(tokens, values, flags)
    # Logits so far apart that float32 cannot say how far are still finite.
    return Law(tokens, plain_zeros(np.maximum(values - values.max(), FURTHEST)), flags)


def plain_zeros(d: Float32) -> Float32:
    """The same, but every zero is +0: which one a maximum of both gives is not defined."""
    return d + np.float32(0.0)


# Edits: values [vocabulary] -> values.


def _masked(values: Float32, keep: Mask) -> Float32:
    return np.where(keep, values, np.float32(-np.inf))


def _without(values: Float32, tokens: Sequence[int]) -> Float32:
    return _masked(values, ~np.isin(np.arange(len(values)), tokens))


def _grammar(values: Float32, parameters: Parameters, context: Context) -> Float32:
    return values if context.grammar is None else _masked(values, context.grammar)


def _allowed_tokens(values: Float32, parameters: Parameters, context: Context) -> Float32:
    if parameters.allowed_tokens is None:
        return values
    return _masked(values, np.isin(np.arange(len(values)), parameters.allowed_tokens))


def _bad_words(values: Float32, parameters: Parameters, context: Context) -> Float32:
    order = parameters.resolved_order
    seen = _known(context.output)
    if "bad_words" in order.see_prompt:
        seen = [*_known(context.prompt), *seen]
    phrases = parameters.bad_words
    if order.spares_end_tokens:
        phrases = tuple(
            phrase for phrase in phrases if len(phrase) > 1 or phrase[0] not in context.end_tokens
        )
    last = [
        phrase[-1]
        for phrase in phrases
        if len(phrase) <= len(seen) + 1 and seen[len(seen) - len(phrase) + 1 :] == list(phrase[:-1])
    ]
    return _without(values, last)


def _min_tokens(values: Float32, parameters: Parameters, context: Context) -> Float32:
    return _without(values, context.end_tokens) if context.position < parameters.min_tokens else values


def _logit_bias(values: Float32, parameters: Parameters, context: Context) -> Float32:
    values = values.copy()
    for token, bias in parameters.logit_bias.items():
        values[token] = np.float32(-np.inf) if bias == -np.inf else values[token] + np.float32(bias)
    return values


def _repetition_penalty(values: Float32, parameters: Parameters, context: Context) -> Float32:
    values, penalty = values.copy(), np.float32(parameters.repetition_penalty)
    for token in _counts("repetition_penalty", len(values), parameters, context):
        values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
    return values


def _presence_penalty(values: Float32, parameters: Parameters, context: Context) -> Float32:
    values = values.copy()
    for token in _counts("presence_penalty", len(values), parameters, context):
        values[token] = values[token] - np.float32(parameters.presence_penalty)
    return values


def _frequency_penalty(values: Float32, parameters: Parameters, context: Context) -> Float32:
    values, penalty = values.copy(), np.float32(parameters.frequency_penalty)
    for token, count in _counts("frequency_penalty", len(values), parameters, context).items():
        values[token] = values[token] - np.float32(count) * penalty
    return values


def _temperature(values: Float32, parameters: Parameters, context: Context) -> Float32:
    """Temperature among the edits; where it leaves only the likeliest, that is up to the law."""
    if parameters.temperature < GREEDY_BELOW:
        return values
    return values / np.float32(parameters.temperature)


def _known(tokens: Sequence[int]) -> list[int]:
    return [int(token) for token in tokens if token >= 0]


def _counts(penalty: str, width: int, parameters: Parameters, context: Context) -> Counter[int]:
    """How often each token occurs in the window that the penalty sees.

    The window is over prompt and output as one text, whether or not the prompt's part of it counts. Prompts
    may hold ids that have no logit, such as those of images.
    """
    before, after = _known(context.prompt), _known(context.output)
    window = parameters.penalty_window
    if window is None:
        window = parameters.resolved_order.penalty_window
    if window is not None:
        before = before[max(0, len(before) - max(0, window - len(after))) :]
        after = after[max(0, len(after) - window) :]
    seen = [*before, *after] if penalty in parameters.resolved_order.see_prompt else after
    return Counter(token for token in seen if token < width)


Edit = Callable[[Float32, Parameters, Context], Float32]

EDIT: Final[dict[str, Edit]] = {
    "grammar": _grammar,
    "allowed_tokens": _allowed_tokens,
    "bad_words": _bad_words,
    "min_tokens": _min_tokens,
    "logit_bias": _logit_bias,
    "repetition_penalty": _repetition_penalty,
    "presence_penalty": _presence_penalty,
    "frequency_penalty": _frequency_penalty,
    "temperature": _temperature,
}


# Filters: which tokens of a law are left. `total` is the mass before the filters, None for that of the law.


def best(law: Law, count: int, keep_ties: bool) -> Mask:
    """The `count` greatest, or with ties also what equals the last of them."""
    return first_of(law.d, min(count, len(law.d)), keep_ties)


def share(law: Law, keys: Float32, part: float, parameters: Parameters, more: bool, total: float) -> Mask:
    """The fewest tokens, the greatest keys first, whose mass is at least `part` of the total, or more."""
    cumulative = np.cumsum(law.mass[np.argsort(-keys, kind="stable")])
    target = aimed(part, more) * total
    short = cumulative <= target if more else cumulative < target
    count = max(int(short.sum()) + 1, parameters.min_keep)
    return first_of(keys, min(count, len(keys)), parameters.ties == "keep")


def first_of(keys: Float32, count: int, keep_ties: bool) -> Mask:
    """The tokens with the greatest keys, or with ties also what equals the last of them."""
    order = np.argsort(-keys, kind="stable")[:count]
    keep = np.zeros(len(keys), np.bool_)
    keep[order] = True
    return np.asarray(keep | (keys == keys[order[-1]])) if keep_ties else keep


def _top_k(law: Law, parameters: Parameters, total: float | None) -> Mask:
    if parameters.top_k <= 0:
        return np.ones(len(law.d), np.bool_)
    return best(law, max(parameters.top_k, parameters.min_keep), parameters.ties == "keep")


def _top_p(law: Law, parameters: Parameters, total: float | None) -> Mask:
    more = "top_p" in parameters.resolved_order.more_than
    total = float(law.mass.sum()) if total is None else total
    return share(law, law.d, parameters.top_p, parameters, more, total)


def _typical(law: Law, parameters: Parameters, total: float | None) -> Mask:
    more = "typical" in parameters.resolved_order.more_than
    total = float(law.mass.sum())
    # -ln p - H = (ln Z - d) - (ln Z - mean of d).
    mean = np.float32(float(mass_times(law.d).sum()) / total)
    return share(law, -np.abs(law.d - mean), parameters.typical, parameters, more, total)


def _min_p(law: Law, parameters: Parameters, total: float | None) -> Mask:
    return _or_best(law, law.d >= min_p_cut(parameters.min_p), parameters)


def _epsilon(law: Law, parameters: Parameters, total: float | None) -> Mask:
    return _or_best(law, law.mass >= aimed(parameters.epsilon, False) * float(law.mass.sum()), parameters)


def _eta(law: Law, parameters: Parameters, total: float | None) -> Mask:
    spread = float(exp(np.minimum(-law.entropy(), np.float32(0.0))[None])[0])
    least = min(parameters.eta, math.sqrt(parameters.eta) * spread)
    return _or_best(law, law.mass >= least * float(law.mass.sum()), parameters)


def _or_best(law: Law, keep: NDArray[np.bool_], parameters: Parameters) -> Mask:
    """These tokens and what equals the likeliest, or as many of the likeliest as a filter leaves at least."""
    return np.asarray(keep | (law.d == 0) | best(law, parameters.min_keep, parameters.ties == "keep"))


SPREAD_BITS: Final = 21
"""Of d as an integer where its standard deviation is taken: squares of 2^19 of them fit 63 bits."""


def _top_n_sigma(law: Law, parameters: Parameters, total: float | None) -> Mask:
    if parameters.top_n_sigma <= 0:
        return np.ones(len(law.d), np.bool_)
    _, exponent = math.frexp(float(law.d.min()))
    scale = 2.0 ** (SPREAD_BITS - exponent)
    units = np.rint(law.d.astype(np.float64) * scale).astype(np.int64)
    mean = float(units.sum()) / len(units)
    square = float((units * units).sum()) / len(units)
    deviation = math.sqrt(max(square - mean * mean, 0.0)) / scale
    return _or_best(law, law.d.astype(np.float64) >= -parameters.top_n_sigma * deviation, parameters)


Filter = Callable[[Law, Parameters, float | None], Mask]

FILTER: Final[dict[str, Filter]] = {
    "top_n_sigma": _top_n_sigma,
    "top_k": _top_k,
    "top_p": _top_p,
    "min_p": _min_p,
    "typical": _typical,
    "epsilon": _epsilon,
    "eta": _eta,
}

NEUTRAL: Final = {stage: getattr(Parameters(), stage) for stage in FILTER}
"""Where a filter keeps everything, whatever rounding would do."""
