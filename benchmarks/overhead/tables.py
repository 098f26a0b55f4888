"""Reports as tables for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from sortition.benchmarks.overhead.parts import is_decision, is_structure


def show(report: dict[str, Any], console: Console) -> None:
    """A report of `measure`."""
    engine = report["engine"]
    console.print(f"{engine['model']} in {engine['engine']}, {engine['dtype']} on {engine['device']}")
    console.print(", ".join(f"{name} {value}" for name, value in report["machine"].items()))
    versions = {name: engine[name] for name in ("torch", "transformers", "vllm", "threads") if name in engine}
    console.print(", ".join(f"{name} {value}" for name, value in versions.items()))
    clock = "of the processor, in the engine's thread" if report["clock"] == "cpu" else "on the wall"
    console.print(f"milliseconds {clock}")
    for load in report["loads"]:
        title = f"batch {load['batch']}, context {load['context']}, {load['sampling']}"
        console.print(f"\n[bold]{title}, structure: {load['structure']}[/bold]")
        if "error" in load:
            console.print(load["error"], style="red")
            continue
        if load["exposed"]:
            console.print(exposed_grid(load["exposed"]))
        console.print(steps_grid(load["steps"]))
    if len(report["loads"]) > 2:
        console.print(matrix_grid(report["loads"]))
    if "instrument" in report:
        cost = report["instrument"]
        low, high = cost["interval ms"]
        console.print(
            f"\ntiming the parts costs {cost['exposed ms']:.3f} ms a step ({low:.3f} to {high:.3f}), "
            f"{cost['share of step']:.1%} of it"
        )


def matrix_grid(loads: list[dict[str, Any]]) -> Grid:
    """A line for each load: a decode step, and what of it goes into structure and into the draw."""
    grid = Grid(title="\ndecode steps; shares are upper bounds", title_justify="left")
    for title in (
        "batch",
        "context",
        "sampling",
        "structure",
        "step, ms",
        "structure, ms",
        "",
        "draw, ms",
        "",
    ):
        grid.add_column(title, justify="left" if title in ("sampling", "structure") else "right")
    for load in loads:
        names = (str(load["batch"]), str(load["context"]), load["sampling"], load["structure"])
        step = next((each for each in load["steps"] if each["kind"] == "decode"), None)
        if step is None:
            grid.add_row(*names, "none")
            continue
        # What the engine itself does for a mask, and all of a processor, whatever it is for.
        mask = sum(each["ms"] for each in step["parts"] if is_structure(each["part"]))
        draw = sum(each["ms"] for each in step["parts"] if is_decision(each["part"])) - mask
        cells = [cell for part in (mask, draw) for cell in (f"{part:.2f}", f"{part / step['ms']:.1%}")]
        grid.add_row(*names, f"{step['ms']:.1f}", *cells)
    return grid


def exposed_grid(exposed: list[dict[str, Any]]) -> Grid:
    """What the step waits for."""
    grid = Grid(title="exposed: what a decode step is shorter without it", title_justify="left")
    for title in ("left out", "ms", "95 % interval", "of the step", "", "at most (its own time)"):
        grid.add_column(title, justify="left" if title in ("left out", "") else "right")
    for each in exposed:
        low, high = each["interval ms"]
        own = each["own ms"]
        limit = f" ({each['detection limit ms']:.3f} ms)" if each["verdict"].startswith("below") else ""
        grid.add_row(
            each["part"],
            f"{each['exposed ms']:.3f}",
            f"{low:.3f} to {high:.3f}",
            f"{each['share of step']:.1%}",
            each["verdict"] + limit,
            "" if own is None else f"{own:.3f}",
        )
    return grid


def steps_grid(steps: list[dict[str, Any]]) -> Grid:
    """The parts of the steps of each kind."""
    grid = Grid(
        title="parts by their own time; shares are upper bounds of what they cost", title_justify="left"
    )
    grid.add_column("part")
    for each in steps:
        grid.add_column(f"{each['kind']}, ms", justify="right")
        grid.add_column("at most", justify="right")
    names = list(dict.fromkeys(part["part"] for each in steps for part in each["parts"]))
    for name in names:
        cells = []
        for each in steps:
            part = next((part for part in each["parts"] if part["part"] == name), None)
            cells += ["", ""] if part is None else [f"{part['ms']:.3f}", f"{part['share']:.1%}"]
        grid.add_row(name, *cells)
    unexplained = [each["unexplained"] for each in steps]
    cells = [cell for each in unexplained for cell in (f"{each['ms']:.3f}", f"{each['share']:.1%}")]
    grid.add_row("unexplained", *cells, end_section=True)
    totals = [cell for each in steps for cell in (f"{each['ms']:.3f}", f"{each['steps']} steps")]
    grid.add_row("step", *totals, style="bold")
    return grid
