"""Reports of the benches as pictures: an SVG file for each, and a page with all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sortition.benchmarks.charts import STYLE, dots
from sortition.benchmarks.page import card, page, table


@dataclass(frozen=True)
class Picture:
    """What `charts.dots` is given, and the name of its file."""

    file: str
    title: str
    lanes: Sequence[str]
    series: Mapping[str, Sequence[float | None]]
    x_title: str

    def svg(self, style: str = "") -> str:
        return dots(self.title, self.lanes, self.series, x_title=self.x_title, style=style)


def save(report: Mapping[str, Any], folder: Path) -> Path:
    """Write the pictures of a report of `samplers` or `masks`, and the page, whose path is returned.

    The folder is made if it is not there.
    """
    if "points" in report:
        name, title = "samplers", "What a draw costs"
        pictures, figures = list(_samplers(report)), _figures_of_samplers(report)
    else:
        name, title = "masks", "What masks cost, and whether they are right"
        pictures, figures = list(_masks(report)), _figures_of_masks(report)
    folder.mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        (folder / f"{picture.file}.svg").write_text(picture.svg(STYLE), encoding="utf-8")
    cards = [card(picture.title, picture.svg()) for picture in pictures]
    path = folder / f"{name}.html"
    whole = page(title, [*cards, card("Figures", figures, wide=True)], footer=_machine(report["machine"]))
    path.write_text(whole, encoding="utf-8")
    return path


def _machine(machine: str | Mapping[str, Any]) -> str:
    if isinstance(machine, str):
        return machine
    return ", ".join(f"{name}: {value}" for name, value in machine.items())


def _samplers(report: Mapping[str, Any]) -> Iterator[Picture]:
    """One picture for each number of rows."""
    for rows in dict.fromkeys(point["rows"] for point in report["points"]):
        points = [point for point in report["points"] if point["rows"] == rows]
        names = dict.fromkeys(name for point in points for name in point["ms per row"])
        yield Picture(
            f"samplers-{rows}",
            f"{rows} row{'s' if rows > 1 else ''} of {report['vocabulary']:,} logits",
            [point["setting"] for point in points],
            {name: [point["ms per row"].get(name) for point in points] for name in names},
            "milliseconds a row",
        )


def _masks(report: Mapping[str, Any]) -> Iterator[Picture]:
    """One picture for each time that is measured."""
    engines = report["engines"]
    for title, figure in (
        ("Time to the first mask", "first mask us"),
        ("Mask and advance", "mask + advance us"),
    ):
        lanes = list(next(iter(engines.values()))[figure])
        yield Picture(
            f"masks-{figure.split()[0]}",
            title,
            lanes,
            {name: [engine[figure][lane] or None for lane in lanes] for name, engine in engines.items()},
            "microseconds",
        )


def _figures_of_samplers(report: Mapping[str, Any]) -> str:
    names = list(dict.fromkeys(name for point in report["points"] for name in point["ms per row"]))
    rows = [
        (
            str(point["rows"]),
            point["setting"],
            *(f"{point['ms per row'][name]:.3f}" if name in point["ms per row"] else "-" for name in names),
        )
        for point in report["points"]
    ]
    return table(("rows", "setting", *names), rows, numbers=(0, *range(2, 2 + len(names))))


def _figures_of_masks(report: Mapping[str, Any]) -> str:
    engines = report["engines"]
    counts = ("compiled", "passed", "wrongly accepted instances", "wrongly refused instances")
    rows = [(name, *(str(engine[name]) for engine in engines.values())) for name in counts]
    return table((f"of {report['schemas']} schemas", *engines), rows, numbers=range(1, 1 + len(engines)))
