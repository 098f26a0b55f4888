"""`sortition probe`: does the batch change the output, how often, where, why, and what mends it."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from typer.core import TyperCommand

from sortition import probe_inputs, usage
from sortition.given import check_writable, refuse_idle
from sortition.integrations.errors import InputError

if TYPE_CHECKING:
    from sortition.benchmarks.probe.findings import Findings

MINUTES: Final = 4.0
"""For a whole plan: what is under way by then, and the report, take less than a fifth."""

NOTHING_TO_REPEAT: Final = "print('the probe found nothing that a script could show again')\n"


class ProbeCommand(TyperCommand):
    """Options that are wrong end with 3, as all errors of the probe do: 2 says that it is inconclusive."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Read the options."""
        try:
            return super().make_context(*arguments, **options)
        except Exception as problem:
            # Of click, or typer's copy of it.
            if hasattr(problem, "exit_code"):
                problem.exit_code = usage.FAULT if problem.exit_code else 0
            raise


def probe(
    command: typer.Context,
    model: Annotated[
        Path | None,
        typer.Option(help="Model folder, or a name in the Hub's cache. By default the embedded SmolLM2."),
    ] = None,
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
    steps: Annotated[
        int | None, typer.Option(min=1, help="Tokens after each prompt. By default 10, of the sampler 20.")
    ] = None,
    condition: Annotated[
        list[str] | None,
        typer.Option(help="Try only this, such as 'batch_size 8 and padding 3'; may be repeated."),
    ] = None,
    batch_size: Annotated[
        list[int] | None, typer.Option(min=2, help="Rows to try; may be repeated. By default 2, 4, 8, 16.")
    ] = None,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Also try pairs of conditions without a batch.")
    ] = False,
    dtype: Annotated[
        str, typer.Option(help="Numbers of the model: bfloat16, float16, float32.")
    ] = "bfloat16",
    attention: Annotated[str, typer.Option(help="Its implementation of attention.")] = "sdpa",
    require: Annotated[
        str, typer.Option(help="What must be the same: bitwise, tokens or answers.")
    ] = "tokens",
    answer: Annotated[
        str | None,
        typer.Option(help="What finds the answer in a text: a regular expression, or module:function."),
    ] = None,
    expected: Annotated[
        Path | None, typer.Option(help="Text file with the right answer to each prompt, on a line each.")
    ] = None,
    max_divergence: Annotated[
        float, typer.Option(min=0, max=1, help="Share of prompts that may differ; 0: none that is seen.")
    ] = 0.0,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.9999, help="Of intervals.")] = 0.95,
    causes: Annotated[bool, typer.Option("--causes/--no-causes", help="Look for causes.")] = True,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="After so many, begin nothing new and say what is missing. By default 4, "
            "without a limit where conditions are named; 0: no limit.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="JSON of all findings; ended early, it goes on.")
    ] = None,
    page: Annotated[Path | None, typer.Option(help="HTML page, on its own.")] = None,
    junit: Annotated[Path | None, typer.Option(help="JUnit XML.")] = None,
    repro: Annotated[
        Path | None, typer.Option(help="Python script that shows the smallest difference again.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar and no summary.")] = False,
) -> None:
    """Say whether the batch changes the output, how often, where, why, and what mends it.

    Exit codes: 0 within the limit, 1 beyond it, 2 inconclusive or not exercised, 3 an error, 130 interrupted.
    """
    findings: Findings | None = None
    try:
        from sortition.benchmarks.probe.deadline import INTERRUPTED, Deadline
        from sortition.benchmarks.probe.options import BLOCK, Options
        from sortition.benchmarks.probe.study import study

        for path in filter(None, (output, page, junit, repro)):
            check_writable(path)
        kind = probe_inputs.kind_of_target(sampler, base_url, engine, model)
        refuse_idle(command, probe_inputs.idle(kind, bool(condition)))
        texts = probe_inputs.texts(prompts)
        requirement, parser, right = probe_inputs.answers(require, answer, expected, len(texts))
        conditions = probe_inputs.conditions(condition, batch_size, pairs, kind)
        options = Options(
            steps=steps or probe_inputs.STEPS[kind],
            require=requirement,
            max_divergence=max_divergence,
            confidence=confidence,
            attribute=causes,
            asked=bool(condition),
            # All texts of the sampler at once: the largest batch is as large.
            block=sys.maxsize if sampler else BLOCK,
        )
        if minutes is None:
            minutes = 0 if condition or sampler else MINUTES
        deadline = Deadline(60 * minutes or None)
        kept = probe_inputs.kept_beside(output)
        with _terminated_as_interrupted(), _bar(quiet) as progress:
            progress("loading", 0, len(conditions) + 1)
            target, asked = probe_inputs.target(
                kind,
                texts,
                model=model,
                dtype=dtype,
                attention=attention,
                base_url=base_url,
                served_model=served_model,
            )
            findings = study(
                target,
                asked,
                conditions,
                options,
                kept=kept,
                progress=progress,
                parser=parser,
                answers=right,
                deadline=deadline,
            )
        if not quiet:
            from sortition.benchmarks.probe.report import terminal

            terminal.show(findings, Console())
        _write(findings, output, page, junit, repro)
        if kept is not None and not findings.stopped:
            # Not before: whoever could not write, or was interrupted here, need not measure again.
            kept.unlink(missing_ok=True)
    except (InputError, ConnectionError) as problem:
        typer.echo(f"error: {problem}", err=True)
        raise typer.Exit(usage.FAULT) from None
    except KeyboardInterrupt:
        if findings is None:
            typer.echo("interrupted before anything was found", err=True)
        else:
            typer.echo(_how_to_go_on(INTERRUPTED, output), err=True)
        raise typer.Exit(usage.INTERRUPTED) from None
    except Exception:
        traceback.print_exc()
        raise typer.Exit(usage.FAULT) from None
    if findings.stopped:
        typer.echo(_how_to_go_on(findings.stopped, output), err=True)
    if findings.stopped == INTERRUPTED:
        raise typer.Exit(usage.INTERRUPTED)
    from sortition.benchmarks.probe.findings import EXIT_CODES

    raise typer.Exit(EXIT_CODES[findings.verdict.answer])


def _how_to_go_on(stopped: str, output: Path | None) -> str:
    if output is not None:
        return f"{stopped}: the same command goes on from here"
    return f"{stopped}: with --output, the same command would go on from here"


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """While entered, whoever ends this process politely gets what was found until then."""
    try:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    except ValueError:
        # Signals are for the main thread.
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _bar(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar, and what moves it: what begins, how much is done, and how much there is."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), disable=quiet) as bar:
        task = bar.add_task("", total=None)

        def progress(title: str, done: int, whole: int) -> None:
            bar.update(task, description=title, completed=done, total=whole)

        yield progress


def _write(
    findings: Findings, output: Path | None, page: Path | None, junit: Path | None, repro: Path | None
) -> None:
    """Write what was asked for; one file that cannot be written keeps no other from being."""
    from sortition.benchmarks.probe.report import junit as junit_report
    from sortition.benchmarks.probe.report import page as page_report
    from sortition.benchmarks.probe.report import repro as repro_report

    made = (
        (output, findings.to_json),
        (page, lambda: page_report.html(findings)),
        (junit, lambda: junit_report.xml(findings)),
        (repro, lambda: repro_report.script(findings) or NOTHING_TO_REPEAT),
    )
    problems = []
    for path, make in made:
        if path is not None:
            try:
                path.write_text(make(), encoding="utf-8")
            except OSError as problem:
                problems.append(f"cannot write {path}: {problem.strerror}")
    if problems:
        raise InputError("; ".join(problems))
