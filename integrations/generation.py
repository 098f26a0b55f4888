"""What an extraction asks of an engine: prompts in, completions out, in order."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Protocol, cast

from sortition.grammars.grammar import Grammar
from sortition.integrations.errors import InputError


@dataclass(frozen=True, slots=True)
class Job:
    """What all prompts of an extraction have in common.

    Attributes:
        schema: the JSON Schema, for engines that compile it themselves.
        grammar: its grammar, or None where the model writes what it likes.
        max_tokens: the most tokens that the model may write for one prompt.
        batch_size: how many prompts are generated from together.
        chat: whether a prompt is a user's message in the tokenizer's chat template, if there is one.
        model: the folder of the model, or None for the embedded one.
        device: where the model runs, such as ``"cuda:1"``; None for a GPU if there is one.
        whitespace, formats, any_order, ignore: of the grammar, for engines that compile the schema
            themselves.
        tensor_parallel_size, data_parallel_size: over how many devices the model is split and copied.
        base_url: where a server answers, such as ``"http://localhost:8000/v1"``.
        served_model: what the server calls the model; None for the first that it names.
        server: how it takes a schema, see `openai_engine.SERVERS`; None to find out.
    """

    schema: Any
    grammar: Grammar | None
    max_tokens: int
    batch_size: int
    chat: bool
    model: Path | None = None
    device: str | None = None
    whitespace: str = "default"
    formats: str = "assert"
    any_order: bool = False
    ignore: tuple[str, ...] = ()
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    base_url: str | None = None
    served_model: str | None = None
    server: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model wrote for one prompt.

    Attributes:
        text: all of it, without its end token.
        ended: whether the model ended it; otherwise `max_tokens` did.
        prompt_tokens, completion_tokens: how many; the end token counts.
        seconds: its share of the time of its batch, or of the whole.
        error: why nothing was generated, or None.
    """

    text: str = ""
    ended: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    error: str | None = None


class Engine(Protocol):
    """A loaded model that follows one job."""

    def generate(self, prompts: Iterable[str]) -> Iterator[Completion]:
        """One completion for each prompt, in order, each as soon as it is there. Greedy.

        What is wrong with one prompt is that completion's `error`; what is wrong with all of them is raised.
        """
        ...


ENGINES: Final = {
    "hf": "sortition.integrations.hf_engine:TransformersEngine",
    "vllm": "sortition.integrations.vllm_engine:VLLMEngine",
    "openai": "sortition.integrations.openai_engine:OpenAIEngine",
}
"""Where the engines are, by the name that users give: module and class, called with the job."""

CHOICES: Final = {
    "hf": {"model", "device"},
    "vllm": {"model", "tensor_parallel_size", "data_parallel_size"},
    "openai": {"base_url", "served_model", "server"},
}
"""What each engine lets users choose, of that which not every engine has."""


def check_engine(name: str) -> None:
    """Raises InputError where no engine has that name."""
    if name not in ENGINES:
        raise InputError(f"there is no engine {name!r}; there is: {', '.join(ENGINES)}")


def check_job(name: str, job: Job) -> None:
    """Raises InputError where the job chooses what that engine, or this machine, does not have."""
    for field in fields(job):
        engines = [engine for engine, choices in CHOICES.items() if field.name in choices]
        if engines and name in CHOICES and name not in engines and getattr(job, field.name) != field.default:
            raise InputError(f"{field.name} is not for the engine {name!r}, but for {' and '.join(engines)}")
    for size in ("tensor_parallel_size", "data_parallel_size"):
        if getattr(job, size) < 1:
            raise InputError(f"{size} has to be at least 1, not {getattr(job, size)}")
    if job.device is not None:
        # It imports torch, which a job for a server does without.
        from sortition.sampling.named_device import named_device

        try:
            named_device(job.device)
        except ValueError as problem:
            raise InputError(str(problem)) from None


def load_engine(name: str, job: Job) -> Engine:
    """The engine of that name, its model loaded.

    Raises:
        InputError: no such engine, its libraries are not installed, or the model cannot be loaded.
        GrammarError: the model's vocabulary cannot follow the grammar.
    """
    check_engine(name)
    module, _, kind = ENGINES[name].partition(":")
    try:
        adapter = importlib.import_module(module)
    except ModuleNotFoundError as missing:
        raise InputError(
            f"the engine {name!r} needs {missing.name}: pip install 'sortition[{name}]'"
        ) from None
    return cast(Engine, getattr(adapter, kind)(job))
