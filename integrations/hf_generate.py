"""transformers: a decoding loop of our own, for ``model.generate(custom_generate=so.generate)``."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    GenerationMode,
    LogitsProcessor,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from sortition.integrations.hf_drafting import Drafting, Loop, refuse_drafts
from sortition.integrations.hf_generated import Generated, Record
from sortition.integrations.hf_sampling import Seed, check_drawn, seeds_of
from sortition.sampling.parameters import Parameters
from sortition.sampling.rules import Epsilon, Eta, MinP, Rule, Temperature, TopK, TopP, Typical
from sortition.sampling.sampler import Sampler
from sortition.sampling.verification import Method

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

REFUSED: Final = ("top_h", "watermarking_config", "output_attentions", "output_hidden_states")
"""Fields of the generation config that ask for what this loop does not do."""


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
    target_tokenizer: Any = None,
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
        drafter: guesses how texts go on, and one forward pass says which guesses stand: a smaller model of
            transformers with the same tokenizer, "prompt_lookup" for what has followed the last tokens
            before, "grammar" for what the grammar leaves no choice about, or a list of these, each asked
            where those before it have no guess.
        drafts: how many tokens a model or prompt lookup guesses at a time. What a grammar forces is not cut.
        method: which guesses stand; see `verify`. With "coupled" the text is the one without a drafter, up to
            what several tokens in one forward pass round otherwise.
        target_tokenizer: of the model, for "grammar". (A ``tokenizer`` does not get past `generate`.)

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
    if drafter is not None:
        refuse_drafts(drafts, prompts, processors, stopping_criteria, generation_config, model_kwargs)
        drafting = Drafting(drafter, drafts, method, target_tokenizer)
        return Loop(
            *(model, input_ids, processors, stopping_criteria, generation_config),
            *(sampler, state, drafting, model_kwargs),
        ).run()

    record = Record(generation_config)
    pad = generation_config._pad_token_tensor
    unfinished = torch.ones(len(input_ids), dtype=torch.bool, device=input_ids.device)
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
        record.count(forwards=1)
        unfinished = unfinished & ~stopping_criteria(input_ids, record.scores)
        if not bool(unfinished.any()):
            return record.output(input_ids, model_kwargs.get("past_key_values"))
        model_inputs = model.prepare_inputs_for_generation(
            input_ids, next_sequence_length=1 if model_kwargs["use_cache"] else None, **model_kwargs
        )
        outputs = forward(**model_inputs, return_dict=True)


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
