"""transformers: a decoding loop of our own, for ``model.generate(custom_generate=so.generate)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.generation import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    GenerateDecoderOnlyOutput,
    GenerationMode,
    LogitsProcessor,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from sortition.integrations.hf_drafters import Drafter, Drafts, drafter_of, recording
from sortition.integrations.hf_sampling import Seed, check_drawn, seeds_of
from sortition.sampling.parameters import Parameters
from sortition.sampling.rules import Epsilon, Eta, MinP, Rule, Temperature, TopK, TopP, Typical
from sortition.sampling.sampler import Sampler, State
from sortition.sampling.verification import Method
from sortition.sampling.verify import verify

WARPERS: Final[dict[str, tuple[type[Rule], type[LogitsProcessor]]]] = {
    "temperature": (Temperature, TemperatureLogitsWarper),
    "top_k": (TopK, TopKLogitsWarper),
    "top_p": (TopP, TopPLogitsWarper),
    "min_p": (MinP, MinPLogitsWarper),
    "typical_p": (Typical, TypicalLogitsWarper),
    "epsilon_cutoff": (Epsilon, EpsilonLogitsWarper),
    "eta_cutoff": (Eta, EtaLogitsWarper),
}
"""By field of the generation config: the rule that does the same, and what `generate` makes of it."""

CROPPED: Final = (DynamicLayer, DynamicSlidingWindowLayer)
"""Layers of a cache from which tokens can be taken back."""

REFUSED: Final = ("top_h", "watermarking_config", "output_attentions", "output_hidden_states")
"""Fields of the generation config that ask for what this loop does not do."""


@dataclass
class Generated(GenerateDecoderOnlyOutput):
    """What `generate` returns with ``return_dict_in_generate=True``.

    Attributes:
        logprobs: float32 [rows, generated], ln of each token's probability under the law that it was drawn
            from, which filters have cut; 0 after a row's end.
        forwards: how often the model ran.
        drafted: how many drafts it was shown.
        accepted: how many of them became part of the text.
    """

    logprobs: Tensor | None = None
    forwards: int | None = None
    drafted: int | None = None
    accepted: int | None = None

    @property
    def acceptance(self) -> float:
        """The share of drafts that became part of the text, 0 without any."""
        return (self.accepted or 0) / (self.drafted or 1)

    @property
    def tokens_per_forward(self) -> float:
        """How many tokens a row got each time that the model ran."""
        return 0.0 if self.logprobs is None else self.logprobs.shape[1] / (self.forwards or 1)


@torch.no_grad()
def generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    *,
    sampler: Sampler | None = None,
    seed: Seed = None,
    drafter: Any = None,
    drafts: int = 4,
    method: Method = "coupled",
    **model_kwargs: Any,
) -> Tensor | Generated:
    """Decode with our draws: ``model.generate(**inputs, custom_generate=so.generate, seed=7)``.

    Everything that `generate` prepares is kept: left-padded batches, several returned sequences, its other
    logits processors (`hf` with a grammar among them), its stopping criteria. It does not hand on a streamer,
    an assistant model, or the tokenizer that ``stop_strings`` need.

    Args:
        sampler: draws instead of one that is made from the generation config's temperature, top_k, top_p,
            min_p, typical_p, epsilon_cutoff, eta_cutoff and do_sample, in the order of transformers. Values
            and tables of its own for each row are for rows as `generate` repeats them.
        seed: see `hf`.
        drafter: guesses how a single row goes on, and one forward pass says which guesses stand: a smaller
            model of transformers with the same tokenizer, or "prompt_lookup" for what has followed the last
            tokens before.
        drafts: how many tokens it guesses at a time.
        method: which guesses stand; see `verify`. With "coupled" the text is the one without a drafter, up to
            what several tokens in one forward pass round otherwise.

    Returns:
        int64 [rows, length], prompts included, as from any decoding loop of transformers; or `Generated`.

    Raises:
        ValueError: the model or the generation config asks for something that this loop does not do, or a
            row has no token that may be drawn.
    """
    refuse(model, generation_config)
    processors = without_warpers(logits_processor, generation_config)
    sampler = sampler_of(generation_config) if sampler is None else sampler
    prompts = unmasked(input_ids, model_kwargs.get("attention_mask"))
    state = sampler.start(len(prompts), seeds_of(seed, prompts), torch.from_numpy(prompts))
    record = Record(generation_config)
    pad = generation_config._pad_token_tensor
    unfinished = torch.ones(len(input_ids), dtype=torch.bool, device=input_ids.device)
    if drafter is not None:
        refuse_drafts(drafts, prompts, model_kwargs)
        return _with_drafts(
            *(model, input_ids, processors, stopping_criteria, generation_config, sampler, state, record),
            *(drafter, drafts, method, int((prompts < 0).sum()), model_kwargs),
        )

    outputs = model._prefill(input_ids, generation_config, model_kwargs)
    forward = (
        model.get_compiled_call(generation_config.compile_config)
        if model._valid_auto_compile_criteria(model_kwargs, generation_config)
        else model
    )
    while True:
        model_kwargs = model._update_model_kwargs_for_generation(outputs, model_kwargs)
        # A copy: as a part of them, these would keep the logits of a whole prompt alive.
        logits = outputs.logits[:, -1].to(input_ids.device, torch.float32, copy=True)
        del outputs
        scores = processors(input_ids, logits)
        draw = sampler(scores, state)
        # Without padding to show instead, what a finished row draws is shown, too.
        drawing = torch.ones_like(unfinished) if pad is None else unfinished
        check_drawn(draw.tokens, drawing)
        tokens = draw.tokens if pad is None else draw.tokens.where(drawing, pad.to(draw.tokens))
        state = sampler.advance(state, tokens.masked_fill(~drawing, -1))
        input_ids = torch.cat([input_ids, tokens[:, None]], dim=1)
        record.add(logits, scores, draw.logprobs.masked_fill(~unfinished, 0.0))
        record.verified()
        unfinished = unfinished & ~stopping_criteria(input_ids, record.scores)
        if not bool(unfinished.any()):
            return record.output(input_ids, model_kwargs.get("past_key_values"))
        model_inputs = model.prepare_inputs_for_generation(
            input_ids, next_sequence_length=1 if model_kwargs["use_cache"] else None, **model_kwargs
        )
        outputs = forward(**model_inputs, return_dict=True)


def _with_drafts(
    model: Any,
    input_ids: Tensor,
    processors: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    config: GenerationConfig,
    sampler: Sampler,
    state: State,
    record: Record,
    drafter: Any,
    most: int,
    method: Method,
    padding: int,
    model_kwargs: dict[str, Any],
) -> Tensor | Generated:
    """The loop for a single row: each forward pass is of the last token and of drafts after it."""
    pads, ends = input_ids[:, :padding], config._eos_token_tensor
    cache = recording(model_kwargs["past_key_values"])
    guesses = Drafts(input_ids[:, :0])
    guessing: Drafter | None = None
    outputs = model._prefill(input_ids, config, model_kwargs)
    while True:
        count = guesses.tokens.shape[1]
        logits = outputs.logits[:, -count - 1 :].to(input_ids.device, torch.float32, copy=True)
        text = torch.cat([input_ids, guesses.tokens], dim=1)
        places = range(input_ids.shape[1], text.shape[1] + 1)
        scores = torch.stack(
            [processors(text[:, :place], logits[:, at]) for at, place in enumerate(places)], dim=1
        )
        found = verify(guesses.tokens, guesses.logits, scores, sampler, state, method=method)
        emitted, done = 0, False
        while emitted <= int(found.accepted) and not done:
            token = found.tokens[:, emitted]
            check_drawn(token, torch.ones_like(token, dtype=torch.bool))
            state = sampler.advance(state, token)
            input_ids = torch.cat([input_ids, token[:, None]], dim=1)
            record.add(logits[:, emitted], scores[:, emitted], found.logprobs[:, emitted])
            done = bool(stopping_criteria(input_ids, record.scores).all())
            emitted += 1
        record.verified(count, min(emitted, int(found.accepted)))
        # All but the last token of the text stays.
        cache.crop(emitted - 1 - count)
        if done:
            return record.output(input_ids, cache)
        model_kwargs = model._update_model_kwargs_for_generation(
            outputs, model_kwargs, num_new_tokens=emitted
        )
        if guessing is None:
            guessing = drafter_of(
                drafter,
                width=logits.shape[2],
                process=lambda ids, logits: processors(torch.cat([pads, ids], dim=1), logits),
                sampler=sampler,
                method=method,
                ends=set() if ends is None else set(ends.tolist()),
            )
        # One more token comes after the drafts.
        room = min(most, config.max_length - input_ids.shape[1] - 1)
        guesses = Drafts(input_ids[:, :0])
        if room > 0:
            guesses = guessing.draft(input_ids[:, padding:], state, room)
        outputs = _forward(model, input_ids, guesses.tokens, outputs, model_kwargs)


def _forward(model: Any, ids: Tensor, drafts: Tensor, before: Any, model_kwargs: dict[str, Any]) -> Any:
    """What the model says after the last token and after each draft, given what it said before."""
    count = drafts.shape[1]
    given = dict(model_kwargs)
    if count:
        given = model._update_model_kwargs_for_generation(before, given, num_new_tokens=count)
    text = torch.cat([ids, drafts], dim=1)
    inputs = model.prepare_inputs_for_generation(text, next_sequence_length=count + 1, **given)
    if "logits_to_keep" in inputs:
        inputs["logits_to_keep"] = count + 1
    return model(**inputs, return_dict=True)


class Record:
    """What is kept of each step, as far as the generation config asks for it."""

    def __init__(self, config: GenerationConfig) -> None:
        self._returns = bool(config.return_dict_in_generate)
        self._logits: list[Tensor] | None = [] if self._returns and config.output_logits else None
        self._scores: list[Tensor] | None = [] if self._returns and config.output_scores else None
        self._logprobs: list[Tensor] = []
        self._forwards = self._drafted = self._accepted = 0

    @property
    def scores(self) -> tuple[Tensor, ...] | None:
        """Of all steps, None unless asked for."""
        return None if self._scores is None else tuple(self._scores)

    def add(self, logits: Tensor, scores: Tensor, logprobs: Tensor) -> None:
        """Keep what a step has: [rows, vocabulary] from the model and from processors, [rows]."""
        if self._logits is not None:
            self._logits.append(logits)
        if self._scores is not None:
            self._scores.append(scores)
        self._logprobs.append(logprobs)

    def verified(self, drafted: int = 0, accepted: int = 0) -> None:
        """Count a forward pass, and the drafts that it was about."""
        self._forwards += 1
        self._drafted += drafted
        self._accepted += accepted

    def output(self, ids: Tensor, cache: Any) -> Tensor | Generated:
        """What `generate` returns."""
        if not self._returns:
            return ids
        return Generated(
            sequences=ids,
            scores=self.scores,
            logits=None if self._logits is None else tuple(self._logits),
            past_key_values=cache,
            logprobs=torch.stack(self._logprobs, dim=1),
            forwards=self._forwards,
            drafted=self._drafted,
            accepted=self._accepted,
        )


def refuse(model: Any, config: GenerationConfig) -> None:
    """Raise if the model or the generation config asks for something that the loop does not do.

    Raises:
        ValueError: it does.
    """
    if model.config.is_encoder_decoder:
        raise ValueError("so.generate does not do models with an encoder; so.hf does")
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH):
        raise ValueError(f"so.generate does not do {mode.value.replace('_', ' ')}")
    for field in REFUSED:
        if getattr(config, field, None):
            raise ValueError(f"so.generate does not do {field}")


def refuse_drafts(drafts: int, prompts: NDArray[np.int64], model_kwargs: dict[str, Any]) -> None:
    """Raise if a drafter is to work where the loop does not do drafts.

    Raises:
        ValueError: it is.
    """
    if drafts < 1:
        raise ValueError(f"a drafter guesses 1 token or more, not {drafts}")
    if len(prompts) != 1:
        raise ValueError(f"so.generate does drafts for a single row, not for {len(prompts)}")
    if model_kwargs.get("inputs_embeds") is not None:
        raise ValueError("so.generate does not do drafts after embeddings, which no drafter can see")
    if (np.diff(prompts >= 0) != 0).sum() > (prompts[:, :1] < 0).sum():
        raise ValueError("so.generate does not do drafts after a prompt that is masked but at its left")
    cache = model_kwargs.get("past_key_values")
    if cache is None:
        raise ValueError("so.generate does not do drafts without a cache")
    kinds = {type(layer).__name__ for layer in cache.layers if type(layer) not in CROPPED}
    if kinds or not isinstance(cache, DynamicCache):
        names = ", ".join(sorted(kinds)) or type(cache).__name__
        raise ValueError(f"so.generate does not do drafts with a cache of {names}")


def sampler_of(config: GenerationConfig) -> Sampler:
    """The sampler that draws as the generation config asks."""
    rules = [rule(value) for rule, _, value in asked(config)] if config.do_sample else [Temperature(0.0)]
    return Sampler(*rules, order="hf", on_nan="mend", on_infinite="mend")


def without_warpers(processors: LogitsProcessorList, config: GenerationConfig) -> LogitsProcessorList:
    """The processors less those that `generate` has made of what the sampler does."""
    made = [warper for _, warper, _ in asked(config)] if config.do_sample else []
    kept = []
    # From the end: those of the user come before.
    for processor in reversed(processors):
        if type(processor) in made:
            made.remove(type(processor))
        else:
            kept.append(processor)
    return LogitsProcessorList(kept[::-1])


def asked(config: GenerationConfig) -> list[tuple[type[Rule], type[LogitsProcessor], float]]:
    """Which of `WARPERS` the generation config asks for, and with what value."""
    neutral, found = Parameters(), []
    for field, (rule, warper) in WARPERS.items():
        value = getattr(config, field)
        if value is not None and value != getattr(neutral, rule.parameter):
            found.append((rule, warper, value))
    return found


def unmasked(ids: Tensor, mask: Tensor | None) -> NDArray[np.int64]:
    """The prompts [rows, length], -1 where the attention mask [rows, length or more] is 0."""
    if mask is not None:
        ids = ids.masked_fill(mask[:, mask.shape[1] - ids.shape[1] :] == 0, -1)
    return np.array(ids.to("cpu", torch.int64).numpy())
