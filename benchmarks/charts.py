"""Charts as SVG text, without a plotting library: scales, axes, bars, lines.

A chart is 360 units wide, a telephone's screen, so that its text stays legible where it is not enlarged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sortition.benchmarks.printable import escape

STYLE: Final = Path(__file__).with_name("charts.css").read_text(encoding="utf-8")

WIDTH: Final = 360
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 18, 38
"""Room around a plot for its labels, in units."""

LANE: Final = 24
LANE_NAMES: Final = 136
LANE_LETTERS: Final = 22
"""Height of a lane of dots, and room for its name."""

COLOURS: Final = ("one", "two", "three", "four", "five", "six")
"""Classes of the style, told apart by people who do not see red or green."""

ABOUT_TICKS: Final = 5

Point = tuple[float, float]


@dataclass(frozen=True)
class Scale:
    """Values to units: `low` stands at `begin`, `high` at `end`."""

    low: float
    high: float
    begin: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        low, high = self._warp(self.low), self._warp(self.high)
        share = (self._warp(value) - low) / ((high - low) or 1.0)
        return self.begin + share * (self.end - self.begin)

    def _warp(self, value: float) -> float:
        return math.log10(value) if self.logarithmic else value

    def ticks(self) -> list[float]:
        """Round values within the scale: powers of ten, or multiples of 1, 2 or 5 times one."""
        if self.logarithmic:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            return [10.0**power for power in range(first, last + 1)]
        if self.high <= self.low:
            return [self.low]
        rough = (self.high - self.low) / ABOUT_TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


class Plot:
    """A plot with two axes that is drawn on piece by piece.

    Args:
        title: what is seen, for those who do not see it.
        x, y: (low, high) of either axis; logarithmic ones are named in `logarithmic`.
        x_title, y_title: what stands there, with its unit.
        height: in units.
    """

    def __init__(
        self,
        title: str,
        x: Point,
        y: Point,
        *,
        x_title: str,
        y_title: str,
        logarithmic: str = "",
        height: int = 220,
    ) -> None:
        self.title, self.height = title, height
        self.x = Scale(*x, LEFT, WIDTH - RIGHT, "x" in logarithmic)
        self.y = Scale(*y, height - BOTTOM, TOP, "y" in logarithmic)
        self._parts = [*self._axes(x_title, y_title)]

    def _axes(self, x_title: str, y_title: str) -> list[str]:
        x, y = self.x, self.y
        parts = []
        for value in y.ticks():
            parts.append(f'<path class="rule" d="M{x.begin:.1f} {y(value):.1f}H{x.end:.1f}"/>')
            parts.append(text(x.begin - 5, y(value) + 4, number(value), "quiet end"))
        for value in x.ticks():
            parts.append(f'<path class="rule" d="M{x(value):.1f} {y.begin:.1f}v4"/>')
            parts.append(text(x(value), y.begin + 16, number(value), "quiet middle"))
        parts.append(text(x.end, self.height - 6, x_title, "quiet end"))
        parts.append(text(2, 10, y_title, "quiet"))
        return parts

    def bar(self, low: float, high: float, value: float, style: str) -> None:
        """From the axis to the value, between two places on the x axis."""
        left, right = self.x(low), self.x(high)
        top = self.y(value)
        width = max(right - left - 1, 0.5)
        height = max(self.y.begin - top, 0.0)
        self._parts.append(
            f'<rect class="bar {style}" x="{left:.1f}" y="{top:.1f}" '
            f'width="{width:.1f}" height="{height:.1f}"/>'
        )

    def line(self, points: Sequence[Point], style: str, *, steps: bool = False) -> None:
        """Through the points, or in steps that hold a value until the next one."""
        self._parts.append(f'<path class="line {style}" d="{self._path(points, steps)}"/>')

    def band(
        self, lower: Sequence[Point], upper: Sequence[Point], style: str, *, steps: bool = False
    ) -> None:
        """The area between two lines over the same places."""
        down = self._path([*reversed(lower)], steps, back=True)
        self._parts.append(f'<path class="band {style}" d="{self._path(upper, steps)}L{down[1:]}Z"/>')

    def mark(self, x: float, y: float, style: str, said: str = "") -> None:
        """A dot, with a text that appears under the pointer."""
        hint = f"<title>{escape(said)}</title>" if said else ""
        self._parts.append(
            f'<circle class="{style}" cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="3">{hint}</circle>'
        )

    def legend(self, entries: Sequence[tuple[str, str]]) -> None:
        """Names in the colours of what they name, from the top right down."""
        for index, (name, style) in enumerate(entries):
            self._parts.append(text(self.x.end, TOP + 10 + 14 * index, shortened(name, 46), f"end {style}"))

    def _path(self, points: Sequence[Point], steps: bool, back: bool = False) -> str:
        places = [(self.x(x), self.y(y)) for x, y in points]
        if not places:
            return ""
        path = f"M{places[0][0]:.1f} {places[0][1]:.1f}"
        for x, y in places[1:]:
            if not steps:
                path += f"L{x:.1f} {y:.1f}"
            else:
                path += f"V{y:.1f}H{x:.1f}" if back else f"H{x:.1f}V{y:.1f}"
        return path

    def svg(self) -> str:
        return drawing(self.title, self.height, self._parts)


def dots(
    title: str,
    lanes: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    *,
    x_title: str,
    style: str = "",
) -> str:
    """Values side by side on a logarithmic axis: a lane for each name, a colour for each series, as SVG.

    Args:
        title: what is seen; written into a file of its own, where no heading says it.
        lanes: names of the lanes.
        series: by name, a value above 0 for each lane, None where there is none.
        x_title: what the values are, with their unit.
        style: `STYLE` for a file of its own.
    """
    values = [value for each in series.values() for value in each if value is not None]
    low = 10.0 ** math.floor(math.log10(min(values)) + 1e-9)
    high = 10.0 ** math.ceil(math.log10(max(values)) - 1e-9)
    x = Scale(low, max(high, 10 * low), LANE_NAMES, WIDTH - RIGHT, logarithmic=True)
    bottom = TOP + LANE * len(lanes)
    parts = [text(2, 10, title)] if style else []
    for tick in x.ticks():
        parts.append(f'<path class="rule" d="M{x(tick):.1f} {TOP}V{bottom}"/>')
        parts.append(text(x(tick), bottom + 14, number(tick), "quiet middle"))
    parts.append(text(x.end, bottom + 30, x_title, "quiet end"))
    for index, name in enumerate(lanes):
        y = TOP + LANE * (index + 0.5)
        parts.append(f'<path class="rule" d="M{x.begin} {y}H{x.end}"/>')
        parts.append(text(x.begin - 8, y + 4, shortened(name, LANE_LETTERS), "end"))
        for order, ((owner, each), colour) in enumerate(zip(series.items(), COLOURS, strict=False)):
            value = each[index]
            if value is not None:
                # A little above each other, so that equal values do not hide each other.
                place = f'cx="{x(value):.1f}" cy="{y + 4 * (order - (len(series) - 1) / 2):.1f}"'
                hint = f"<title>{escape(f'{owner}: {value:.4g}')}</title>"
                parts.append(f'<circle class="{colour}" {place} r="4">{hint}</circle>')
    for index, (owner, colour) in enumerate(zip(series, COLOURS, strict=False)):
        y = bottom + 46 + 16 * index
        parts.append(f'<circle class="{colour}" cx="{x.begin}" cy="{y - 4}" r="4"/>')
        parts.append(text(x.begin + 12, y, owner))
    return drawing(title, bottom + 40 + 16 * len(series), parts, style=style)


def drawing(title: str, height: float, parts: Sequence[str], *, style: str = "") -> str:
    """Parts as one SVG element; with `STYLE` as a file of its own."""
    inside = f"<style>{style}</style>" if style else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img" '
        f'aria-label="{escape(title)}">{inside}{"".join(parts)}</svg>'
    )


def text(x: float, y: float, said: str, style: str = "") -> str:
    """A text that begins at (x, y), or ends there, or stands in the middle, by its style."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{escape(said)}</text>'


def shortened(said: str, most: int) -> str:
    """A text of so many characters at most."""
    return said if len(said) <= most else said[: most - 1] + "…"


def number(value: float) -> str:
    """A tick's label, as short as it can be: neighbours on a logarithmic axis have 40 units between them."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:g}k"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
