"""The engine of extractions that runs vLLM in this process, with our logits processor."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, Final

# Its notes would tear the progress bar; who wants them says so.
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from transformers import GenerationConfig
from vllm import LLM, SamplingParams
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind

from sortition.grammars.vocabulary import Vocabulary
from sortition.integrations.errors import InputError, reason_of
from sortition.integrations.generation import Completion, Job
from sortition.integrations.local_model import encode, model_folder, no_room, read
from sortition.integrations.request import request
from sortition.integrations.turns import in_turn

PROCESSOR: Final = "sortition.integrations.vllm:Processor"

CPU_CACHE: Final = 2 << 30
"""Bytes for keys and values on a CPU, unless VLLM_CPU_KVCACHE_SPACE says otherwise: 46,000 tokens of the
embedded model."""


class VLLMEngine:
    """A model folder that vLLM can load, held to the grammar of one job. See `Engine`."""

    def __init__(self, job: Job) -> None:
        """Start vLLM.

        Raises:
            InputError: vLLM cannot load the model, or not in so many parts, or refuses the schema; or the
                tokenizer cannot be read as tokens of fixed bytes.
            GrammarError: the vocabulary cannot spell what the grammar asks for.
        """
        self._job = job
        folder = model_folder(job)
        options: dict[str, Any] = {}
        if job.grammar is not None:
            options["logits_processors"] = [PROCESSOR]
        if current_platform.is_cpu():
            # vLLM would compile for longer than most jobs take, want 92 % of the memory, and compute in
            # bfloat16, with which two busy cores wrote 5 tokens/s of the demo and not 17.
            options.update(enforce_eager=True, kv_cache_memory_bytes=CPU_CACHE, dtype="float32")
        if job.data_parallel_size > 1:
            options["data_parallel_size"] = job.data_parallel_size
        try:
            self._model = LLM(
                str(folder),
                tensor_parallel_size=job.tensor_parallel_size,
                max_num_seqs=job.batch_size,
                # As long as memory allows, where a model's own context does not fit.
                max_model_len=-1,
                use_tqdm_on_load=False,
                **options,
            )
        except (OSError, ValueError, RuntimeError) as problem:
            raise InputError(f"vLLM cannot load the model in {folder}: {reason_of(problem)}") from problem
        tokenizer = self._model.get_tokenizer()
        # vLLM wraps what mistral-common reads in a class of its own.
        self._tokenizer = getattr(tokenizer, "transformers_tokenizer", tokenizer)
        generation = self._model.model_config.try_get_generation_config()
        try:
            self._vocabulary = Vocabulary.of(
                self._tokenizer, generation_config=GenerationConfig.from_dict(generation)
            )
        except (TypeError, ValueError) as problem:
            raise InputError(f"the tokenizer in {folder} cannot be used: {problem}") from problem
        extra_args = None
        if job.grammar is not None:
            # vLLM closes a request whose grammar turns out impossible; here that is raised.
            job.grammar.compile(self._vocabulary)
            extra_args = request(
                json_schema=job.schema,
                whitespace=job.whitespace,
                formats=job.formats,
                any_order=job.any_order,
                ignore=job.ignore,
            )
        self._parameters = SamplingParams(
            temperature=0,
            max_tokens=job.max_tokens,
            stop_token_ids=list(self._vocabulary.end_tokens),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args=extra_args,
        )
        self._prompts: dict[int, list[int]] = {}
        self._done: dict[int, Completion] = {}

    def generate(self, prompts: Iterable[str]) -> Iterator[Completion]:
        """See `Engine.generate`."""
        return in_turn(prompts, self._job.batch_size, self._submit, self._collect)

    def _submit(self, number: int, prompt: str) -> None:
        tokens = encode(self._tokenizer, prompt, self._job)
        refused = no_room(tokens, self._job, self._model.model_config.max_model_len)
        if refused is not None:
            self._done[number] = refused
            return
        try:
            self._model.llm_engine.add_request(str(number), {"prompt_token_ids": tokens}, self._parameters)
        except ValueError as problem:
            raise InputError(f"vLLM refuses the request: {reason_of(problem)}") from problem
        self._prompts[number] = tokens

    def _collect(self, number: int) -> Completion:
        while number not in self._done:
            for output in self._model.llm_engine.step():
                # All of them are final: see the parameters.
                done = int(output.request_id)
                self._done[done] = read(
                    output.outputs[0].token_ids, self._prompts.pop(done), self._vocabulary
                )
        return self._done.pop(number)
