"""The report for people: the verdict first."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table as Grid


def show(report: dict[str, Any], console: Console) -> None:
    """A report of `diagnose`."""
    verdict, load = report["verdict"], report["load"]
    console.print(f"[bold]{verdict['cause']}[/bold]: {verdict['why']}", highlight=False)
    console.print(f"try first: {verdict['setting']}\n", highlight=False, markup=False)
    console.print(
        f"{report['model']} at {report['server']}: {load['requests']} requests, "
        f"{load['concurrency']} at once, {load['prompt tokens']:.0f} tokens in, "
        f"{load['generated tokens']:.0f} out"
    )
    seconds = report["seconds of a request"]
    grid = Grid("a request's time", "seconds", "share", "p50", "p99", title_justify="left")
    for part in ("queue", "prefill", "decode", "elsewhere"):
        spread = report["server seconds"].get(part, {})
        grid.add_row(
            part,
            f"{seconds[part]:.3f}",
            f"{seconds[part] / seconds['whole']:.0%}",
            *(_number(spread.get(each)) for each in ("p50", "p99")),
        )
    console.print(grid)
    grid = Grid("as the client saw it", "p50", "p99")
    for name, spread in report["client seconds"].items():
        grid.add_row(name, *(_number(spread[each]) for each in ("p50", "p99")))
    console.print(grid)
    seen, hits = report["gauges"], report["prefix cache hit rate"]
    console.print(
        f"running {seen['running']:.1f} (at most {seen['most_running']:.0f}), "
        f"waiting {seen['waiting']:.1f} (at most {seen['most_waiting']:.0f}), "
        f"KV cache at most {seen['cache_usage']:.0%} full, "
        f"{report['preemptions per request']:.1f} preemptions a request, "
        f"prefix cache hits {'none asked for' if hits is None else f'{hits:.0%}'}"
    )
    if report["requests of others"]:
        console.print(
            f"{report['requests of others']:.0f} requests of others ended meanwhile: the server's figures "
            "are not of this load alone"
        )


def _number(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3f}"
