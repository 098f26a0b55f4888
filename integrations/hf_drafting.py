"""transformers: the loop of `generate` with drafts, which one forward pass at a time judges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import (
    DynamicCache,
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    MaxTimeCriteria,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.generation import (
    ExponentialDecayLengthPenalty,
    ForcedEOSTokenLogitsProcessor,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from sortition.grammars.table import Table
from sortition.integrations.hf import GrammarLogitsProcessor
from sortition.integrations.hf_drafters import Drafter, Drafts, InTurn, ModelDrafter, PromptLookup, Text
from sortition.integrations.hf_generated import Generated, Record
from sortition.integrations.hf_grammar_drafter import GrammarDrafter
from sortition.integrations.hf_reader import Reader
from sortition.integrations.hf_sampling import SamplingLogitsProcessor, check_drawn
from sortition.sampling.sampler import Sampler
from sortition.sampling.state import State
from sortition.sampling.verification import Method
from sortition.sampling.verify import verify

CROPPED: Final = (DynamicLayer, DynamicSlidingWindowLayer)
"""Layers of a cache from which tokens can be taken back."""

ROW_BY_ROW: Final = (
    ExponentialDecayLengthPenalty,
    ForcedEOSTokenLogitsProcessor,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
)
"""What says of a row alone what it says of it among others."""


@dataclass(frozen=True, eq=False)
class Drafting:
    """How drafts are made and judged; see `generate`.

    Attributes:
        drafter: a model, "prompt_lookup" or "grammar"; or several of them.
        most: how many tokens a model or prompt lookup guesses at a time.
        method: which guesses stand.
        tokenizer: of the target, for "grammar".
    """

    drafter: Any
    most: int
    method: Method
    tokenizer: Any


class Loop:
    """Texts as they are written: a guess for each, one forward pass over all, what stands of each guess.

    Args:
        model: the target.
        input_ids: int64 [rows, length], prompts, padded at the left.
        processors: what logits go through before a token is drawn.
        criteria: when a text ends.
        config: of the generation.
        sampler: draws.
        state: of the rows, at their prompts' ends.
        drafting: how.
        model_kwargs: what the model is given beside ids.
    """

    def __init__(
        self,
        model: Any,
        input_ids: Tensor,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
        sampler: Sampler,
        state: State,
        drafting: Drafting,
        model_kwargs: dict[str, Any],
    ) -> None:
        self._model = model
        self._prompts = input_ids
        self._processors = processors
        self._criteria = criteria
        self._config = config
        self._sampler = sampler
        self._state = state
        self._drafting = drafting
        self._given = model_kwargs
        self._texts: list[list[int]] = input_ids.tolist()
        self._padding: list[int] = (state.prompt < 0).sum(1).tolist()
        self._writing = [True] * len(self._texts)
        self._records = [Record(config) for _ in self._texts]
        self._forwards = self._drafted = self._accepted = 0

    @torch.no_grad()
    def run(self) -> Tensor | Generated:
        """Write until all texts have ended."""
        outputs = self._model._prefill(self._prompts, self._config, self._given)
        reader = Reader(self._model, self._given["past_key_values"], self._given, self._texts)
        guesses = [Drafts() for _ in self._texts]
        logits = list(outputs.logits[:, -1:])
        del outputs
        drafter = self._drafter(logits[0].shape[1])
        while True:
            self._forwards += 1
            self._judge(guesses, logits)
            if not any(self._writing):
                return self._output(reader)
            # One more token comes after the drafts.
            rooms = [
                max(self._config.max_length - len(text) - 1, 0) if writing else 0
                for text, writing in zip(self._texts, self._writing, strict=True)
            ]
            guesses = drafter.draft(self._unpadded(), self._state, rooms)
            logits = reader.read([[*text, *guess.tokens] for text, guess in self._with(guesses)])

    def _judge(self, guesses: Sequence[Drafts], logits: Sequence[Tensor]) -> None:
        """Write what stands of the guesses, and a token more."""
        device = self._prompts.device
        # A copy: as a part of them, these would keep the logits of a whole prompt alive.
        raw = [each.to(device, torch.float32, copy=True) for each in logits]
        scores = [
            torch.stack(
                [self._processed(row, [*text, *guess.tokens[:at]], each) for at, each in enumerate(mine)]
            )
            for row, ((text, guess), mine) in enumerate(zip(self._with(guesses), raw, strict=True))
        ]
        targets = torch.nn.utils.rnn.pad_sequence(scores, batch_first=True)
        drafts, laws = _joined(guesses, targets)
        found = verify(drafts, laws, targets, self._sampler, self._state, method=self._drafting.method)
        accepted = found.accepted.tolist()
        for at in range(targets.shape[1]):
            takes = [self._writing[row] and at <= count for row, count in enumerate(accepted)]
            if not any(takes):
                break
            taking = torch.tensor(takes, device=device)
            check_drawn(found.tokens[:, at], taking)
            tokens = found.tokens[:, at].masked_fill(~taking, -1)
            self._state = self._sampler.advance(self._state, tokens)
            for row in np.flatnonzero(takes).tolist():
                self._records[row].add(
                    raw[row][at : at + 1], scores[row][at : at + 1], found.logprobs[row, at : at + 1]
                )
                self._accepted += at < accepted[row]
                self._write(row, int(tokens[row]))
        self._drafted += sum(map(len, guesses))

    def _write(self, row: int, token: int) -> None:
        """Write one token, and see whether the text ends there."""
        self._texts[row].append(token)
        ids = torch.tensor([self._texts[row]], device=self._prompts.device)
        self._writing[row] = not bool(self._criteria(ids, self._records[row].scores).all())

    def _processed(self, row: int, text: Text, logits: Tensor) -> Tensor:
        """What a token is drawn from [vocabulary], after a row's text with its padding."""
        if not self._processors:
            return logits
        ids = torch.tensor([text], device=logits.device)
        return self._processors(ids, logits[None])[0]

    def _with(self, guesses: Sequence[Drafts]) -> list[tuple[list[int], Drafts]]:
        return list(zip(self._texts, guesses, strict=True))

    def _unpadded(self) -> list[Text]:
        return [text[padding:] for text, padding in zip(self._texts, self._padding, strict=True)]

    def _drafter(self, width: int) -> Drafter:
        asked = self._drafting.drafter
        return InTurn(
            [self._one(each, width) for each in (asked if isinstance(asked, list | tuple) else [asked])]
        )

    def _one(self, drafter: Any, width: int) -> Drafter:
        """One of the drafters that are asked for.

        Raises:
            ValueError: it is none, or one that cannot work here.
        """
        ends_tensor = self._config._eos_token_tensor
        ends = set() if ends_tensor is None else set(ends_tensor.tolist())
        if isinstance(drafter, str) and drafter == "prompt_lookup":
            return PromptLookup(self._drafting.most, ends)
        if isinstance(drafter, str) and drafter == "grammar":
            if self._drafting.tokenizer is None:
                raise ValueError("drafter 'grammar' needs target_tokenizer=, the tokenizer of the model")
            tables = tables_of(self._sampler, self._processors, len(self._texts))
            return GrammarDrafter(tables, list(map(len, self._unpadded())), self._drafting.tokenizer)
        if not isinstance(drafter, PreTrainedModel):
            raise ValueError(
                f"a drafter is a model of transformers, 'prompt_lookup' or 'grammar', not {drafter!r}"
            )
        if drafter.config.is_encoder_decoder:
            raise ValueError("so.generate does not do drafters with an encoder")

        def process(row: int, text: Text, logits: Tensor) -> Tensor:
            padded = [*self._prompts[row, : self._padding[row]].tolist(), *text]
            return self._processed(row, padded, logits)

        return ModelDrafter(
            *(drafter, self._drafting.most, width, process, self._sampler, self._drafting.method, ends)
        )

    def _output(self, reader: Reader) -> Tensor | Generated:
        longest = max(map(len, self._texts))
        pad = self._config._pad_token_tensor
        fill = 0 if pad is None else int(pad)
        ids = [[*text, *[fill] * (longest - len(text))] for text in self._texts]
        # All but the last token of a text has been read.
        cache = reader.keep([text[:-1] for text in self._texts])
        record = Record.of_rows(self._config, self._records)
        record.count(self._forwards, self._drafted, self._accepted)
        return record.output(torch.tensor(ids, device=self._prompts.device), cache)


def refuse_drafts(
    drafts: int,
    prompts: NDArray[np.int64],
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    config: GenerationConfig,
    model_kwargs: dict[str, Any],
) -> None:
    """Raise if a drafter is to work where the loop does not do drafts.

    Args:
        drafts: how many tokens to guess at a time.
        prompts: int64 [rows, length], -1 for padding.
        processors, criteria, config, model_kwargs: of `generate`.

    Raises:
        ValueError: it is.
    """
    if drafts < 1:
        raise ValueError(f"a drafter guesses 1 token or more, not {drafts}")
    if model_kwargs.get("inputs_embeds") is not None:
        raise ValueError("so.generate does not do drafts after embeddings, which no drafter can see")
    if (np.diff(prompts >= 0) != 0).sum() > (prompts[:, :1] < 0).sum():
        raise ValueError("so.generate does not do drafts after a prompt that is masked but at its left")
    cache = model_kwargs.get("past_key_values")
    if cache is None:
        raise ValueError("so.generate does not do drafts without a cache")
    several = len(prompts) > 1
    cropped = CROPPED[:1] if several else CROPPED
    kinds = {type(layer).__name__ for layer in cache.layers if type(layer) not in cropped}
    if kinds or not isinstance(cache, DynamicCache):
        names = ", ".join(sorted(kinds)) or type(cache).__name__
        rows = " for several rows" if several else ""
        raise ValueError(f"so.generate does not do drafts{rows} with a cache of {names}")
    if not several:
        return
    for each in (*processors, *criteria):
        if isinstance(each, GrammarLogitsProcessor | SamplingLogitsProcessor):
            raise ValueError(
                "so.generate does drafts for several rows with a grammar and rules of its sampler, not of "
                "so.hf: sampler=so.Sampler(vocabulary, so.Constrain(table), ...)"
            )
        if type(each) not in ROW_BY_ROW:
            raise ValueError(f"so.generate does not do drafts for several rows with a {type(each).__name__}")
    if config._pad_token_tensor is None:
        raise ValueError("so.generate does drafts for several rows only with a pad_token_id")
    if model_kwargs.get("attention_mask") is None:
        raise ValueError("so.generate does drafts for several rows only with an attention mask")
    positions = model_kwargs.get("position_ids")
    if positions is not None and positions.shape != prompts.shape:
        raise ValueError("so.generate does not do drafts for several rows with position ids of several axes")


def tables_of(sampler: Sampler, processors: LogitsProcessorList, rows: int) -> list[Table | None]:
    """The grammar of each row, the sampler's or else that of `hf`.

    Raises:
        ValueError: there is none.
    """
    ours = [each for each in processors if isinstance(each, GrammarLogitsProcessor | SamplingLogitsProcessor)]
    for tables in (sampler.tables(rows), *(list(each.tables) for each in ours)):
        if any(table is not None for table in tables):
            return tables
    raise ValueError("drafter 'grammar' without a grammar: neither the sampler nor so.hf has one")


def _joined(guesses: Sequence[Drafts], targets: Tensor) -> tuple[Tensor, Tensor | None]:
    """The guesses as `verify` takes them: tokens [rows, n], and logits [rows, n, vocabulary] if any has."""
    rows, places, width = targets.shape
    tokens = torch.full((rows, places - 1), -1)
    for row, guess in enumerate(guesses):
        tokens[row, : len(guess)] = torch.tensor(list(guess.tokens), dtype=torch.int64)
    if all(guess.logits is None for guess in guesses):
        return tokens, None
    # Drafts that were not drawn are certain.
    certain = torch.where(torch.arange(width) == tokens[:, :, None], 0.0, float("-inf"))
    for row, guess in enumerate(guesses):
        for at, law in enumerate(guess.logits or ()):
            certain[row, at] = law
    return tokens, certain
