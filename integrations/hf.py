"""transformers: logits processors that hold `generate` to a grammar, and that draw its tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from sortition.grammars.table import Table
from sortition.integrations.hf_generations import Generation, Remembering, parents, repeats
from sortition.integrations.hf_sampling import SamplingLogitsProcessor, Seed
from sortition.sampling.constraint import FREE, Constraint, Position
from sortition.sampling.host_constraint import constraint_on
from sortition.sampling.parameters import Ties

Number: TypeAlias = float | Sequence[float] | None
Count: TypeAlias = int | Sequence[int] | None
Tokens: TypeAlias = int | Iterable[int] | None


def hf(
    table: Table | Sequence[Table | None] | None = None,
    *,
    seed: Seed = None,
    temperature: Number = None,
    top_k: Count = None,
    top_p: Number = None,
    min_p: Number = None,
    typical: Number = None,
    epsilon: Number = None,
    eta: Number = None,
    top_n_sigma: Number = None,
    repetition_penalty: Number = None,
    presence_penalty: Number = None,
    frequency_penalty: Number = None,
    penalty_window: int | None = None,
    logit_bias: Mapping[int, float] | Sequence[Mapping[int, float]] | None = None,
    allowed_tokens: Sequence[int] | Sequence[Sequence[int] | None] | None = None,
    bad_words: Sequence[Sequence[int]] | Sequence[Sequence[Sequence[int]]] | None = None,
    min_tokens: Count = None,
    order: str | Sequence[str] | None = None,
    ties: Ties | None = None,
    min_keep: int | None = None,
    end_tokens: Tokens = None,
    pad_tokens: Tokens = None,
) -> GrammarLogitsProcessor | SamplingLogitsProcessor:
    """A logits processor for ``generate(logits_processor=[...])``.

    With a grammar alone, it rules out what the grammar does not allow, and `generate` draws. It works with
    greedy search, sampling, beams, left-padded batches, several returned sequences, assistant models and
    prompt lookup.

    With a seed or any of the parameters that follow it, the processor draws the token itself. It leaves only
    that one, so what the generation config says about temperature, top-k and the like does nothing, and
    ``do_sample`` does not matter; penalties, bad words and minimum lengths of the generation config still
    change the scores before they come here. Parameters that are left out have the defaults of `Parameters`.
    The token depends on the scores, the parameters, the seed and the number of tokens generated so far: not
    on other rows, padding, or drafts. All of the above works but beams, which are refused.

    A processor serves one call of `generate` after the other, but not two at once. `hf_generations` says when
    a call goes on with the text of the last.

    Args:
        table: the grammar of all rows, or one for each prompt of the batch, None for no grammar. Prompts that
            `generate` repeats, for beams or several returned sequences, keep theirs.
        seed: of all prompts; of rows with one and the same prompt, the second has ``seed + 1``, and so on. Or
            one for each prompt, the further rows of which count on from it. Without one, every generation has
            random ones. Prompts that the processor cannot see, because they are embeddings or belong to an
            encoder, count as one and the same.
        temperature, top_k, top_p, min_p, typical, epsilon, eta, top_n_sigma, repetition_penalty,
            presence_penalty, frequency_penalty, logit_bias, allowed_tokens, bad_words, min_tokens: see
            `Parameters`; for all prompts, or a sequence with a value for each.
        penalty_window, order, ties, min_keep: see `Parameters`; for all prompts.
        end_tokens: ids that end a text, instead of the vocabulary's. They should be those at which `generate`
            stops: ``model.generation_config.eos_token_id``.
        pad_tokens: ids that are padding where a prompt begins with them, and not seen by penalties and bad
            words. `generate` does not say which they are: usually ``tokenizer.pad_token_id``.

    Raises:
        ValueError: neither a table nor a parameter, something out of its bounds, values for different numbers
            of prompts, tables of different vocabularies, or end tokens missing or out of range.
    """
    values = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "typical": typical,
        "epsilon": epsilon,
        "eta": eta,
        "top_n_sigma": top_n_sigma,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "logit_bias": logit_bias,
        "allowed_tokens": allowed_tokens,
        "bad_words": bad_words,
        "min_tokens": min_tokens,
    }
    shared = {
        "penalty_window": penalty_window,
        "order": order if order is None or isinstance(order, str) else tuple(order),
        "ties": ties,
        "min_keep": min_keep,
    }
    values = {name: value for name, value in values.items() if value is not None}
    shared = {name: value for name, value in shared.items() if value is not None}
    tables = _tables(table)
    if not values and not shared and seed is None:
        if not tables:
            raise ValueError("nothing to do: a table, a seed or a sampling parameter is needed")
        return GrammarLogitsProcessor(tables, _listed(end_tokens))
    return SamplingLogitsProcessor(tables, values, shared, seed, _listed(end_tokens), _listed(pad_tokens))


class GrammarLogitsProcessor(Remembering["GrammarGeneration", Position]):
    """See `hf`. Scores are never changed in place; scores of tokens that may not come next become -inf."""

    def __init__(self, tables: Sequence[Table | None], end_tokens: Sequence[int] | None) -> None:
        self.tables = tuple(tables)
        self._tables = list(dict.fromkeys(table for table in tables if table is not None))
        self._grammars = [FREE if table is None else self._tables.index(table) for table in tables]
        self._end_tokens = end_tokens
        self._constraints: dict[torch.device, Constraint] = {}
        self._constraint(torch.device("cpu"))
        super().__init__()

    def begin(self, ids: Tensor) -> GrammarGeneration:
        """See `Remembering.begin`."""
        each = repeats(len(ids), len(self._grammars), "tables")
        grammar = torch.tensor(self._grammars, device=ids.device).repeat_interleave(each)
        return GrammarGeneration(self._constraint(ids.device), grammar, ids)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [rows, width] with -inf where a token may not follow the ids [rows, length].

        Raises:
            ValueError: the rows are not a multiple of the tables, or ids come without their history.
        """
        _, position = self.find(input_ids)
        return self._constraint(scores.device).apply(scores, position.to(scores.device))

    def _constraint(self, device: torch.device) -> Constraint:
        if device not in self._constraints:
            self._constraints[device] = constraint_on(device, self._tables, self._end_tokens)
        return self._constraints[device]


class GrammarGeneration(Generation[Position]):
    """One text per row, each after a grammar."""

    def __init__(self, constraint: Constraint, grammar: Tensor, ids: Tensor) -> None:
        super().__init__(constraint.start(grammar), ids)
        self._constraint = constraint

    def step(self, place: Position, tokens: Tensor) -> Position:
        """See `Generation.step`."""
        return self._constraint.step(place, tokens)

    def may_come(self, ids: Tensor, before: Position, after: Position) -> bool:
        """Every token that the grammar allows."""
        return not bool((after.dead & ~before.dead).any())

    def reordered(self, place: Position, ids: Tensor, known: Tensor) -> Position | None:
        """Where a row stands depends on its grammar and on what was generated, nothing else."""
        grammar = place.grammar[:, None]
        texts = [torch.cat([grammar, rows[:, self.prompt :]], dim=1) for rows in (ids, known)]
        parent = parents(*texts)
        return None if parent is None else place.rows(parent)


def _tables(given: object) -> list[Table | None]:
    tables = [given] if isinstance(given, Table) else [] if given is None else given
    if not isinstance(tables, list | tuple) or not all(isinstance(each, Table | None) for each in tables):
        what = type(given).__name__
        raise TypeError(f"a table, or one for each prompt, is needed, not a {what}; see Grammar.compile")
    return list(tables)


def _listed(tokens: Tokens) -> list[int] | None:
    return [tokens] if isinstance(tokens, int) else None if tokens is None else list(tokens)
