"""Reports of the benches as pictures: an SVG file for each, and a page with all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sortition.benchmarks import mask_tables
from sortition.benchmarks.charts import STYLE, dots
from sortition.benchmarks.page import card, page, table

DRAWN_KEYWORDS: Final = 15
"""The most frequent ones: their lanes fill a telephone's screen."""

TAILS: Final = "Milliseconds a row: the median of all calls, and the 99th percentile behind it."


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
        pictures = list(_samplers(report))
        figures = [card("Figures", _figures_of_samplers(report), note=TAILS, wide=True)]
    else:
        name, title = "masks", "What masks cost, and whether they are right"
        pictures = list(_masks(report))
        by_keyword = table(
            mask_tables.HEAD, mask_tables.keyword_rows(report["keywords"]), numbers=(1, *range(3, 12))
        )
        figures = [
            card("Verdicts", _verdicts(report), wide=True),
            card("By keyword", by_keyword, note="Of all schemas that have it anywhere.", wide=True),
        ]
    # Where memory cannot be measured, there is nothing to draw.
    pictures = [picture for picture in pictures if any(any(values) for values in picture.series.values())]
    folder.mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        (folder / f"{picture.file}.svg").write_text(picture.svg(STYLE), encoding="utf-8")
    cards = [card(picture.title, picture.svg()) for picture in pictures]
    path = folder / f"{name}.html"
    path.write_text(page(title, [*cards, *figures], footer=_made_on(report)), encoding="utf-8")
    return path


def _made_on(report: Mapping[str, Any]) -> str:
    said = {**report["machine"], "one thread on core": report["core"], **report["versions"]}
    return ", ".join(f"{name}: {value}" for name, value in said.items() if value is not None)


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
    """One picture for each figure that is measured, and the medians of two by keyword."""
    engines = report["engines"]
    for file, title, figure, unit in (
        ("first", "Time to the first mask", "first mask us", "microseconds"),
        ("step", "Mask and advance", "mask + advance us", "microseconds"),
        ("memory", "Memory that a schema holds", "heap KiB", "KiB"),
    ):
        lanes = list(next(iter(engines.values()))[figure])
        yield Picture(
            f"masks-{file}",
            title,
            lanes,
            {name: [engine[figure][lane] or None for lane in lanes] for name, engine in engines.items()},
            unit,
        )
    keywords = dict(list(report["keywords"].items())[:DRAWN_KEYWORDS])
    for file, title, figure, unit in (
        ("first-by-keyword", "Time to the first mask, median by keyword", "first mask us", "microseconds"),
        ("memory-by-keyword", "Memory, median by keyword", "heap KiB", "KiB"),
    ):
        yield Picture(
            f"masks-{file}",
            title,
            list(keywords),
            {
                name: [found["engines"][name][figure]["p50"] or None for found in keywords.values()]
                for name in engines
            },
            unit,
        )


def _figures_of_samplers(report: Mapping[str, Any]) -> str:
    names = list(dict.fromkeys(name for point in report["points"] for name in point["ms per row"]))
    rows = [
        (
            str(point["rows"]),
            point["setting"],
            *(_median_and_tail(point, name) for name in names),
        )
        for point in report["points"]
    ]
    return table(("rows", "setting", *names), rows, numbers=(0, *range(2, 2 + len(names))))


def _median_and_tail(point: Mapping[str, Any], name: str) -> str:
    if name not in point["ms per row"]:
        return "-"
    return f"{point['ms per row'][name]:.3f} ({point['tails, ms per row'][name]['p99']:.3f})"


def _verdicts(report: Mapping[str, Any]) -> str:
    engines = report["engines"]
    counts = ("compiled", "passed", "wrongly accepted instances", "wrongly refused instances")
    rows = [(name, *(str(engine[name]) for engine in engines.values())) for name in counts]
    return table((f"of {report['schemas']} schemas", *engines), rows, numbers=range(1, 1 + len(engines)))
