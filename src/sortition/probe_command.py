"""`sortition probe`: does the batch change the output, how often, where, why, and what mends it."""

from __future__ import annotations

import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from sortition.integrations.errors import InputError

if TYPE_CHECKING:
    from sortition.benchmarks.probe.findings import Findings
    from sortition.benchmarks.probe.options import Options
    from sortition.benchmarks.probe.target import Condition, Prompt, Target

FAULT: Final = 3
INTERRUPTED: Final = 130

NOTHING_TO_REPEAT: Final = "print('the probe found nothing that a script could show again')\n"

PROMPTS: Final = (
    "The capital of France is",
    "Write a short story about a lighthouse keeper.",
    "def fibonacci(n):",
    "Explain why the sky is blue to a five year old.",
    "The derivative of x^2 sin(x) is",
    "Here is a JSON object describing a person: {",
)
"""Facts, stories, code and lists, of several lengths."""


def probe(
    model: Annotated[Path | None, typer.Option(help="Model folder. By default the embedded SmolLM2.")] = None,
    sampler: Annotated[
        bool, typer.Option("--sampler", help="Probe Sortition's own sampler and grammar, without a model.")
    ] = False,
    engine: Annotated[str, typer.Option(help="What runs the model: hf or vllm.")] = "hf",
    base_url: Annotated[
        str | None, typer.Option(help="Server to probe instead, such as http://localhost:8000/v1.")
    ] = None,
    served_model: Annotated[
        str | None, typer.Option(help="What the server calls the model. By default the first it names.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="Text file with a prompt on each line. By default six of our own.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Tokens after each prompt.")] = 10,
    condition: Annotated[
        list[str] | None,
        typer.Option(help="Try only this, such as 'batch_size 8 and padding 3'; may be repeated."),
    ] = None,
    batch_size: Annotated[
        list[int] | None, typer.Option(min=2, help="Rows to try; may be repeated. By default 2, 4, 8, 16.")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="Numbers of the model: bfloat16, float16, float32.")
    ] = "bfloat16",
    attention: Annotated[str, typer.Option(help="Its implementation of attention.")] = "sdpa",
    require: Annotated[str, typer.Option(help="What must be the same: bitwise or tokens.")] = "tokens",
    max_divergence: Annotated[
        float, typer.Option(min=0, max=1, help="Share of prompts that may differ; 0: none that is seen.")
    ] = 0.0,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.9999, help="Of intervals.")] = 0.95,
    causes: Annotated[bool, typer.Option("--causes/--no-causes", help="Look for causes.")] = True,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="JSON of all findings; interrupted, it goes on.")
    ] = None,
    page: Annotated[Path | None, typer.Option(help="HTML page, on its own.")] = None,
    junit: Annotated[Path | None, typer.Option(help="JUnit XML.")] = None,
    repro: Annotated[
        Path | None, typer.Option(help="Python script that shows the smallest difference again.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar and no summary.")] = False,
) -> None:
    """Say whether the batch changes the output, how often, where, why, and what mends it.

    Exit codes: 0 within the threshold, 1 beyond it, 2 inconclusive or not exercised, 3 an error.
    """
    try:
        from sortition.benchmarks.probe.options import Options

        if require not in ("bitwise", "tokens"):
            raise InputError(f"--require is bitwise or tokens, not {require!r}")
        options = Options(
            steps=steps,
            require="bitwise" if require == "bitwise" else "tokens",
            max_divergence=max_divergence,
            confidence=confidence,
            attribute=causes,
            asked=bool(condition),
        )
        served = base_url is not None or engine == "vllm"
        conditions = _conditions(condition, batch_size, sampler, served)
        target: Target
        texts: list[Prompt]
        if sampler:
            target, texts = _sampler()
        elif base_url is not None:
            target, texts = _server(base_url, served_model, prompts)
        elif engine == "vllm":
            target, texts = _vllm(model, dtype, prompts)
            conditions = _in_few_engines(conditions)
        elif engine == "hf":
            target, texts = _model(model, dtype, attention, prompts)
        else:
            raise InputError(f"--engine is hf or vllm, not {engine!r}")
        if sampler:
            # All texts at once: the largest batch is as large.
            options = replace(options, block=len(texts))
        kept = None if output is None else output.with_name(output.name + ".partial")
        findings = _study(target, texts, conditions, options, kept, quiet)
        _write(findings, output, page, junit, repro)
    except InputError as problem:
        typer.echo(f"error: {problem}", err=True)
        raise typer.Exit(FAULT) from None
    except KeyboardInterrupt:
        typer.echo("interrupted" + ("; the same command goes on from here" if output else ""), err=True)
        raise typer.Exit(INTERRUPTED) from None
    except Exception:
        traceback.print_exc()
        raise typer.Exit(FAULT) from None
    if not quiet:
        from sortition.benchmarks.probe.report import terminal

        terminal.show(findings, Console())
    from sortition.benchmarks.probe.findings import EXIT_CODES

    raise typer.Exit(EXIT_CODES[findings.verdict.answer])


def _conditions(
    names: list[str] | None, batch_sizes: list[int] | None, sampler: bool, served: bool
) -> tuple[Condition, ...]:
    from sortition.benchmarks.probe.conditions import BATCH_SIZES, parse, plan, served_plan
    from sortition.benchmarks.probe.sampler_target import sampler_plan

    if names:
        try:
            return tuple(parse(name) for name in names)
        except ValueError as problem:
            raise InputError(f"--condition: {problem}") from None
    if sampler:
        return sampler_plan(batch_sizes)
    return (served_plan if served else plan)(batch_sizes or BATCH_SIZES)


def _model(
    folder: Path | None, dtype: str, attention: str, prompts: Path | None
) -> tuple[Target, list[Prompt]]:
    """The model of a folder, with prompts as it reads them."""
    from transformers.utils import logging

    from sortition.benchmarks.probe.transformers_target import TransformersTarget
    from sortition.integrations.smollm2 import embedded_model

    logging.disable_progress_bar()
    if folder is not None and not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    try:
        target = TransformersTarget.load(folder or embedded_model(), dtype, attention)
    except (OSError, ValueError, AttributeError) as problem:
        reason = " ".join(str(problem).split())
        raise InputError(f"cannot load a model from {folder or 'the embedded package'}: {reason}") from None
    return target, target.prompts(_texts(prompts))


def _server(url: str, served_model: str | None, prompts: Path | None) -> tuple[Target, list[Prompt]]:
    """A model behind a URL, with prompts for it."""
    from sortition.benchmarks.probe.openai_target import OpenAITarget

    target = OpenAITarget(url, served_model)
    return target, target.prompts(_texts(prompts))


def _vllm(folder: Path | None, dtype: str, prompts: Path | None) -> tuple[Target, list[Prompt]]:
    """A model in vLLM, with prompts as it reads them."""
    from sortition.benchmarks.probe.vllm_target import VllmTarget
    from sortition.integrations.smollm2 import embedded_model

    try:
        target = VllmTarget(folder or embedded_model(), dtype=dtype)
    except FileNotFoundError as missing:
        raise InputError(f"{missing}; or name a model with --model") from None
    return target, target.prompts(_texts(prompts))


def _in_few_engines(conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """In an order in which vLLM is started as rarely as can be."""
    from sortition.benchmarks.probe.vllm_target import OF_ENGINES

    def engine(condition: Condition) -> list[str]:
        return [str(condition.settings.get(axis, "")) for axis in sorted(OF_ENGINES)]

    return tuple(sorted(conditions, key=engine))


def _sampler() -> tuple[Target, list[Prompt]]:
    from sortition.benchmarks.probe.sampler_target import SamplerTarget

    target = SamplerTarget.default()
    return target, target.prompts()


def _texts(file: Path | None) -> list[str]:
    if file is None:
        return list(PROMPTS)
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as problem:
        raise InputError(f"cannot read {file}: {problem.strerror}") from None
    if not lines:
        raise InputError(f"{file} has no prompts")
    return lines


def _study(
    target: Target,
    prompts: list[Prompt],
    conditions: tuple[Condition, ...],
    options: Options,
    kept: Path | None,
    quiet: bool,
) -> Findings:
    """Run it under a progress bar."""
    from sortition.benchmarks.probe.study import study

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), disable=quiet) as bar:
        task = bar.add_task("", total=None)

        def progress(title: str, done: int, whole: int) -> None:
            bar.update(task, description=title, completed=done, total=whole)

        return study(target, prompts, conditions, options, kept=kept, progress=progress)


def _write(
    findings: Findings, output: Path | None, page: Path | None, junit: Path | None, repro: Path | None
) -> None:
    from sortition.benchmarks.probe.report import junit as junit_report
    from sortition.benchmarks.probe.report import page as page_report
    from sortition.benchmarks.probe.report import repro as repro_report

    made = (
        (output, findings.to_json),
        (page, lambda: page_report.html(findings)),
        (junit, lambda: junit_report.xml(findings)),
        (repro, lambda: repro_report.script(findings) or NOTHING_TO_REPEAT),
    )
    for path, make in made:
        if path is not None:
            try:
                path.write_text(make(), encoding="utf-8")
            except OSError as problem:
                raise InputError(f"cannot write {path}: {problem.strerror}") from None
