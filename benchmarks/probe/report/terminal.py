"""The summary in the terminal: the verdict first, understood in ten seconds."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from sortition.benchmarks.printable import printable
from sortition.benchmarks.probe.findings import Answer, Findings
from sortition.benchmarks.probe.report.wording import answers, badge, greatest, not_run, same

COLOURS: Final[dict[Answer, str]] = {
    "within": "green",
    "exceeded": "red",
    "inconclusive": "yellow",
    "error": "red",
}


def show(findings: Findings, console: Console) -> None:
    """Print what was found: verdict, answers, a line for each condition."""
    verdict = findings.verdict
    console.print(Text(f" {badge(findings)} ", f"bold reverse {COLOURS[verdict.answer]}"))
    console.print(_text(verdict.headline, "bold"))
    grid = Grid(show_header=False, box=None, padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for asked, said in answers(findings):
        grid.add_row(asked, _text(said))
    console.print(grid)
    console.print(_conditions(findings))
    for tested in findings.tested:
        if tested.status in ("not exercised", "error") and tested.possible:
            console.print(_text(f"{tested.status}: {tested.name} ({tested.evidence})", "dim"))
    for why, names in not_run(findings).items():
        console.print(_text(f"not run, {why}: {', '.join(names)}", "dim"))
    impossible = [tested.name for tested in findings.tested if not tested.possible]
    if impossible:
        console.print(_text(f"not possible here: {', '.join(impossible)}", "dim"))
    for reason in verdict.reasons:
        console.print(_text(reason, "dim"))


def _conditions(findings: Findings) -> Grid:
    grid = Grid(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("condition", "same bits", "same text", "largest difference", "class"):
        grid.add_column(title, justify="left" if title == "condition" else "right")
    for tested in findings.tested:
        if tested.status == "exercised":
            changed = tested.divergence is not None and tested.divergence.count
            grid.add_row(
                _text(tested.name),
                same(tested.bitwise),
                Text(same(tested.divergence), "bold red" if changed else ""),
                f"{greatest(tested):.3g}",
                _class(findings, tested.name),
            )
    return grid


def _text(said: str, style: str = "") -> Text:
    """As it is: no markup, nothing that steers the terminal."""
    return Text(printable(said), style)


def _class(findings: Findings, name: str) -> str:
    """A for the reference's class, then B, C, ... in the order of the findings; "" for other references."""
    ordered = sorted(findings.classes, key=lambda names: "reference" not in names)
    return next((chr(ord("A") + index) for index, names in enumerate(ordered) if name in names), "")
