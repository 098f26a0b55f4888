"""Reports as tables for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from sortition.benchmarks.overhead.parts import JOINT, is_decision, is_structure


def show(report: dict[str, Any], console: Console) -> None:
    """A report of `measure`."""
    engine = report["engine"]
    console.print(f"{engine['model']} in {engine['engine']}, {engine['dtype']} on {engine['device']}")
    console.print(", ".join(f"{name} {value}" for name, value in report["machine"].items()))
    versions = {name: engine[name] for name in ("torch", "transformers", "vllm", "threads") if name in engine}
    console.print(", ".join(f"{name} {value}" for name, value in versions.items()))
    clock = "of the processor, in the engine's thread" if report["clock"] == "cpu" else "on the wall"
    console.print(f"milliseconds {clock}")
    if report["interrupted"]:
        console.print("interrupted: the loads after these have not been measured")
    for load in report["loads"]:
        title = f"batch {load['batch']}, context {load['context']}, {load['sampling']}"
        console.print(f"\n[bold]{title}, structure: {load['structure']}[/bold]")
        if "error" in load:
            console.print(load["error"], style="red")
        if load["exposed"]:
            console.print(exposed_grid(load["exposed"]))
        if load["steps"]:
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
    """A line for each load: a decode step, and what of it structure and the draw cost."""
    grid = Grid(title="\ndecode steps, and what they are shorter without", title_justify="left")
    for title in ("batch", "context", "sampling", "structure", "step, ms", "structure, ms", "draw, ms"):
        grid.add_column(title, justify="left" if title in ("sampling", "structure") else "right")
    grid.add_column("unexplained", justify="right")
    for load in loads:
        names = (str(load["batch"]), str(load["context"]), load["sampling"], load["structure"])
        step = next((each for each in load["steps"] if each["kind"] == "decode"), None)
        if step is None:
            grid.add_row(*names, "none")
            continue
        decision = [part["part"] for part in step["parts"] if is_decision(part["part"])]
        kinds = [[name for name in decision if is_structure(name) == held] for held in (True, False)]
        cells = [cost(load, step, names) for names in kinds]
        grid.add_row(*names, f"{step['ms']:.1f}", *cells, f"{step['unexplained']['share']:.1%}")
    return grid


def cost(load: dict[str, Any], step: dict[str, Any], names: list[str]) -> str:
    """What these parts cost a step of the load together: exposed if that was measured, else at most."""
    for each in load["exposed"]:
        if each["part"] == JOINT.join(names):
            low, high = each["interval ms"]
            return f"{each['exposed ms']:.2f} ({low:.2f} to {high:.2f})"
    return f"at most {sum(each['ms'] for each in step['parts'] if each['part'] in names):.2f}"


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
        if "device ms" in each:
            grid.add_column("device, ms", justify="right")
    names = list(dict.fromkeys(part["part"] for each in steps for part in each["parts"]))
    for name in names:
        cells = []
        for each in steps:
            part = next((part for part in each["parts"] if part["part"] == name), None)
            cells += ["", ""] if part is None else [f"{part['ms']:.3f}", f"{part['share']:.1%}"]
            cells += _on_device(each, {} if part is None else part)
        grid.add_row(name, *cells)
    cells = []
    for each in steps:
        rest = each["unexplained"]
        cells += [f"{rest['ms']:.3f}", f"{rest['share']:.1%}", *_on_device(each, {})]
    grid.add_row("unexplained", *cells, end_section=True)
    cells = []
    for each in steps:
        cells += [f"{each['ms']:.3f}", f"{each['steps']} steps", *_on_device(each, each)]
    grid.add_row("step", *cells, style="bold")
    return grid


def _on_device(step: dict[str, Any], timed: dict[str, Any]) -> list[str]:
    """The cell of what was timed there, if the step was timed on a device at all."""
    if "device ms" not in step:
        return []
    return [f"{timed['device ms']:.3f}" if "device ms" in timed else ""]
