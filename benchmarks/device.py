"""What a draw costs on a GPU, beside a read of the logits and the peers; and that it is the CPU's to the bit.

    python -m sortition.benchmarks.device --output device.json

Takes a few minutes, and begins nothing after `BUDGET`. Peers that are not installed say so in the report.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import triton
from rich.console import Console
from rich.table import Table as Grid
from torch import Tensor

from sortition.benchmarks import footprint
from sortition.benchmarks.sampler_peers import Setting, TorchSort
from sortition.benchmarks.samplers import SETTINGS, SPREAD, VOCABULARY
from sortition.benchmarks.timing import machine
from sortition.grammars.json_schema import json_schema
from sortition.sampling import cpu, device
from sortition.sampling.columns import Columns
from sortition.sampling.draw import Draw, Request
from sortition.sampling.parameters import Parameters
from sortition.sampling.rules import Constrain, FrequencyPenalty, Temperature, TopP
from sortition.sampling.sampler import Sampler

ROWS: Final = (1, 8, 32, 64, 128, 256, 512)
DTYPES: Final = (torch.bfloat16, torch.float32)
GREEDY: Final = Setting("greedy", temperature=0.0)

BUDGET: Final = 420.0
"""Seconds after which no further point is begun."""

REPEATS: Final = 20
"""Draws in one graph, which hides what launching the graph costs."""

ROUNDS: Final = 5

COMPARED: Final = ((90_000, 8_192, torch.bfloat16), (10_000, VOCABULARY, torch.float32))
"""Rows, vocabulary and type of the logits that are also drawn from on the CPU."""

Call = Callable[[Tensor], Tensor]


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


def run(clock: Clock) -> dict[str, Any]:
    """Everything, as plain JSON values; equality first, as speed is nothing without it."""
    report: dict[str, Any] = {"machine": _machine(), "bandwidth": bandwidth()}
    report["equality"] = [equality(*part, clock) for part in COMPARED]
    report["graph"] = graph_draws_the_same()
    report["sampler"] = sampler_waits_for_nothing()
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
    """GB/s of this device: to read 1 GiB, and to copy it, which reads and writes."""
    numbers = torch.ones(1 << 28, device="cuda")
    into = torch.empty_like(numbers)
    read = timed(numbers.amax, repeats=5)
    copied = timed(lambda: into.copy_(numbers), repeats=5)
    return {"read": numbers.nbytes / read / 1e9, "copy": 2 * numbers.nbytes / copied / 1e9}


def point(setting: Setting, rows: int, dtype: torch.dtype, read: float) -> dict[str, Any]:
    """Microseconds of one draw: ours in all, kernel by kernel and on the host, and the peers'."""
    logits = some_logits(rows, VOCABULARY, dtype)
    work = prepared(logits, [parameters_of(setting)] * rows)
    peers: dict[str, float | str] = {}
    for name, prepare in PEERS.items():
        try:
            call = prepare(setting, rows)
            peers[name] = 1e6 * timed(lambda call=call: call(logits))  # type: ignore[misc]
        except Exception as error:  # a peer that fails says so, and the others go on
            peers[name] = f"{type(error).__name__}: {error}"[:200]
    return {
        "rows": rows,
        "dtype": str(dtype).removeprefix("torch."),
        "setting": setting.name,
        "one read": logits.nbytes / read / 1e3,
        "ours": 1e6 * timed(work),
        "kernels": kernels(work),
        "host": 1e6 * host(work),
        "peers": peers,
    }


def timed(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median seconds of one call on the device: in a graph, or in turn where it cannot be captured."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for _ in range(repeats):
                work()
        replay: Callable[[], object] = graph.replay
    except RuntimeError:
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
    return statistics.median(seconds)


def kernels(work: Callable[[], object]) -> dict[str, float]:
    """Microseconds of each kernel, by name; nothing where the profiler cannot see them."""
    work()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(REPEATS):
            work()
        torch.cuda.synchronize()
    return {
        event.key: event.self_device_time_total / REPEATS
        for event in profile.key_averages()
        if event.self_device_time_total > 0
    }


def host(work: Callable[[], object]) -> float:
    """Median seconds that a call takes the host, which does not wait for the device."""
    seconds = []
    for _ in range(50):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    torch.cuda.synchronize()
    return statistics.median(seconds)


def equality(rows: int, width: int, dtype: torch.dtype, clock: Clock) -> dict[str, Any]:
    """How many rows the device and the CPU draw, and how many of them differently."""
    drawn, different, examples = 0, 0, []
    for first in range(0, rows, 500):
        if clock.over:
            break
        logits = some_logits(500, width, dtype, seed=first)
        request = mixed(500, width, first)
        work = device.draw_rows(logits, request)
        differs = different_rows(work.to(torch.device("cpu")), cpu.draw_rows(logits.cpu(), request))
        drawn, different = drawn + 500, different + int(differs.sum())
        examples += [str(request.columns.parameters[row]) for row in np.flatnonzero(differs)[:2]]
    return {"rows": drawn, "width": width, "different": different, "examples": examples[:5]}


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


def graph_draws_the_same() -> dict[str, Any]:
    """That a captured draw is the eager one, for new logits, and that launching it waits for nothing."""
    logits = some_logits(64, VOCABULARY, torch.bfloat16)
    request = mixed(64, VOCABULARY, 1)
    work = prepared(logits, request.columns.parameters, request)
    with no_waiting():
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = work()
    logits.copy_(some_logits(64, VOCABULARY, torch.bfloat16, seed=5))
    graph.replay()
    differs = different_rows(captured.to(torch.device("cpu")), work().to(torch.device("cpu")))
    return {"rows": 64, "different": int(differs.sum()), "waits": False}


def sampler_waits_for_nothing(rows: int = 32, steps: int = 20) -> dict[str, Any]:
    """That a sampler with a grammar generates what it does on the CPU, and that the host never waits."""
    vocabulary = footprint.vocabulary(8_192)
    table = json_schema({"type": "object", "properties": {"a": {"type": "string"}}}).compile(vocabulary)
    parts = (Constrain(table), Temperature(0.8), TopP(0.95), FrequencyPenalty(0.2))
    sampler = Sampler(*parts)
    logits = [some_logits(rows, vocabulary.size, torch.bfloat16, seed=step) for step in range(steps)]
    state = sampler.start(rows, seed=1, device="cuda")
    # Kernels are compiled, and parameters uploaded, by the first draw.
    state = sampler.advance(state, sampler(logits[0], state).tokens)
    state = sampler.start(rows, seed=1, device="cuda")
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
    generator = torch.Generator(device="cuda").manual_seed(seed)
    scale = torch.linspace(0.6 * SPREAD, 1.4 * SPREAD, rows, device="cuda")[:, None]
    return (torch.randn(rows, width, device="cuda", generator=generator) * scale).to(dtype)


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


def _vllm(setting: Setting, rows: int) -> Call:
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    sampler = TopKTopPSampler()
    k = torch.full((rows,), setting.top_k, device="cuda", dtype=torch.int32) if setting.top_k else None
    p = torch.full((rows,), setting.top_p, device="cuda") if setting.top_p < 1 else None

    def call(logits: Tensor) -> Tensor:
        # It takes float32, and changes it in place.
        logits = logits.to(torch.float32, copy=True)
        if setting.temperature == 0:
            return logits.argmax(-1)
        logits.div_(setting.temperature)
        if setting.min_p:
            probs = logits.softmax(-1)
            logits.masked_fill_(probs < setting.min_p * probs.amax(-1, keepdim=True), -float("inf"))
        tokens: Tensor = sampler(logits, {}, k, p)[0]
        return tokens

    return call


def _flashinfer(setting: Setting, rows: int) -> Call:
    from flashinfer import sampling  # type: ignore[import-not-found]

    def call(logits: Tensor) -> Tensor:
        logits = logits.float()
        if setting.temperature == 0:
            return logits.argmax(-1)
        logits = logits / setting.temperature
        if setting.top_k:
            top_p = setting.top_p
            tokens: Tensor = sampling.top_k_top_p_sampling_from_logits(logits, setting.top_k, top_p)
        elif setting.min_p:
            tokens = sampling.min_p_sampling_from_probs(logits.softmax(-1), setting.min_p)
        elif setting.top_p < 1:
            tokens = sampling.top_p_sampling_from_probs(logits.softmax(-1), setting.top_p)
        else:
            tokens = sampling.sampling_from_logits(logits)
        return tokens

    return call


def _torch(setting: Setting, rows: int) -> Call:
    if setting.temperature == 0:
        return lambda logits: logits.argmax(-1)
    call = TorchSort().prepare(setting, rows)
    if call is None:
        raise ValueError(f"torch has no {setting.name}")
    return lambda logits: call(logits.float())


PEERS: Final[Mapping[str, Callable[[Setting, int], Call]]] = {
    "torch": _torch,
    "vllm": _vllm,
    "flashinfer": _flashinfer,
}


def _machine() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
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
        console.print(f"{part['rows']:,} rows of {part['width']:,}: {part['different']} unlike the CPU's")
    for name, what in (("graph", "in a graph"), ("sampler", "a sampler, with nobody waiting")):
        console.print(f"{what}: {report[name]['different']} of {report[name]['rows']} rows differ")
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


if __name__ == "__main__":
    main()
