"""What kernels cost on a GPU, beside a read of the logits and the peers; and that they draw as the CPU does.

    python -m sortition.benchmarks.device --output device.json

Takes a few minutes, and begins nothing after `BUDGET`. Peers that are not installed say so in the report. It
ends with an error if anything is drawn differently, or masked, or waited for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import triton
from rich.console import Console
from rich.table import Table as Grid
from torch import Tensor

from sortition.benchmarks.device_peers import PEERS
from sortition.benchmarks.engine_step import EngineStep, vocabulary
from sortition.benchmarks.footprint import KERNELS
from sortition.benchmarks.sampler_peers import Setting
from sortition.benchmarks.samplers import SETTINGS, SPREAD, VOCABULARY
from sortition.benchmarks.timing import machine
from sortition.grammars.json_schema import json_schema
from sortition.grammars.table import Table
from sortition.integrations.vllm_compile import Compiler, Figures
from sortition.sampling import cpu, device
from sortition.sampling.columns import Columns
from sortition.sampling.constraint import Constraint
from sortition.sampling.device_constraint import Walk
from sortition.sampling.draw import Draw, Request
from sortition.sampling.parameters import Parameters
from sortition.sampling.rules import Constrain, FrequencyPenalty, Temperature, TopP
from sortition.sampling.sampler import Sampler
from sortition.sampling.verification import METHODS, Method
from sortition.sampling.verify import verify

DEVICE: Final = torch.device("cuda")
ROWS: Final = (1, 8, 32, 64, 128, 256, 512)
DTYPES: Final = (torch.bfloat16, torch.float32)
GREEDY: Final = Setting("greedy", temperature=0.0)

BUDGET: Final = 400.0
"""Seconds after which no further point is begun; one may take half a minute where a peer compiles for it."""

READ: Final = 1 << 28
"""Numbers of four bytes that are read to measure bandwidth: far more than caches hold."""

REPEATS: Final = 20
"""Draws in one graph, which hides what launching the graph costs."""

ROUNDS: Final = 5

LAUNCHES: Final = 50
"""Calls that are timed on the host."""

COMPARED: Final = ((90_000, 8_192, torch.bfloat16), (10_000, VOCABULARY, torch.float32))
"""Rows, vocabulary and type of the logits that are also drawn from on the CPU."""

SMALL: Final = 8_192
"""Tokens of the vocabulary of grammars that are also walked on the CPU."""

CHUNK: Final = 500
"""Rows of them that are drawn at once."""


class Clock:
    """How much of the budget is left."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def over(self) -> bool:
        return time.monotonic() > self._end


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark, print the tables and save the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    output = parser.parse_args(arguments).output
    if not torch.cuda.is_available():
        raise SystemExit("there is no GPU, and this measures one")
    report = run(Clock(BUDGET))
    show(report, Console(width=120))
    if output is not None:
        output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if faults := faults_of(report):
        raise SystemExit(f"not as it should be: {', '.join(faults)}")


def run(clock: Clock) -> dict[str, Any]:
    """Everything, as plain JSON values; equality first, as speed is nothing without it."""
    with suppress(ImportError):
        # Until they are there, the CPU draws hundreds of times slower.
        cpu.LOOPS.load()
    report: dict[str, Any] = {"machine": _machine(), "bandwidth": bandwidth()}
    report["graph"] = graph_draws_the_same()
    report["sampler"] = sampler_waits_for_nothing()
    report["grammars"] = grammars_mask_the_same()
    report["drafts"] = drafts_are_judged_the_same()
    report["equality"] = [equality(*part, clock) for part in COMPARED]
    compiler = Compiler(vocabulary(VOCABULARY), Figures())
    report["steps"] = [engine_step(compiler, rows) for rows in ROWS if not clock.over]
    report["points"] = []
    for dtype in DTYPES:
        for rows in ROWS:
            for setting in (GREEDY, *SETTINGS):
                if clock.over:
                    report["left out"] = f"from {rows} rows of {dtype}, {setting.name} on"
                    return report
                report["points"].append(point(setting, rows, dtype, report["bandwidth"]["read"]))
    return report


def bandwidth() -> dict[str, float]:
    """GB/s of this device: to read so many numbers, and to copy them, which reads and writes."""
    numbers = torch.ones(READ, device=DEVICE)
    into = torch.empty_like(numbers)
    read, _ = timed(numbers.amax, repeats=5)
    copied, _ = timed(lambda: into.copy_(numbers), repeats=5)
    return {"read": numbers.nbytes / read / 1e9, "copy": 2 * numbers.nbytes / copied / 1e9}


def point(setting: Setting, rows: int, dtype: torch.dtype, read: float) -> dict[str, Any]:
    """Microseconds of one draw: ours in all, kernel by kernel and on the host, and the peers'."""
    logits = some_logits(rows, VOCABULARY, dtype)
    work = prepared(logits, [parameters_of(setting)] * rows)
    seconds, captured = timed(work)
    peers: dict[str, float | str] = {}
    for name, prepare in PEERS.items():
        try:
            call = prepare(setting, rows, DEVICE)
            peers[name] = 1e6 * timed(lambda call=call: call(logits))[0]  # type: ignore[misc]
        except Exception as error:  # a peer that fails says so, and the others go on
            peers[name] = f"{type(error).__name__}: {error}"[:200]
    return {
        "rows": rows,
        "dtype": str(dtype).removeprefix("torch."),
        "setting": setting.name,
        "one read": logits.nbytes / read / 1e3,
        "ours": 1e6 * seconds,
        "in a graph": captured,
        "kernels": kernels(work),
        "host": 1e6 * host(work),
        "peers": peers,
    }


def engine_step(compiler: Compiler, rows: int) -> dict[str, Any]:
    """Microseconds of a step of vLLM's second runner: by kernels, and on the host, which never waits."""
    source = some_logits(rows, VOCABULARY, torch.float32)
    step = EngineStep(compiler, source.clone(), grammars=min(rows, 64))

    def work() -> None:
        step.logits.copy_(source)
        step.constrain_and_draw()
        step.go_on()

    # What requests bring is uploaded in the first step, and read in the second.
    work()
    work()
    with no_waiting():
        for _ in range(3):
            work()
    seconds, captured = timed(work)
    return {
        "rows": rows,
        "all": 1e6 * seconds,
        "in a graph": captured,
        "kernels": kernels(work),
        "host": 1e6 * host(step.constrain_and_draw),
        "refused": step.refused,
        "waits": False,
    }


def timed(work: Callable[[], object], repeats: int = REPEATS) -> tuple[float, bool]:
    """Median seconds of one call on the device, and whether it was in a graph, or else in turn."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    captured = True
    try:
        with torch.cuda.graph(graph):
            for _ in range(repeats):
                work()
        replay: Callable[[], object] = graph.replay
    except RuntimeError:
        captured = False
        torch.cuda.synchronize()

        def replay() -> None:
            for _ in range(repeats):
                work()

    replay()
    seconds = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        replay()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1000 / repeats)
    return statistics.median(seconds), captured


def kernels(work: Callable[[], object]) -> dict[str, float]:
    """Microseconds of each kernel, by name; nothing where the profiler cannot see them."""
    work()
    torch.cuda.synchronize()
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(REPEATS):
                work()
            torch.cuda.synchronize()
    except (AssertionError, RuntimeError):
        return {}
    return {
        event.key: event.self_device_time_total / REPEATS
        for event in profile.key_averages()
        if event.self_device_time_total > 0
    }


def host(work: Callable[[], object]) -> float:
    """Median seconds that a call takes the host, which does not wait for the device."""
    seconds = []
    for _ in range(LAUNCHES):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    torch.cuda.synchronize()
    return statistics.median(seconds)


def equality(rows: int, width: int, dtype: torch.dtype, clock: Clock) -> dict[str, Any]:
    """How many rows the device and the CPU draw, and how many of them differently."""
    drawn, different, examples = 0, 0, []
    for first in range(0, rows, CHUNK):
        if clock.over:
            break
        logits = some_logits(CHUNK, width, dtype, seed=first)
        request = mixed(CHUNK, width, first)
        work = device.draw_rows(logits, request)
        differs = different_rows(work.to(torch.device("cpu")), cpu.draw_rows(logits.cpu(), request))
        drawn, different = drawn + CHUNK, different + int(differs.sum())
        examples += [str(request.columns.parameters[row]) for row in np.flatnonzero(differs)[:2]]
    return {"rows": drawn, "of": rows, "width": width, "different": different, "examples": examples[:5]}


def different_rows(ours: Draw, theirs: Draw) -> np.ndarray[Any, Any]:
    """bool [rows]: whose token, count, flags or bits of the logarithm differ."""
    differs = np.zeros(len(ours.tokens), np.bool_)
    for mine, expected in zip(
        (ours.tokens, ours.kept, ours.flags, ours.logprobs),
        (theirs.tokens, theirs.kept, theirs.flags, theirs.logprobs),
        strict=True,
    ):
        kind = torch.int32 if mine.dtype == torch.float32 else mine.dtype
        differs |= (mine.view(kind) != expected.view(kind)).numpy()
    return differs


def graph_draws_the_same(rows: int = 64) -> dict[str, Any]:
    """That a captured draw is the eager one, for new logits, and that launching it waits for nothing."""
    logits = some_logits(rows, VOCABULARY, torch.bfloat16)
    request = mixed(rows, VOCABULARY, 1)
    work = prepared(logits, request.columns.parameters, request)
    with no_waiting():
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = work()
    logits.copy_(some_logits(rows, VOCABULARY, torch.bfloat16, seed=5))
    graph.replay()
    differs = different_rows(captured.to(torch.device("cpu")), work().to(torch.device("cpu")))
    return {"rows": rows, "different": int(differs.sum()), "waits": False}


def sampler_waits_for_nothing(rows: int = 32, steps: int = 20) -> dict[str, Any]:
    """That a sampler with a grammar generates what it does on the CPU, and that the host never waits."""
    parts = (Constrain(some_table()), Temperature(0.8), TopP(0.95), FrequencyPenalty(0.2))
    sampler = Sampler(*parts, backend="triton")
    logits = [some_logits(rows, SMALL, torch.bfloat16, seed=step) for step in range(steps)]
    state = sampler.start(rows, seed=1, device=DEVICE)
    # Kernels are compiled, and parameters uploaded, by the first draw.
    state = sampler.advance(state, sampler(logits[0], state).tokens)
    state = sampler.start(rows, seed=1, device=DEVICE)
    drawn = []
    with no_waiting():
        for each in logits:
            drawn.append(sampler(each, state).tokens)
            state = sampler.advance(state, drawn[-1])
    host, expected = sampler.start(rows, seed=1), []
    on_host = Sampler(*parts, backend="cpu")
    for each in logits:
        expected.append(on_host(each.cpu(), host).tokens)
        host = on_host.advance(host, expected[-1])
    differs = torch.stack(drawn).cpu() != torch.stack(expected)
    return {"rows": rows * steps, "different": int(differs.sum()), "waits": False}


def grammars_mask_the_same(rows: int = 256, steps: int = 60) -> dict[str, Any]:
    """That kernels walk grammars as tensors do on the CPU, counts included, and mask the same tokens."""
    constraint = Constraint([some_table()], device=DEVICE)
    walk, judge = Walk(constraint, SMALL), Constraint([some_table()])
    chance = np.random.default_rng(0)
    numbers = torch.zeros(rows, dtype=torch.int64)
    ours, theirs = constraint.start(numbers.to(DEVICE)), judge.start(numbers)
    different = 0
    for _ in range(steps):
        found = walk.mask(walk.step(ours)).cpu().numpy().view(np.uint8)
        allowed = judge.allowed(theirs).numpy()
        bits = np.unpackbits(found, axis=1, bitorder="little")[:, :SMALL].astype(np.bool_)
        different += int((bits != allowed).any(1).sum())
        # Any token that is allowed, with the shortest ends last, so that texts grow to their bounds.
        keys = chance.random(allowed.shape) * allowed
        keys[:, ord('"')] /= 8
        tokens = torch.from_numpy(keys.argmax(1))
        ours, theirs = walk.step(ours, tokens.to(DEVICE)).position, judge.step(theirs, tokens)
    return {"rows": rows * steps, "different": different}


def drafts_are_judged_the_same(rows: int = 96) -> dict[str, Any]:
    """That drafts stand as they do on the CPU, by every method, in chains and trees; and nobody waits."""
    parts = (Temperature(0.8), TopP(0.95), FrequencyPenalty(0.2))
    ours, theirs = Sampler(*parts, backend="triton"), Sampler(*parts, backend="cpu")
    here, there = ours.start(rows, seed=1, device=DEVICE), theirs.start(rows, seed=1)
    # Of the models' logits for four drafts and the token after them, the drafter's are nearly the target's.
    target = some_logits(5 * rows, SMALL, torch.bfloat16).view(rows, 5, SMALL)
    laws = target[:, :4] + 0.3 * some_logits(4 * rows, SMALL, torch.bfloat16, seed=1).view(rows, 4, SMALL)
    tokens = laws.argmax(2)
    methods: list[Method] = [METHODS[row % len(METHODS)] for row in range(rows)]
    different = 0
    for parents in (None, torch.tensor([-1, -1, 0, 1], device=DEVICE).repeat(rows, 1)):
        if parents is not None:
            methods = ["token" if each == "block" else each for each in methods]
        # Kernels are compiled by the first call.
        verify(tokens, laws, target, ours, here, method=methods, parents=parents)
        with no_waiting():
            found = verify(tokens, laws, target, ours, here, method=methods, parents=parents)
        tree = None if parents is None else parents.cpu()
        on_host = tokens.cpu(), laws.cpu(), target.cpu()
        expected = verify(*on_host, theirs, there, method=methods, parents=tree)
        for name in ("tokens", "path", "flags", "logprobs"):
            mine, other = getattr(found, name).cpu(), getattr(expected, name)
            different += int((mine != other).any(1).sum() if mine.dim() > 1 else (mine != other).sum())
    return {"rows": 2 * rows, "different": different, "waits": False}


def some_table() -> Table:
    """Of strings of any length and of one that is counted."""
    properties = {"a": {"type": "string", "minLength": 33, "maxLength": 40}, "b": {"type": "string"}}
    return json_schema({"type": "object", "properties": properties, "required": ["a"]}).compile(
        vocabulary(SMALL)
    )


def faults_of(report: Mapping[str, Any]) -> list[str]:
    """What is not as it should be, none where all is well."""
    parts = {f"{part['width']:,} tokens": part for part in report["equality"]}
    parts |= {name: report[name] for name in ("graph", "sampler", "grammars", "drafts")}
    faults = [
        f"{part['different']} rows of {name} differ" for name, part in parts.items() if part["different"]
    ]
    faults += [
        f"a step of {step['rows']} rows was refused tokens" for step in report["steps"] if step["refused"]
    ]
    for name in ("steps", "points"):
        if not all(each["in a graph"] for each in report[name]):
            faults.append(f"{name} that cannot be captured in a graph")
    return faults


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever waits for the device fails."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def some_logits(rows: int, width: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Random ones; rows get sharper from the first to the last."""
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    scale = torch.linspace(0.6 * SPREAD, 1.4 * SPREAD, rows, device=DEVICE)[:, None]
    return (torch.randn(rows, width, device=DEVICE, generator=generator) * scale).to(dtype)


def parameters_of(setting: Setting) -> Parameters:
    """A setting as parameters."""
    return Parameters(
        temperature=setting.temperature, top_k=setting.top_k, top_p=setting.top_p, min_p=setting.min_p
    )


def prepared(
    logits: Tensor, parameters: Sequence[Parameters], request: Request | None = None
) -> Callable[[], Draw]:
    """A draw with everything on the device, as an engine would have it."""
    request = request or bare(parameters)
    settings = device.Settings.of(request.columns, logits.shape[1], logits.device)
    inputs = device.Inputs.of(request, logits.device)
    rows, width = logits.shape
    room = device.Workspace(rows, width, device.needed(settings, inputs, width), logits.device)
    return lambda: device.launch(logits, settings, inputs, room)


def bare(parameters: Sequence[Parameters]) -> Request:
    """A request of rows that have generated nothing."""
    rows = len(parameters)
    nothing = np.zeros((rows, 0), np.int64)
    return Request(
        columns=Columns.of(parameters),
        seeds=np.arange(rows),
        positions=np.zeros(rows, np.int64),
        prompt=nothing,
        output=nothing,
        end_tokens=np.full((rows, 1), 2),
    )


KINDS: Final[tuple[Mapping[str, Any], ...]] = (
    {},
    {"temperature": 0.0},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    {"top_p": 0.95},
    {"top_p": 0.999, "temperature": 1.5},
    {"min_p": 0.05, "temperature": 1.2},
    {"top_k": 300, "ties": "keep", "order": "hf", "eta": 1e-4},
    {"top_k": 1000, "top_p": 0.9, "order": "sglang"},
    {"top_k": 40, "top_p": 0.9, "temperature": 0.7, "order": "llama.cpp"},
    {"typical": 0.9, "temperature": 0.8},
    {"typical": 0.5, "top_p": 0.9, "temperature": 1.3, "order": "llama.cpp"},
    {"top_k": 100, "min_p": 0.02, "temperature": 1.5, "order": ("top_k", "temperature", "min_p")},
    {"epsilon": 3e-4, "min_keep": 40},
    {"top_n_sigma": 1.5, "temperature": 3.0},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "logit_bias": {7: 2.0}, "top_p": 0.7},
    {"bad_words": ((3,), (1, 2)), "min_tokens": 2**31, "presence_penalty": 0.5},
)
"""What rows ask for whose draws are compared."""


def mixed(rows: int, width: int, seed: int) -> Request:
    """Rows of every kind, with some history and a grammar."""
    random = np.random.default_rng(seed)
    request = bare([Parameters(**KINDS[row % len(KINDS)]) for row in range(rows)])
    return replace(
        request,
        seeds=random.integers(-(2**63), 2**63, rows),
        positions=random.integers(0, 2**31, rows),
        prompt=random.integers(-1, 200, (rows, 60)),
        output=random.integers(-1, 200, (rows, 60)),
        grammar=random.random((rows, width)) < 0.9 if seed % 1000 else None,
    )


def _machine() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(DEVICE)
    return {
        **machine(),
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "gpu memory": properties.total_memory,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def show(report: dict[str, Any], console: Console) -> None:
    """The report as a table of microseconds, and how many reads of the logits ours is."""
    for part in report["equality"]:
        rows = f"{part['rows']:,} of {part['of']:,} rows of {part['width']:,} tokens"
        console.print(f"{rows}: {part['different']} unlike the CPU's")
    said = {
        "graph": "in a graph",
        "sampler": "a sampler, with nobody waiting",
        "grammars": "masks",
        "drafts": "drafts",
    }
    for name, what in said.items():
        console.print(f"{what}: {report[name]['different']} of {report[name]['rows']} rows differ")
    show_steps(report, console)
    grid = Grid(title=f"one draw of {VOCABULARY:,} logits, microseconds ({report['machine']['gpu']})")
    for title in ("dtype", "rows", "setting", "one read", "ours", "reads", "host", *PEERS):
        grid.add_column(title, justify="left" if title in ("dtype", "setting") else "right")
    for each in report["points"]:
        peers = (each["peers"][name] for name in PEERS)
        grid.add_row(
            *(each["dtype"], str(each["rows"]), each["setting"]),
            *(f"{each[name]:.1f}" for name in ("one read", "ours")),
            *(f"{each['ours'] / each['one read']:.1f}", f"{each['host']:.0f}"),
            *("-" if isinstance(value, str) else f"{value:.1f}" for value in peers),
        )
    console.print(grid)
    if "left out" in report:
        console.print(f"left out for want of time: {report['left out']}")


def show_steps(report: dict[str, Any], console: Console) -> None:
    """Microseconds of a step of vLLM's second runner, by kernels."""
    names = [*dict.fromkeys(name for step in report["steps"] for name in step["kernels"] if name in KERNELS)]
    grid = Grid(title=f"one step of {VOCABULARY:,} logits with grammars and draws, microseconds")
    for title in ("rows", *names, "ours", "host"):
        grid.add_column(title, justify="right")
    for step in report["steps"]:
        spent = [step["kernels"].get(name, 0.0) for name in names]
        grid.add_row(str(step["rows"]), *(f"{each:.1f}" for each in (*spent, sum(spent), step["host"])))
    console.print(grid)


if __name__ == "__main__":
    main()
