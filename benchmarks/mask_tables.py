"""Reports of `masks.py` as tables for people."""

from __future__ import annotations

from typing import Any, Final

from rich.console import Console
from rich.table import Table as Grid

COUNTS: Final = ("compiled", "passed", "wrongly accepted instances", "wrongly refused instances")
FIGURES: Final = ("first mask us", "mask us", "mask + advance us", "heap KiB", "table KiB")

SHOWN_KEYWORDS: Final = 15
"""Keywords with a line for each engine: a screen. All of them are in the JSON and on the page."""


def show(report: dict[str, Any], console: Console) -> None:
    """Engines side by side, and by keyword."""
    about = report["machine"]
    console.print(
        f"{about['processor']}, core {report['core']} of {about['cores']}, Python {about['python']}"
    )
    console.print(", ".join(f"{name} {version}" for name, version in report["versions"].items()))
    console.print(f"time: {report['clock']}")
    if report["schemas"] < report["schemas wanted"]:
        console.print(f"interrupted after {report['schemas']} of {report['schemas wanted']} schemas")
    console.print(engines_grid(report))
    console.print(keywords_grid(report))


def engines_grid(report: dict[str, Any]) -> Grid:
    """All schemas."""
    grid = Grid(title=f"{report['schemas']} schemas, one thread", title_justify="left")
    grid.add_column("")
    engines = report["engines"]
    for name in engines:
        grid.add_column(name, justify="right")
    for row in COUNTS:
        grid.add_row(row, *(str(engine[row]) for engine in engines.values()), end_section=row == COUNTS[-1])
    for row in FIGURES:
        points = next(iter(engines.values()))[row]
        for point in points:
            cells = (figure(engine[row][point]) for engine in engines.values())
            grid.add_row(f"{row} {point}", *cells, end_section=point == "max")
    return grid


def keywords_grid(report: dict[str, Any]) -> Grid:
    """The schemas with each of the most frequent keywords, a line for each engine."""
    shown = dict(list(report["keywords"].items())[:SHOWN_KEYWORDS])
    left = len(report["keywords"]) - len(shown)
    grid = Grid(title="by keyword" + (f"; {left} more with --output" if left else ""), title_justify="left")
    for title in HEAD:
        grid.add_column(title, justify="left" if title in ("keyword", "engine") else "right")
    for row in keyword_rows(shown):
        grid.add_row(*row, end_section=False)
    return grid


HEAD: Final = (
    *("keyword", "schemas", "engine", "compiled", "passed", "accepted wrongly", "refused wrongly"),
    *("first mask p50, ms", "p99", "mask + advance p50, us", "p99", "heap p50, KiB"),
)
"""Of a table by keyword; two are instances."""


def keyword_rows(keywords: dict[str, Any]) -> list[tuple[str, ...]]:
    """A line for each keyword and engine, as `HEAD` says."""
    rows = []
    for keyword, found in keywords.items():
        for order, (name, engine) in enumerate(found["engines"].items()):
            first, step = engine["first mask us"], engine["mask + advance us"]
            rows.append(
                (
                    *((keyword, str(found["schemas"])) if order == 0 else ("", "")),
                    # Its version is above.
                    name.split()[0],
                    *(str(engine[count]) for count in COUNTS),
                    *(figure(None if first[each] is None else first[each] / 1000) for each in ("p50", "p99")),
                    *(figure(step[each]) for each in ("p50", "p99")),
                    figure(engine["heap KiB"]["p50"]),
                )
            )
    return rows


def figure(value: float | None) -> str:
    """A number for people: three digits, or all of those before the point."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
