"""The engine of extractions that needs no server: `generate` of transformers, in left-padded batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from time import perf_counter
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging

from sortition.grammars.vocabulary import Vocabulary
from sortition.integrations.errors import InputError
from sortition.integrations.generation import Completion, Job
from sortition.integrations.hf import hf
from sortition.integrations.local_model import encode, model_folder, no_room, one_line, read
from sortition.integrations.model_folder import require_model


class TransformersEngine:
    """A model folder that transformers can load, held to the grammar of one job. See `Engine`."""

    def __init__(self, job: Job) -> None:
        """Load the model and compile the grammar for its vocabulary.

        Raises:
            InputError: the folder holds no model that transformers can load, its tokenizer cannot be read as
                tokens of fixed bytes, or there is no room on the device.
            GrammarError: the vocabulary cannot spell what the grammar asks for.
        """
        self._job = job
        folder = model_folder(job)
        require_model(folder)
        device = job.device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            with _no_bars():
                self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
                model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", local_files_only=True)
            self._model = model.eval().to(device)
        except (OSError, ValueError, RuntimeError) as problem:
            raise InputError(f"cannot load the model in {folder}: {one_line(problem)}") from problem
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
        prompts = [encode(self._tokenizer, prompt, self._job) for prompt in batch]
        room = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        refused = [no_room(prompt, self._job, room) for prompt in prompts]
        fitting = [index for index, error in enumerate(refused) if error is None]
        written = dict(zip(fitting, self._continue([prompts[index] for index in fitting]), strict=True))
        seconds = round((perf_counter() - begun) / len(batch), 4)
        return [
            replace(error or read(written[index], prompts[index], self._vocabulary), seconds=seconds)
            for index, error in enumerate(refused)
        ]

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


@contextmanager
def _no_bars() -> Iterator[None]:
    """Without the library's own progress bars, which would tear ours, or be one where none is wanted."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
