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
        f"{load['generated tokens']:.0f} out" + (f", {load['feature']}" if load["feature"] else "")
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
    grid = Grid("as the client saw it, s", "p50", "p99", title_justify="left")
    for name, spread in report["client seconds"].items():
        grid.add_row(name, *(_number(spread[each]) for each in ("p50", "p99")))
    console.print(grid)
    console.print(_by_cause(report))
    if report["features"]:
        console.print(_features(report["features"]))
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


def _by_cause(report: dict[str, Any]) -> Grid:
    """What the two latencies are made of."""
    first, between = report["first token by cause"], report["between tokens by cause"]
    grid = Grid("latency by cause, s", "p50", "p99", "", title_justify="left")
    known = "" if first["of single requests"] else "mean of all (--enable-per-request-metrics for each)"
    for part, note in (
        ("whole", "to the first token"),
        ("queue", known),
        ("prefill", known),
        ("elsewhere", ""),
    ):
        title = note if part == "whole" else f"  {part}"
        cells = (_number(first[name][f"{part} s"]) for name in ("p50", "p99"))
        grid.add_row(title, *cells, "" if part == "whole" else note)
    spread = report["client seconds"]["between tokens"]
    grid.add_row("between tokens", *(_number(spread[name]) for name in ("p50", "p99")), "")
    for part, found in between.items():
        cells = (_number(found[f"{name} s"]) for name in ("p50", "p99"))
        grid.add_row(f"  {part}", *cells, f"{found['gaps']} of them")
    for each in report["features"]:
        low, high = each["between tokens"]["interval s"]
        longer = _number(each["between tokens"]["longer s"])
        grid.add_row(f"  of it {each['feature']}", longer, "", f"{low:.3f} to {high:.3f}")
    return grid


def _features(features: list[dict[str, Any]]) -> Grid:
    """Pairs of rounds, with a feature and without it."""
    grid = Grid("with and without, ms", title_justify="left")
    for title in ("with it, p50", "p99", "without, p50", "p99", "longer", "95 % interval"):
        grid.add_column(title, justify="right")
    grid.add_column("")
    for each in features:
        for figure in ("between tokens", "to the first token"):
            pair = each[figure]
            low, high = pair["interval s"]
            sides = (pair[side][point] for side in ("with s", "without s") for point in ("p50", "p99"))
            grid.add_row(
                f"{each['feature']}: {figure}",
                *("" if value is None else f"{1000 * value:.1f}" for value in sides),
                f"{1000 * pair['longer s']:.2f}",
                f"{1000 * low:.2f} to {1000 * high:.2f}",
                pair["verdict"],
            )
    return grid


def _number(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3f}"
