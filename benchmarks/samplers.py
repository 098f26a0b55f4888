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

from sortition.benchmarks.plots import save
from sortition.benchmarks.sampler_peers import Peer, Setting, installed
from sortition.benchmarks.timing import interleaved, machine

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
    """Milliseconds per row of every peer at every point, as plain JSON values."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    points = [
        _point(peers, setting, torch.randn(count, vocabulary, generator=generator) * SPREAD, rounds)
        for count in rows
        for setting in track(settings, f"{count} rows")
    ]
    ours = peers[0].name
    return {
        "machine": machine(),
        "vocabulary": vocabulary,
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
    times = {name: round(1000 * each / len(logits), 4) for name, each in seconds.items()}
    return {"rows": len(logits), "setting": setting.name, "ms per row": times}


def show(report: dict[str, Any], console: Console) -> None:
    """The report as one table: our time, and how many times as long each peer takes."""
    names = list(report["points"][0]["ms per row"])
    ours = names[0]
    grid = Grid(
        title=f"one draw of {report['vocabulary']:,} logits, one thread ({report['machine']['processor']})"
    )
    for title in ("rows", "setting", f"{ours}, ms a row", *(f"{name}, times" for name in names[1:])):
        grid.add_column(title, justify="left" if title == "setting" else "right")
    for point in report["points"]:
        times = point["ms per row"]
        ratios = (f"{times[name] / times[ours]:.1f}" for name in names[1:])
        grid.add_row(str(point["rows"]), point["setting"], f"{times[ours]:.3f}", *ratios)
    console.print(grid)
    for point in report["faster than ours"]:
        console.print(f"faster than ours: {point['peer']} at {point['rows']} rows, {point['setting']}")


def main(
    *,
    rows: Sequence[int] = ROWS,
    vocabulary: int = VOCABULARY,
    rounds: int = 5,
    output: Path | None = None,
    plots: Path | None = None,
) -> None:
    """Run the benchmark, print the table, save the report, and draw it into the folder `plots`."""
    report = run(installed(), rows=rows, vocabulary=vocabulary, rounds=rounds)
    show(report, Console())
    if output is not None:
        output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if plots is not None:
        save(report, plots)
