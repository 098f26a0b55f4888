"""What a step of kernels takes of the device: launches and memory, by rows and grammars; no GPU is needed.

    python -m sortition.benchmarks.footprint --output footprint.json

The step is that of vLLM's second runner: every row has a grammar and is drawn here. Kernels are counted, not
launched; beside them are the operators of torch that start something on the device.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table as Grid
from torch.utils._python_dispatch import TorchDispatchMode

from sortition.benchmarks.engine_step import EngineStep, vocabulary
from sortition.integrations import vllm_device
from sortition.integrations.vllm_compile import Compiler, Figures
from sortition.sampling import device, device_constraint

WIDTH: Final = 131_072
ROWS: Final = (1, 32, 256)
GRAMMARS: Final = (1, 64)
MODULES: Final = (vllm_device, device, device_constraint)
"""From where kernels are launched."""

KERNELS: Final[tuple[str, ...]] = (
    *("advance", "mask", "judge", "apply"),
    *("edit", "scan", "select", "finish", "elect", "leave"),
)

VIEWS: Final = ("empty", "view", "slice", "select", "expand", "unsqueeze", "detach", "alias", "t.", "permute")
"""How names of operators begin that start nothing on a device."""


class Counted:
    """Stands for a kernel: counts launches, and launches nothing."""

    def __init__(self, launches: list[str], name: str) -> None:
        self._launches, self._name = launches, name

    def __getitem__(self, grid: Any) -> Any:
        self._launches.append(self._name)
        return lambda *arguments, **options: None


class Operators(TorchDispatchMode):  # type: ignore[misc]
    """Counts the operators that start something on a device."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, operator: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        name = operator.__name__
        if not name.startswith(VIEWS):
            self.names.append(name)
        return operator(*arguments, **(keywords or {}))


def main(arguments: Sequence[str] | None = None) -> None:
    """Count, print the table and save the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    output = parser.parse_args(arguments).output
    report = run()
    show(report, Console(width=110))
    if output is not None:
        output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def run(
    width: int = WIDTH, rows: Sequence[int] = ROWS, grammars: Sequence[int] = GRAMMARS
) -> list[dict[str, Any]]:
    """A point for each number of rows and grammars, as plain JSON values."""
    compiler = Compiler(vocabulary(width), Figures())
    return [point(compiler, width, some, count) for some in rows for count in grammars]


def point(compiler: Compiler, width: int, rows: int, grammars: int) -> dict[str, Any]:
    """What a step of so many rows takes where requests have so many grammars in all."""
    step = EngineStep(compiler, torch.empty(rows, width), grammars)
    # What requests bring is uploaded in the first step.
    for _ in range(2):
        with counted() as launches, Operators() as operators:
            step.constrain_and_draw()
    return {
        "rows": rows,
        "grammars": grammars,
        "kernels": len(launches),
        "operators": len(operators.names),
        "tables": step.slots.constraint.store.nbytes,
        "positions": sum(part.nbytes for part in step.slots.constraint.slots),
        "step": step.device.nbytes,
        "logits": step.logits.nbytes,
    }


@contextmanager
def counted() -> Iterator[list[str]]:
    """Kernels are counted, and nothing is launched."""
    launches: list[str] = []
    before = [{name: vars(module)[name] for name in KERNELS if name in vars(module)} for module in MODULES]
    for module, found in zip(MODULES, before, strict=True):
        vars(module).update({name: Counted(launches, name) for name in found})
    try:
        yield launches
    finally:
        for module, found in zip(MODULES, before, strict=True):
            vars(module).update(found)


def show(report: Sequence[dict[str, Any]], console: Console) -> None:
    """The report as a table, in launches and MB."""
    numbers = "rows", "grammars", "kernels", "operators"
    sizes = "tables", "positions", "step", "logits"
    grid = Grid(title=f"one step of {WIDTH:,} logits a row")
    for title in (*numbers, *(f"{name} MB" for name in sizes)):
        grid.add_column(title, justify="right")
    for each in report:
        grid.add_row(*(str(each[name]) for name in numbers), *(f"{each[name] / 1e6:.2f}" for name in sizes))
    console.print(grid)


if __name__ == "__main__":
    main()
