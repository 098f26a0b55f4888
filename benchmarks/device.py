"""What kernels cost on a GPU, beside a read of the logits and the peers; and that they draw as the CPU does.

    python -m sortition.benchmarks.device --output device.json

Takes a few minutes, and begins nothing after `BUDGET`. Peers that are not installed say so in the report. It
ends with an error if anything is drawn differently, or masked, or waited for.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import torch
import triton
from rich.console import Console
from rich.table import Table as Grid

from sortition.benchmarks.device_draws import prepared, some_logits
from sortition.benchmarks.device_equality import (
    drafts_are_judged_the_same,
    equality,
    grammars_mask_the_same,
    graph_draws_the_same,
    sampler_waits_for_nothing,
)
from sortition.benchmarks.device_peers import PEERS
from sortition.benchmarks.device_timing import DEVICE, Clock, bandwidth, host, kernels, no_waiting, timed
from sortition.benchmarks.engine_step import EngineStep, vocabulary
from sortition.benchmarks.footprint import KERNELS
from sortition.benchmarks.sampler_peers import Setting
from sortition.benchmarks.samplers import SETTINGS, VOCABULARY
from sortition.benchmarks.timing import machine
from sortition.integrations.vllm_compile import Compiler, Figures
from sortition.sampling import cpu
from sortition.sampling.parameters import Parameters

ROWS: Final = (1, 8, 32, 64, 128, 256, 512)
DTYPES: Final = (torch.bfloat16, torch.float32)
GREEDY: Final = Setting("greedy", temperature=0.0)

BUDGET: Final = 400.0
"""Seconds after which no further point is begun; one may take half a minute where a peer compiles for it."""

COMPARED: Final = ((90_000, 8_192, torch.bfloat16), (10_000, VOCABULARY, torch.float32))
"""Rows, vocabulary and type of the logits that are also drawn from on the CPU."""


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


def parameters_of(setting: Setting) -> Parameters:
    """A setting as parameters."""
    return Parameters(
        temperature=setting.temperature, top_k=setting.top_k, top_p=setting.top_p, min_p=setting.min_p
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
