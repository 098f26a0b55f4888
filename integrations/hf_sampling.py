"""transformers: a logits processor that draws the token itself.

Its answer is a row that leaves one token: whatever `generate` does to it afterwards (its own temperature,
top-k, top-p; greedy or sampling), that token comes out. Which token is a function of the scores, the
parameters, the seed, and how many tokens the row has generated, so drafts of an assistant under the same
processor are drawn with the same noise as what the model says to them, and mostly agree with it.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortition.grammars.table import Table
from sortition.integrations.hf_generations import Generation, Remembering, parents, repeats
from sortition.sampling.constraint import FREE
from sortition.sampling.parameters import Parameters
from sortition.sampling.policies import Policy
from sortition.sampling.rules import (
    AllowedTokens,
    BadWords,
    Constrain,
    Epsilon,
    Eta,
    FrequencyPenalty,
    LogitBias,
    MinP,
    MinTokens,
    PresencePenalty,
    RepetitionPenalty,
    Rule,
    Temperature,
    TopK,
    TopNSigma,
    TopP,
    Typical,
)
from sortition.sampling.sampler import Sampler
from sortition.sampling.seeds import checked_seed
from sortition.sampling.state import State

Seed: TypeAlias = int | Sequence[int] | None

RULES: Final[dict[str, type[Rule]]] = {
    rule.parameter: rule
    for rule in (
        *(Temperature, TopK, TopP, MinP, Typical, Epsilon, Eta, TopNSigma),
        *(RepetitionPenalty, PresencePenalty, FrequencyPenalty),
        *(LogitBias, AllowedTokens, BadWords, MinTokens),
    )
}
"""By the name of the parameter."""

NORMAL: Final = 1e-3
"""How far from 0 the ln of the sum of probabilities may be, for scores that are log-probabilities."""


class SamplingLogitsProcessor(Remembering["SampledGeneration", State]):
    """See `hf`. Scores are never changed in place; those of all tokens but the drawn one become -inf.

    Args:
        tables: the grammar of all prompts or of each its own, none at all for no grammar.
        values: by parameter, for all prompts or for each its own.
        shared: what else `Sampler` is to know: order, ties, penalty_window, min_keep.
        seed: see `hf`.
        end_tokens: see `hf`.
        pad_tokens: see `hf`.
    """

    def __init__(
        self,
        tables: Sequence[Table | None],
        values: Mapping[str, Any],
        shared: Mapping[str, Any],
        seed: Seed,
        end_tokens: Sequence[int] | None,
        pad_tokens: Sequence[int] | None,
    ) -> None:
        self.tables = tables
        self._rules = [RULES[name](value) for name, value in values.items()]
        self._shared = {**shared, "end_tokens": end_tokens}
        self._seed = plain(seed)
        self._pad_tokens = pad_tokens
        self._samplers: dict[tuple[int, Policy], Sampler] = {}
        self._prompts = self._count_prompts()
        # What cannot work is said here, where the caller wrote it, and not in the middle of `generate`.
        seeds = seeds_of(self._seed, np.zeros((self._prompts, 0), np.int64))
        self._sampler(self._prompts).start(self._prompts, seeds)
        self._sees_prompt = any(map(sees_prompt, self._parameters(shared)))
        super().__init__()

    def begin(self, ids: Tensor) -> SampledGeneration:
        """See `Remembering.begin`."""
        prompts = self._unpadded(ids)
        sampler = self._sampler(len(ids))
        start = sampler.start(len(ids), seeds_of(self._seed, prompts), torch.from_numpy(prompts))
        return SampledGeneration(sampler, start, ids, seeded=self._seed is not None)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [rows, width] that leave only the token drawn after the ids [rows, length].

        Raises:
            ValueError: a row has no token that may be drawn; the rows cannot be shared out; ids come without
                their history, with prompts whose padding is unknown and matters, or from beams.
        """
        generation, state = self.find(input_ids)
        if is_probe(scores):
            allowed = generation.sampler.allowed(state, scores.shape[1])
            if allowed is None:
                return scores
            return torch.where(torch.from_numpy(allowed).to(scores.device), scores, float("-inf"))
        if state is generation.start and are_beams(input_ids, scores):
            raise ValueError(NO_BEAMS)
        tokens = generation.sampler(scores, state).tokens
        if bool((tokens < 0).any()):
            check_drawn(tokens, free_rows(state))
            tokens = self._sampler(len(scores), on_empty="mend")(scores, state).tokens
        generation.drew(input_ids, tokens)
        return torch.full_like(scores, float("-inf")).scatter_(1, tokens[:, None], 0.0)

    def _count_prompts(self) -> int:
        """How many prompts have something of their own, 1 if none has."""
        counts = {type(rule).__name__: len(rule) for rule in self._rules}
        counts |= {
            "tables": len(self.tables),
            "seeds": len(self._seed) if isinstance(self._seed, list | tuple) else 1,
        }
        several = {name: count for name, count in counts.items() if count > 1}
        if len(set(several.values())) > 1:
            raise ValueError(f"values for different numbers of prompts: {several}")
        return max([1, *several.values()])

    def _parameters(self, shared: Mapping[str, Any]) -> list[Parameters]:
        return [
            Parameters(**shared, **{rule.parameter: rule.value(row) for rule in self._rules})
            for row in range(self._prompts)
        ]

    def _sampler(self, rows: int, on_empty: Policy = "flag") -> Sampler:
        """A sampler for so many rows, each with the values of its prompt."""
        if (rows, on_empty) not in self._samplers:
            # Those of the last number of rows are kept: a batch is rarely followed by one of another size.
            kept = {key: sampler for key, sampler in self._samplers.items() if key[0] == rows}
            self._samplers = {**kept, (rows, on_empty): self._new_sampler(rows, on_empty)}
        return self._samplers[rows, on_empty]

    def _new_sampler(self, rows: int, on_empty: Policy) -> Sampler:
        each = repeats(rows, self._prompts, "values")

        def of_rows(values: Sequence[Any]) -> list[Any]:
            return [value for value in values for _ in range(each)] if len(values) > 1 else list(values)

        rules = [
            rule if len(rule) == 1 else type(rule)(of_rows([rule.value(row) for row in range(len(rule))]))
            for rule in self._rules
        ]
        grammar = [Constrain(of_rows(self.tables))] if self.tables else []
        return Sampler(*rules, *grammar, **self._shared, on_empty=on_empty, on_nan="mend", on_infinite="mend")

    def _unpadded(self, ids: Tensor) -> NDArray[np.int64]:
        """The prompts, -1 where there is padding at the left."""
        prompts = np.array(ids.to("cpu", torch.int64).numpy())
        if self._pad_tokens is not None:
            pads = np.isin(prompts, self._pad_tokens)
            prompts[np.logical_and.accumulate(pads, axis=1)] = -1
        elif self._sees_prompt and len(np.unique(prompts, axis=0)) > 1:
            raise ValueError(
                "penalties or bad words look at the prompts, and generate does not say which of their tokens "
                "are padding: give their ids as pad_tokens, or [] if there are none"
            )
        return prompts


class SampledGeneration(Generation[State]):
    """One text per row, drawn by a sampler of its own.

    Attributes:
        sampler: with parameters for each row.
    """

    def __init__(self, sampler: Sampler, start: State, ids: Tensor, *, seeded: bool) -> None:
        super().__init__(start, ids)
        self.sampler = sampler
        self._seeded = seeded
        self._drawn: dict[int, int] = {}

    @property
    def restarts(self) -> bool:
        """Without a seed, the prompt alone asks for another text, not for the same once more."""
        return self._seeded

    def drew(self, ids: Tensor, tokens: Tensor) -> None:
        """Remember what a single row draws after these ids."""
        if len(tokens) == 1:
            self._drawn[ids.shape[1] - self.prompt] = int(tokens[0])

    def step(self, place: State, tokens: Tensor) -> State:
        """See `Generation.step`."""
        return self.sampler.advance(place, tokens)

    def may_come(self, ids: Tensor, before: State, after: State) -> bool:
        """What has been shown, or what was drawn there: drafts are taken back to one of these."""
        drawn = self._drawn.get(len(ids) - 1 - self.prompt)
        return torch.equal(ids, self.ids[0, : len(ids)]) or int(ids[-1]) == drawn

    def reordered(self, place: State, ids: Tensor, known: Tensor) -> State | None:
        """See `Generation.reordered`."""
        if parents(ids, known) is not None:
            raise ValueError(NO_BEAMS)
        return None


NO_BEAMS: Final = (
    "beams compare scores, and sampling parameters leave none to compare: take num_beams=1, or so.hf with a "
    "grammar alone"
)


def are_beams(ids: Tensor, scores: Tensor) -> bool:
    """Whether a first call is one of beams: prompts in several rows, scores that are log-probabilities."""
    if not bool((ids[1:] == ids[:-1]).all(1).any()):
        return False
    return bool((scores.logsumexp(1).abs() < NORMAL).all())


def is_probe(scores: Tensor) -> bool:
    """Whether the scores are those with which prompt lookup asks if its drafts are allowed.

    It takes 1 for every token; some may have been changed since. No model gives most of its tokens exactly 1.
    """
    if len(scores) != 1:
        return False
    return 2 * int((scores == 1).sum()) > scores.shape[1]


def plain(seed: Any) -> Seed:
    """A seed or seeds as they are without numpy and torch."""
    found: Seed = seed.tolist() if hasattr(seed, "tolist") else seed
    if isinstance(found, str):
        raise TypeError(f"a seed is a whole number, not {found!r}")
    return found


def seeds_of(seed: Seed, prompts: NDArray[np.int64]) -> list[int]:
    """A seed for each row, so that no two rows of one prompt draw alike.

    Args:
        seed: for all, to which rows add how many rows before have the same prompt, so that a prompt alone
            and among others has the same; or one for each prompt, to which its rows add 0, 1, 2...; None for
            random ones.
        prompts: int64 [rows, length].

    Raises:
        ValueError: a seed is no integer of 64 bits, or the rows cannot be shared out among the seeds.
    """
    rows = len(prompts)
    seed = plain(seed)
    if seed is None:
        return [secrets.randbits(63) for _ in range(rows)]
    if isinstance(seed, Sequence):
        if not seed:
            raise ValueError("seed is an empty list")
        each = repeats(rows, len(seed), "seeds")
        return [_plus(seed[row // each], row % each) for row in range(rows)]
    seen: Counter[bytes] = Counter()
    seeds = []
    for prompt in prompts:
        seeds.append(_plus(seed, seen[prompt.tobytes()]))
        seen[prompt.tobytes()] += 1
    return seeds


def sees_prompt(parameters: Parameters) -> bool:
    """Whether draws depend on the prompt."""
    neutral = Parameters()
    return any(
        getattr(parameters, stage) != getattr(neutral, stage)
        for stage in parameters.resolved_order.see_prompt
    )


def free_rows(state: State) -> Tensor:
    """bool [rows]: those without a grammar."""
    if state.grammar is None:
        return torch.ones(len(state), dtype=torch.bool)
    return state.grammar.grammar == FREE


def check_drawn(tokens: Tensor, rows: Tensor) -> None:
    """That these rows bool [rows] have drawn a token.

    Raises:
        ValueError: one has not.
    """
    lost = (tokens < 0) & rows.to(tokens.device)
    if bool(lost.any()):
        which = torch.nonzero(lost)[:, 0].tolist()
        raise ValueError(f"rows {which}: no token is left to draw, all scores are -inf or NaN")


def _plus(seed: int, index: int) -> int:
    """The seed that many further on, around the end of 64 bits."""
    return (checked_seed(seed) + index) % 2**64
