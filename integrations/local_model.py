"""What the engines that hold a model themselves have in common: its folder, its prompts, what it wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sortition.grammars.vocabulary import Vocabulary
from sortition.integrations.errors import InputError
from sortition.integrations.generation import Completion, Job
from sortition.integrations.smollm2 import embedded_model


def model_folder(job: Job) -> Path:
    """The model of a job, the embedded one by default; raises InputError where that is not installed."""
    try:
        return job.model or embedded_model()
    except FileNotFoundError as missing:
        raise InputError(f"{missing}; or name a model folder") from None


def encode(tokenizer: Any, prompt: str, job: Job) -> list[int]:
    """The tokens of one prompt, by a tokenizer of transformers."""
    chat = job.chat and tokenizer.chat_template is not None
    if chat:
        message = {"role": "user", "content": prompt}
        prompt = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    # A chat template writes the special tokens itself.
    tokens: list[int] = tokenizer(prompt, add_special_tokens=not chat)["input_ids"]
    return tokens


def no_room(prompt: Sequence[int], job: Job, room: int | None) -> Completion | None:
    """The error of a prompt after which `max_tokens` do not fit into the model's context, else None."""
    if room is None or len(prompt) + job.max_tokens <= room:
        return None
    return Completion(
        prompt_tokens=len(prompt),
        error=f"the prompt's {len(prompt)} tokens and {job.max_tokens} more (max_tokens) "
        f"do not fit into the model's {room}",
    )


def read(written: Sequence[int], prompt: Sequence[int], vocabulary: Vocabulary) -> Completion:
    """What was written, up to the first end token; whatever follows that is padding."""
    ends = set(vocabulary.end_tokens)
    end = next((index for index, token in enumerate(written) if token in ends), None)
    tokens = written[:end]
    # By bytes: a tokenizer's `decode` may tidy spaces, and tokens may split a character.
    text = b"".join(vocabulary.tokens[token] for token in tokens).decode(errors="replace")
    return Completion(
        text=text,
        ended=end is not None,
        prompt_tokens=len(prompt),
        completion_tokens=len(tokens) + (end is not None),
    )


def one_line(problem: Exception) -> str:
    """The first line of an exception's message."""
    return (str(problem).splitlines() or [type(problem).__name__])[0]
