"""A transformers model, step by step: the sampling loop of `generate`, with every part of it timed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from tokenizers.decoders import DecodeStream
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LogitsProcessorList,
    StoppingCriteriaList,
)
from transformers.generation import (
    EncoderRepetitionPenaltyLogitsProcessor,
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from sortition.benchmarks.overhead import parts
from sortition.benchmarks.overhead.engine import Script
from sortition.benchmarks.overhead.load import Load, prompts
from sortition.benchmarks.overhead.patches import Patches
from sortition.benchmarks.overhead.stopwatch import Stopwatch
from sortition.grammars.json_schema import json_schema
from sortition.grammars.vocabulary import Vocabulary
from sortition.integrations.errors import InputError
from sortition.integrations.hf import hf

PENALTIES: Final = (RepetitionPenaltyLogitsProcessor, EncoderRepetitionPenaltyLogitsProcessor)
FILTERS: Final = (
    *(TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper),
    *(TypicalLogitsWarper, EpsilonLogitsWarper, EtaLogitsWarper),
)


class TransformersEngine:
    """See `Engine`. All requests of a batch begin together: there are no mixed steps.

    Args:
        model: a causal language model in evaluation mode.
        tokenizer: its tokenizer.
        processors: further logits processors, each of which is a part of its own.
    """

    name = "transformers"
    structures: tuple[str, ...] = ("none", "ours")

    def __init__(self, model: Any, tokenizer: Any, processors: Sequence[LogitsProcessor] = ()) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self._processors = list(processors)
        self._grammars: dict[str, LogitsProcessor] = {}

    @classmethod
    def load(cls, folder: Path, dtype: str = "auto") -> TransformersEngine:
        """The model of a folder, on a GPU if there is one.

        Raises:
            InputError: transformers cannot load it.
        """
        tokenizer, config = _read(folder)
        try:
            model = AutoModelForCausalLM.from_pretrained(
                folder, config=config, dtype=dtype, local_files_only=True
            )
        except (OSError, ValueError) as problem:
            raise InputError(f"cannot load the model in {folder}: {problem}") from problem
        return cls(model.eval().to(default_device()), tokenizer)

    @classmethod
    def random(cls, folder: Path, dtype: str = "auto") -> TransformersEngine:
        """A model with random weights, of the configuration in a folder: it takes as long as a trained one.

        Raises:
            InputError: transformers cannot read the configuration or the tokenizer.
        """
        tokenizer, config = _read(folder)
        number = config.dtype or torch.float32 if dtype == "auto" else getattr(torch, dtype)
        return cls(random_model(config, number, default_device()), tokenizer)

    def describe(self) -> dict[str, Any]:
        """See `Engine.describe`."""
        return {
            "engine": self.name,
            "model": self.model.config.name_or_path or type(self.model).__name__,
            "parameters": sum(weights.numel() for weights in self.model.parameters()),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "device": str(self.model.device),
            "threads": torch.get_num_threads(),
            "attention": self.model.config._attn_implementation,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }

    def run(self, load: Load, stopwatch: Stopwatch, script: Script | None = None) -> Script:
        """See `Engine.run`."""
        ids = torch.tensor(prompts(self.tokenizer, load), device=self.model.device)
        processors = [*self._processors, *self._grammar(load)]
        head = self.model.get_output_embeddings()
        loop = Loop(stopwatch, self.tokenizer, load, script)
        with Patches() as patches, torch.inference_mode():
            patches.patch(head, "forward", lambda forward: stopwatch.timed(parts.LOGITS, forward))
            self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                generation_config=self._configuration(load),
                logits_processor=processors,
                custom_generate=loop,
            )
        return loop.written

    def _configuration(self, load: Load) -> GenerationConfig:
        sampling = load.sampling
        drawn: dict[str, Any] = {}
        if sampling.temperature > 0:
            # What is not given is not done: the library's own top_k is 50.
            drawn = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
            drawn |= {"min_p": sampling.min_p} if sampling.min_p else {}
        return GenerationConfig(
            do_sample=sampling.temperature > 0,
            max_new_tokens=load.tokens,
            repetition_penalty=sampling.repetition_penalty,
            pad_token_id=self._end,
            **drawn,
        )

    @property
    def _end(self) -> int:
        end: int = self.tokenizer.eos_token_id
        return end

    def _grammar(self, load: Load) -> list[LogitsProcessor]:
        if load.structure == "none":
            return []
        if load.structure != "ours":
            raise InputError(f"transformers has no {load.structure}; there are {', '.join(self.structures)}")
        source = json.dumps(load.schema)
        if source not in self._grammars:
            size = self.model.get_output_embeddings().weight.shape[0]
            vocabulary = Vocabulary.of(
                self.tokenizer, size=size, generation_config=self.model.generation_config
            )
            self._grammars[source] = hf(json_schema(load.schema).compile(vocabulary))
        return [self._grammars[source]]


def default_device() -> torch.device:
    """A GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def random_model(config: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """A model of a configuration, with random weights."""
    with device:
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def _read(folder: Path) -> tuple[Any, Any]:
    """The tokenizer and the configuration of a folder."""
    try:
        return (
            AutoTokenizer.from_pretrained(folder, local_files_only=True),
            AutoConfig.from_pretrained(folder, local_files_only=True),
        )
    except (OSError, ValueError) as problem:
        raise InputError(f"cannot read the model in {folder}: {problem}") from problem


class Loop:
    """What `generate` does for greedy search and sampling, for its argument ``custom_generate``.

    It does not stop at end tokens, so that a batch keeps its rows: a step is then one of the whole batch.
    """

    def __init__(self, stopwatch: Stopwatch, tokenizer: Any, load: Load, script: Script | None) -> None:
        self.written: list[list[int]] = [[] for _ in range(load.batch)]
        self._stopwatch = stopwatch
        self._decoder = tokenizer.backend_tokenizer
        self._streams = [DecodeStream(skip_special_tokens=True) for _ in range(load.batch)]
        self._load = load
        self._script = script

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> Tensor:
        """What a decoding loop of transformers takes and gives."""
        watch = self._stopwatch
        named = list(zip(_parts(logits_processor), logits_processor, strict=True))
        outputs = None
        for turn in range(self._load.tokens):
            with watch.step("decode" if turn else "prefill", len(input_ids)):
                if outputs is None:
                    with watch.part(parts.FORWARD):
                        outputs = model._prefill(input_ids, generation_config, model_kwargs)
                else:
                    with watch.part(parts.INPUTS):
                        model_kwargs = model._update_model_kwargs_for_generation(outputs, model_kwargs)
                        inputs = model.prepare_inputs_for_generation(
                            input_ids, next_sequence_length=1, **model_kwargs
                        )
                    with watch.part(parts.FORWARD):
                        outputs = model(**inputs, return_dict=True)
                with watch.part(parts.LOGITS):
                    # float32 is what processors get; and a part of the outputs would keep all of them alive.
                    logits = outputs.logits[:, -1].to(torch.float32, copy=True)
                scores = logits
                for part, processor in named:
                    scores = watch.call(part, processor, input_ids, scores, instead=_unchanged)
                tokens = self._draw(scores, turn)
                self._report_logprobs(logits, tokens)
                with watch.part(parts.BOOKKEEPING):
                    input_ids = torch.cat([input_ids, tokens[:, None]], dim=1)
                    stopping_criteria(input_ids, None)
                self._detokenise(tokens)
        return input_ids

    def _draw(self, scores: Tensor, turn: int) -> Tensor:
        forced = None
        if self._script is not None:
            forced = torch.tensor([row[turn] for row in self._script], device=scores.device)
        draw = _sampled if self._load.sampling.temperature > 0 else _likeliest
        drawn = self._stopwatch.call(parts.DRAW, draw, scores, instead=_first)
        return drawn if forced is None else forced

    def _report_logprobs(self, logits: Tensor, tokens: Tensor) -> None:
        count = self._load.sampling.logprobs
        if count is not None:
            self._stopwatch.call(parts.LOGPROBS, _logprobs, logits, tokens, count, instead=_nothing)

    def _detokenise(self, tokens: Tensor) -> None:
        with self._stopwatch.part(parts.BOOKKEEPING):
            ids = tokens.tolist()
        for row, token in zip(self.written, ids, strict=True):
            row.append(token)
        self._stopwatch.call(parts.DETOKENISE, self._decode, ids, instead=_nothing)

    def _decode(self, ids: list[int]) -> None:
        for stream, token in zip(self._streams, ids, strict=True):
            stream.step(self._decoder, token)


def _parts(processors: Sequence[LogitsProcessor]) -> list[str]:
    """Which part each processor is."""
    custom = iter(parts.processors(each for each in processors if _library_part(each) is None))
    return [_library_part(each) or next(custom) for each in processors]


def _library_part(processor: LogitsProcessor) -> str | None:
    if isinstance(processor, PENALTIES):
        return parts.PENALTIES
    return parts.FILTERS if isinstance(processor, FILTERS) else None


def _unchanged(input_ids: Tensor, scores: Tensor) -> Tensor:
    return scores


def _likeliest(scores: Tensor) -> Tensor:
    return torch.argmax(scores, dim=-1)


def _sampled(scores: Tensor) -> Tensor:
    return torch.multinomial(torch.softmax(scores, dim=-1), num_samples=1)[:, 0]


def _first(scores: Tensor) -> Tensor:
    return torch.zeros(len(scores), dtype=torch.int64, device=scores.device)


def _logprobs(logits: Tensor, tokens: Tensor, count: int) -> list[Any]:
    """Those of the likeliest tokens and of the drawn one, on the host, as a server reports them."""
    logprobs = torch.log_softmax(logits, dim=-1)
    values, ids = logprobs.topk(count, dim=-1)
    drawn = logprobs.gather(-1, tokens[:, None])
    return [values.tolist(), ids.tolist(), drawn.tolist()]


def _nothing(*_: object) -> None:
    return None
