"""What `sortition probe` was given, as what a probe runs on: a target, prompts, conditions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from sortition.integrations.errors import InputError, reason_of

if TYPE_CHECKING:
    from sortition.benchmarks.probe.agreement import Parser
    from sortition.benchmarks.probe.target import Condition, Prompt, Target
    from sortition.benchmarks.probe.verdict import Requirement

Kind: TypeAlias = Literal["hf", "vllm", "server", "sampler"]

PROMPTS: Final = (
    "The capital of France is",
    "Write a short story about a lighthouse keeper.",
    "def fibonacci(n):",
    "Explain why the sky is blue to a five year old.",
    "The derivative of x^2 sin(x) is",
    "Here is a JSON object describing a person: {",
)
"""Facts, stories, code and lists, of several lengths."""

STEPS: Final[dict[Kind, int]] = {"hf": 10, "vllm": 10, "server": 10, "sampler": 20}
"""Tokens after each prompt. The sampler's are draws: 512 texts of 20 are 10,240."""


def kind_of_target(sampler: bool, base_url: str | None, engine: str, folder: Path | None) -> Kind:
    """What is probed.

    Raises:
        InputError: that is not clear, or there is no such thing.
    """
    if engine not in ("hf", "vllm"):
        raise InputError(f"--engine is hf or vllm, not {engine!r}")
    named = [
        *(["--sampler"] if sampler else []),
        *(["--base-url"] if base_url is not None else []),
        *(["--engine vllm"] if engine == "vllm" else []),
    ]
    if len(named) > 1:
        raise InputError(f"{' and '.join(named)} name different things to probe: give one of them")
    if folder is not None and (sampler or base_url is not None):
        raise InputError(f"{named[0]} has no --model folder")
    if sampler:
        return "sampler"
    if base_url is not None:
        return "server"
    return "vllm" if engine == "vllm" else "hf"


def idle(kind: Kind, conditions_named: bool) -> dict[str, str]:
    """The options that do nothing for a kind of target or beside named conditions, and what each is for."""
    nothing: dict[str, str] = {}
    if kind != "server":
        nothing["served_model"] = "for --base-url"
    if kind != "hf":
        nothing["attention"] = "for a model of transformers in this process"
    if kind in ("server", "sampler"):
        nothing["dtype"] = "for a model that is loaded here"
    if kind == "sampler":
        nothing["prompts"] = "for models: the sampler has logits of its own"
    if conditions_named:
        nothing |= dict.fromkeys(("batch_size", "pairs"), "for the plan, not beside --condition")
    return nothing


def texts(file: Path | None) -> list[str]:
    """The prompts: the lines of a file, or our own."""
    return list(PROMPTS) if file is None else _lines(file)


def answers(
    require: str, answer: str | None, expected: Path | None, prompts: int
) -> tuple[Requirement, Parser | None, list[str] | None]:
    """What must be the same, what finds answers in texts, and the right ones.

    Raises:
        InputError: they do not fit together, or cannot be read.
    """
    from sortition.benchmarks.probe.answers import answer_parser

    kinds: tuple[Requirement, ...] = ("bitwise", "tokens", "answers")
    requirement = next((each for each in kinds if each == require), None)
    if requirement is None:
        raise InputError(f"--require is {', '.join(kinds)}, not {require!r}")
    if answer is None and (require == "answers" or expected is not None):
        raise InputError("say how to find the answer in a text: give --answer")
    right = None if expected is None else _lines(expected)
    if right is not None and len(right) != prompts:
        raise InputError(f"{expected} has {len(right)} answers for {prompts} prompts")
    return requirement, None if answer is None else answer_parser(answer), right


def conditions(
    names: list[str] | None, batch_sizes: list[int] | None, pairs: bool, kind: Kind
) -> tuple[Condition, ...]:
    """What is tried: the conditions of these names, else the plan for a kind of target.

    Raises:
        InputError: a name is none, or is there twice.
    """
    from sortition.benchmarks.probe.conditions import BATCH_SIZES, parse, plan, served_plan
    from sortition.benchmarks.probe.sampler_target import sampler_plan
    from sortition.benchmarks.probe.vllm_target import in_few_engines

    if names:
        try:
            found = tuple(parse(name) for name in names)
        except ValueError as problem:
            raise InputError(f"--condition: {problem}") from None
        twice = next((each for at, each in enumerate(found) if each in found[:at]), None)
        if twice is not None:
            raise InputError(f"--condition: {twice.name} is there twice")
        return in_few_engines(found) if kind == "vllm" else found
    sizes = sorted(set(batch_sizes or ()))
    if kind == "sampler":
        return sampler_plan(sizes or None)
    if kind == "hf":
        return plan(sizes or BATCH_SIZES, pairs=pairs)
    served = served_plan(sizes or BATCH_SIZES, pairs=pairs)
    return in_few_engines(served) if kind == "vllm" else served


def target(
    kind: Kind,
    texts: list[str],
    *,
    model: Path | None,
    dtype: str,
    attention: str,
    base_url: str | None,
    served_model: str | None,
) -> tuple[Target, list[Prompt]]:
    """What is probed, with the prompts as it reads them.

    Raises:
        InputError: it cannot be loaded, or does not answer.
    """
    if kind == "sampler":
        return _sampler()
    if kind == "server":
        return _server(str(base_url), served_model, texts)
    from sortition.benchmarks.probe.options import DTYPES

    if dtype not in DTYPES:
        raise InputError(f"--dtype is {', '.join(DTYPES)}, not {dtype!r}")
    found, prompts = _vllm(model, dtype, texts) if kind == "vllm" else _hf(model, dtype, attention, texts)
    silent = [prompt.text for prompt in prompts if not prompt.tokens]
    if silent:
        raise InputError(f"the prompt {silent[0]!r} has no tokens")
    return found, prompts


def _hf(folder: Path | None, dtype: str, attention: str, texts: list[str]) -> tuple[Target, list[Prompt]]:
    """The model of a folder, the embedded one by default, with prompts as it reads them."""
    from sortition.integrations.model_folder import require_model

    folder = _folder(folder)
    require_model(folder)
    from transformers.utils import logging

    from sortition.benchmarks.probe.transformers_target import TransformersTarget

    logging.disable_progress_bar()
    try:
        target = TransformersTarget.load(folder, dtype, attention)
    except (OSError, ValueError, ImportError, RuntimeError) as problem:
        raise InputError(f"cannot load a model from {folder}: {reason_of(problem)}") from None
    return target, target.prompts(texts)


def _vllm(folder: Path | None, dtype: str, texts: list[str]) -> tuple[Target, list[Prompt]]:
    """A model in vLLM, with prompts as it reads them."""
    folder = _folder(folder)
    from sortition.benchmarks.probe.vllm_target import VllmTarget

    target = VllmTarget(folder, dtype=dtype)
    return target, target.prompts(texts)


def _server(url: str, served_model: str | None, texts: list[str]) -> tuple[Target, list[Prompt]]:
    """A model behind a URL, with prompts for it."""
    from sortition.benchmarks.probe.openai_target import OpenAITarget

    target = OpenAITarget(url, served_model)
    return target, target.prompts(texts)


def _sampler() -> tuple[Target, list[Prompt]]:
    """Sortition's own sampler, with a text for each row."""
    from sortition.benchmarks.probe.sampler_target import SamplerTarget

    target = SamplerTarget.default()
    return target, target.prompts()


def _folder(given: Path | None) -> Path:
    """The folder of a model, the embedded one by default."""
    from sortition.integrations.model_folder import local_folder
    from sortition.integrations.smollm2 import embedded_model

    if given is not None:
        return local_folder(given)
    try:
        return embedded_model()
    except FileNotFoundError as missing:
        raise InputError(f"{missing}; or name a model with --model") from None


def _lines(file: Path) -> list[str]:
    """The lines of a text file that are not blank.

    Raises:
        InputError: it cannot be read, or has none.
    """
    try:
        found = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as problem:
        raise InputError(f"cannot read {file}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{file} is not UTF-8 text") from None
    if not found:
        raise InputError(f"{file} has no lines with text")
    return found


def kept_beside(output: Path | None) -> Path | None:
    """The file for results of a probe that ends early; none for what is no file, such as /dev/stdout."""
    if output is None or (output.exists() and not output.is_file()):
        return None
    return output.with_name(output.name + ".partial")
