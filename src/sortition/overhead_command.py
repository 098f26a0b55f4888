"""`sortition overhead`: what sampling and structured output cost a step, and how fast it could be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from sortition.given import check_choices, check_writable, refuse_idle, write_report
from sortition.integrations.errors import InputError
from sortition.server_diagnosis import diagnosed
from sortition.usage import (
    INTERRUPTED,
    UNUSABLE,
    errors_in_one_line,
    notes,
    quiet_transformers,
)

if TYPE_CHECKING:
    from sortition.benchmarks.overhead.breakdown import Clock
    from sortition.benchmarks.overhead.engine import Engine
    from sortition.benchmarks.overhead.load import Load
    from sortition.benchmarks.overhead.predict.hardware import Hardware

ENGINES: Final = ("hf", "vllm")
DTYPES: Final = ("float32", "bfloat16", "float16")
CLOCKS: Final = ("cpu", "wall")
OF_MODELS: Final = (
    *("model", "engine", "batch", "late", "dtype", "threads", "clock", "predict", "random_weights"),
)
OF_SERVERS: Final = ("served_model", "prompts", "requests", "concurrency", "extra")
OF_PREDICTIONS: Final = ("what_if_dtype", "hardware", "price")
OF_MEASUREMENTS: Final = ("structure", "rounds", "clock", "late")


def overhead(
    command: typer.Context,
    model: Annotated[
        Path | None,
        typer.Option(help="Model folder, or a name in the Hub's cache. By default the embedded SmolLM2."),
    ] = None,
    engine: Annotated[str, typer.Option(help="What runs the model: hf or vllm.")] = "hf",
    schema: Annotated[
        Path | None, typer.Option(help="JSON Schema for structured output. By default a small one.")
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="Rows of a batch; may be repeated. By default 1.")
    ] = None,
    sampling: Annotated[
        list[str] | None,
        typer.Option(
            help="greedy, temperature, 'top-k, top-p', top-p, 'min-p, penalty' or log-probs; may be repeated."
        ),
    ] = None,
    structure: Annotated[
        list[str] | None,
        typer.Option(
            help="none, ours, or, with vllm, xgrammar, guidance or outlines; with --base-url none, ours or "
            "server, for what it has itself; may be repeated. By default none, and ours if a schema is given."
        ),
    ] = None,
    late: Annotated[
        int, typer.Option(min=0, help="Rows that come after the others have begun to write (vllm).")
    ] = 0,
    context: Annotated[
        list[int] | None, typer.Option(min=1, help="Tokens of a prompt; may be repeated. By default 32.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=4, help="Tokens after it.")] = 16,
    dtype: Annotated[
        str, typer.Option(help="Numbers of the model: auto, float32, bfloat16, float16.")
    ] = "auto",
    rounds: Annotated[
        int, typer.Option(min=0, help="Pairs of runs behind an interval; 0: only the parts' own times.")
    ] = 8,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the model on a CPU.")] = 1,
    clock: Annotated[
        str | None,
        typer.Option(
            help="cpu or wall. By default cpu with one thread on a CPU, which other programs disturb less."
        ),
    ] = None,
    predict: Annotated[
        bool,
        typer.Option(
            "--predict", help="Predict decode steps, and say how right that is on this machine (hf)."
        ),
    ] = False,
    random_weights: Annotated[
        bool,
        typer.Option("--random-weights", help="Need no weights in the folder, only a configuration (hf)."),
    ] = False,
    what_if_dtype: Annotated[
        list[str] | None,
        typer.Option(help="With --predict: numbers to predict for besides the model's; may be repeated."),
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(help="With --predict: also for a GPU by its specification, such as H100.")
    ] = None,
    price: Annotated[
        float | None, typer.Option(min=0, help="With --predict: of an hour, for the cost of tokens.")
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option(help="A running server with vLLM's figures: says what holds a load on it back."),
    ] = None,
    served_model: Annotated[
        str | None, typer.Option(help="With --base-url: the model's name there. By default the first.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="With --base-url: documents to ask with. By default numbers, --context of them."),
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="With --base-url: how many at most.")] = 32,
    concurrency: Annotated[int, typer.Option(min=1, help="With --base-url: how many at once.")] = 8,
    extra: Annotated[
        str | None,
        typer.Option(
            help="With --base-url: further fields of requests, as JSON, whose cost is measured, too."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where the JSON report goes.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No notes on the way and no tables.")] = False,
) -> None:
    """Split a step into its parts, and say which of them the step waits for.

    Loads are all combinations of batch, context, sampling and structure. With --base-url: what holds a load
    on a running server back, from outside.
    """
    quiet_transformers()
    from sortition.benchmarks.overhead.intervals import LEAST
    from sortition.benchmarks.overhead.load import Load
    from sortition.benchmarks.overhead.predict.hardware import device

    with errors_in_one_line(), _interruption_in_one_line():
        # What cannot be is said before anything has been loaded and measured.
        if output is not None:
            check_writable(output)
        refuse_idle(command, _idle(base_url is not None, predict, engine))
        if base_url is not None:
            if len(context or ()) > 1:
                raise InputError("with --base-url, all prompts have one --context")
            report = diagnosed(
                base_url,
                model=served_model,
                prompts=prompts,
                requests=requests,
                words=(context or [32])[0],
                concurrency=concurrency,
                tokens=tokens,
                extra=extra,
                samplings=sampling or ["greedy"],
                structures=structure or (["none"] if schema is None else ["ours"]),
                schema=schema,
                rounds=rounds,
                quiet=quiet,
            )
        else:
            loads = _loads(
                batch or [1], context or [32], sampling, structure, schema, Load(tokens=tokens, late=late)
            )
            check_choices("--dtype", [dtype], ("auto", *DTYPES))
            check_choices("--what-if-dtype", what_if_dtype or [], DTYPES)
            if 0 < rounds < LEAST:
                raise InputError(f"--rounds is 0, or {LEAST} or more, not {rounds}")
            if predict and engine != "hf":
                raise InputError("--predict is for --engine hf")
            if predict and len(sampling or ()) > 1:
                raise InputError("--predict is for one way of --sampling")
            gpu = None if hardware is None else device(hardware)
            running = _engine(engine, model, dtype, threads, loads, random_weights)
            if predict:
                report = _predicted(running, loads, what_if_dtype or [], gpu, price, quiet)
            else:
                report = _measured(running, loads, _clock(clock, running, threads), rounds, quiet)
        if output is not None:
            write_report(output, json.dumps(report, indent=2) + "\n")
    if report.get("interrupted"):
        raise typer.Exit(INTERRUPTED)
    tried = report.get("loads", [])
    if tried and all("error" in each for each in tried):
        raise typer.Exit(UNUSABLE)


def _idle(server: bool, predict: bool, engine: str) -> dict[str, str]:
    """The options that do nothing here, and where each does something."""
    nothing: dict[str, str] = {}
    if server:
        nothing |= dict.fromkeys(OF_MODELS, "for a model that runs here, not for --base-url")
    else:
        nothing |= dict.fromkeys(OF_SERVERS, "for --base-url")
        if engine == "vllm":
            nothing["random_weights"] = "for --engine hf"
        else:
            nothing["late"] = "for --engine vllm"
    if server or not predict:
        nothing |= dict.fromkeys(OF_PREDICTIONS, "for --predict")
    else:
        nothing |= dict.fromkeys(OF_MEASUREMENTS, "not for --predict")
    return nothing


@contextmanager
def _interruption_in_one_line() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("interrupted before anything was measured", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _measured(engine: Engine, loads: list[Load], clock: Clock, rounds: int, quiet: bool) -> dict[str, Any]:
    from sortition.benchmarks.overhead.device_clock import DeviceClock
    from sortition.benchmarks.overhead.measure import measure
    from sortition.benchmarks.overhead.tables import show

    report = measure(
        engine,
        loads,
        clock=clock,
        rounds=rounds,
        device=DeviceClock() if engine.describe()["device"].startswith("cuda") else None,
        progress=notes(quiet),
    )
    if not quiet:
        show(report, Console())
    return report


def _predicted(
    engine: Engine,
    loads: list[Load],
    dtypes: list[str],
    hardware: Hardware | None,
    price: float | None,
    quiet: bool,
) -> dict[str, Any]:
    from sortition.benchmarks.overhead.hf import TransformersEngine
    from sortition.benchmarks.overhead.predict.prediction import Point
    from sortition.benchmarks.overhead.predict.report import predict, show

    if not isinstance(engine, TransformersEngine):
        raise InputError("--predict is for --engine hf")
    report = predict(
        engine,
        list(dict.fromkeys(Point(load.batch, load.context) for load in loads)),
        replace(loads[0], structure="none"),
        dtypes=dtypes,
        hardware=hardware,
        price=price,
        progress=notes(quiet),
    )
    if not quiet:
        show(report, Console())
    return report


def _loads(
    batches: list[int],
    contexts: list[int],
    samplings: list[str] | None,
    structures: list[str] | None,
    schema: Path | None,
    load: Load,
) -> list[Load]:
    from sortition.benchmarks.overhead.load import SAMPLINGS, STRUCTURES
    from sortition.integrations.schemas import read_schema

    samplings = samplings or ["greedy"]
    structures = structures or (["none"] if schema is None else ["none", "ours"])
    check_choices("--sampling", samplings, SAMPLINGS)
    check_choices("--structure", structures, STRUCTURES)
    if schema is not None:
        load = replace(load, schema=read_schema(schema))
    return [
        replace(load, batch=batch, context=context, sampling=SAMPLINGS[sampling], structure=structure)
        for batch in batches
        for context in contexts
        for sampling in samplings
        for structure in structures
    ]


def _engine(
    name: str, model: Path | None, dtype: str, threads: int, loads: list[Load], random: bool
) -> Engine:
    if name not in ENGINES:
        raise InputError(f"--engine is {' or '.join(ENGINES)}, not {name!r}")
    try:
        import torch

        from sortition.integrations.model_folder import local_folder
        from sortition.integrations.smollm2 import embedded_model

        torch.set_num_threads(threads)
        folder = embedded_model() if model is None else local_folder(model)
        if name == "vllm":
            from sortition.benchmarks.overhead.vllm import VLLMEngine

            return VLLMEngine.load(folder, dtype, loads)
        from sortition.benchmarks.overhead.hf import TransformersEngine

        return TransformersEngine.random(folder, dtype) if random else TransformersEngine.load(folder, dtype)
    except ModuleNotFoundError as missing:
        raise InputError(f"--engine {name} needs {missing.name}: pip install 'sortition[{name}]'") from None
    except FileNotFoundError as missing:
        raise InputError(f"{missing}; or name a folder with --model") from None


def _clock(given: str | None, engine: Engine, threads: int) -> Clock:
    if given not in (None, *CLOCKS):
        raise InputError(f"--clock is cpu or wall, not {given!r}")
    described: dict[str, Any] = engine.describe()
    alone = described["device"] == "cpu" and threads == 1
    return "cpu" if given == "cpu" or (given is None and alone) else "wall"
