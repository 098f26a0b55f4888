"""The engine of extractions that needs no server: `generate` of transformers, in left-padded batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from sortition.grammars.vocabulary import Vocabulary
from sortition.integrations.errors import InputError
from sortition.integrations.generation import Completion, Job
from sortition.integrations.hf import hf
from sortition.integrations.smollm2 import embedded_model


class TransformersEngine:
    """A model folder that transformers can load, held to the grammar of one job. See `Engine`."""

    def __init__(self, job: Job) -> None:
        """Load the model and compile the grammar for its vocabulary.

        Raises:
            InputError: the folder holds no model that transformers can load, its tokenizer cannot be read as
                tokens of fixed bytes, or there is no such device.
            GrammarError: the vocabulary cannot spell what the grammar asks for.
        """
        self._job = job
        folder = job.model or _embedded()
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", local_files_only=True)
            self._model = model.eval().to(job.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        except (OSError, ValueError, RuntimeError) as problem:
            raise InputError(f"cannot load the model in {folder}: {_first_line(problem)}") from problem
        try:
            self._vocabulary = Vocabulary.of(
                self._tokenizer,
                size=self._model.get_output_embeddings().weight.shape[0],
                generation_config=self._model.generation_config,
            )
        except (TypeError, ValueError) as problem:
            raise InputError(f"the tokenizer in {folder} cannot be used: {problem}") from problem
        ends = list(self._vocabulary.end_tokens)
        pad = self._tokenizer.pad_token_id
        self._pad = ends[0] if pad is None else pad
        self._generation = GenerationConfig(
            do_sample=False, max_new_tokens=job.max_tokens, eos_token_id=ends, pad_token_id=self._pad
        )
        self._processor = (
            None if job.grammar is None else hf(job.grammar.compile(self._vocabulary), end_tokens=ends)
        )

    def generate(self, prompts: Iterable[str]) -> Iterator[Completion]:
        """See `Engine.generate`."""
        waiting = iter(prompts)
        while batch := list(islice(waiting, self._job.batch_size)):
            yield from self._complete(batch)

    def _complete(self, batch: list[str]) -> list[Completion]:
        begun = perf_counter()
        prompts = [self._encode(prompt) for prompt in batch]
        room = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        fitting = [
            index
            for index, prompt in enumerate(prompts)
            if room is None or len(prompt) + self._job.max_tokens <= room
        ]
        written = dict(zip(fitting, self._continue([prompts[index] for index in fitting]), strict=True))
        seconds = round((perf_counter() - begun) / len(batch), 4)
        return [
            self._read(prompt, written[index], seconds)
            if index in written
            else Completion(
                prompt_tokens=len(prompt),
                error=f"the prompt's {len(prompt)} tokens and {self._job.max_tokens} more (max_tokens) "
                f"do not fit into the model's {room}",
            )
            for index, prompt in enumerate(prompts)
        ]

    def _encode(self, prompt: str) -> list[int]:
        """The tokens of one prompt."""
        tokenizer: Any = self._tokenizer
        chat = self._job.chat and tokenizer.chat_template is not None
        if chat:
            message = {"role": "user", "content": prompt}
            prompt = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
        # A chat template writes the special tokens itself.
        ids: list[int] = tokenizer(prompt, add_special_tokens=not chat)["input_ids"]
        return ids

    def _continue(self, prompts: list[list[int]]) -> list[list[int]]:
        """What the model writes after each prompt, padding included."""
        if not prompts:
            return []
        width = max(map(len, prompts))
        ids = torch.full((len(prompts), width), self._pad)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        processors: list[Any] = []
        if self._processor is not None:
            # No batch is the continuation of another, whatever its prompts look like.
            self._processor.reset()
            processors.append(self._processor)
        with torch.inference_mode():
            output = self._model.generate(
                ids.to(self._model.device),
                attention_mask=mask.to(self._model.device),
                generation_config=self._generation,
                logits_processor=processors,
            )
        rows: list[list[int]] = output[:, width:].tolist()
        return rows

    def _read(self, prompt: list[int], row: list[int], seconds: float) -> Completion:
        ends = set(self._vocabulary.end_tokens)
        end = next((index for index, token in enumerate(row) if token in ends), None)
        tokens = row[:end]
        # By bytes: a tokenizer's `decode` may tidy spaces, and tokens may split a character.
        text = b"".join(self._vocabulary.tokens[token] for token in tokens).decode(errors="replace")
        return Completion(
            text=text,
            ended=end is not None,
            prompt_tokens=len(prompt),
            completion_tokens=len(tokens) + (end is not None),
            seconds=seconds,
        )


def _embedded() -> Path:
    try:
        return embedded_model()
    except FileNotFoundError as missing:
        raise InputError(f"{missing}; or name a model folder") from None


def _first_line(problem: Exception) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0]
