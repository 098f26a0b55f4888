"""The pictures of a probe: classes, margins against noise, survival, and where in the model bits differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Final

from sortition.benchmarks.charts import COLOURS, RIGHT, WIDTH, Plot, drawing, shortened, text
from sortition.benchmarks.printable import escape
from sortition.benchmarks.probe.findings import Attribution, Findings, SurvivalPoint, Tested
from sortition.benchmarks.probe.report.wording import differing

BINS: Final = 24
SHOWN_SHARE: Final = 0.9
"""Of all margins lie within the histogram; it is the small ones that noise can overcome."""

CURVES: Final = 4
"""Survival curves that can still be told apart in one plot."""

LETTERS: Final = "BCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Names of classes; the reference's would be A. Whatever comes after Z shares it."""

NAMES: Final = 92
"""Units to the left of the layers, for 14 letters."""
ROW: Final = 16
WIDEST_CELL: Final = 22.0
"""Units: models of few layers have cells, not beams."""


def classes(findings: Findings) -> str:
    """A table of conditions by prompts: which have the same bits, and where the text changes."""
    letters: list[dict[tuple[str, ...], str]] = [{} for _ in findings.references]
    head = "".join(
        f'<th title="{escape(shortened(reference.text, 80))}">{number}</th>'
        for number, reference in enumerate(findings.references, 1)
    )
    rows = [
        f"<tr><th>{escape(tested.name)}</th>{_cells(tested, letters)}</tr>\n"
        for tested in findings.tested
        if tested.status == "exercised"
    ]
    grid = (
        f'<div class="scroll"><table class="classes"><thead><tr><th>prompt</th>{head}</tr></thead>\n'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
    return grid + _key(
        [("the reference's bits", "same"), ("other bits", "changed"), ("another token", "culprit")]
    )


def _cells(tested: Tested, letters: list[dict[tuple[str, ...], str]]) -> str:
    """One cell a prompt; a letter stands for the same bits in its column, wherever it appears."""
    cells = {}
    for each in tested.comparisons:
        if each.first_difference is None:
            style, said, hint = "equal", "=", "the same bits"
        else:
            # Letters compare runs with one reference; of others only the difference is known.
            known = letters[each.prompt]
            said = (
                "≠"
                if tested.given
                else known.setdefault(each.digests, LETTERS[min(len(known), len(LETTERS) - 1)])
            )
            style, hint = "other", f"other bits from token {each.first_difference + 1} on"
            if each.first_flip is not None:
                style, hint = "flip", f"{hint}, another choice at token {each.first_flip + 1}"
        cells[each.prompt] = f'<td class="{style}" title="{hint}">{said}</td>'
    return "".join(cells.get(prompt, '<td class="none">·</td>') for prompt in range(len(letters)))


def margins(findings: Findings) -> str:
    """How far the best score was ahead at each step, and how far noise reaches."""
    values = sorted(chain.from_iterable(reference.margins for reference in findings.references))
    if not values:
        return ""
    noisy = [tested for tested in differing(findings) if tested.noise]
    noise = max((tested.noise or 0.0 for tested in noisy), default=0.0)
    flips = [
        (each.margin_at_flip, f"{tested.name}, prompt {each.prompt + 1}")
        for tested in findings.tested
        for each in tested.comparisons
        if each.margin_at_flip is not None
    ]
    end = max(values[int(SHOWN_SHARE * (len(values) - 1))], 4 * noise, *(margin for margin, _ in flips), 1e-9)
    counts = [0] * BINS
    for value in values:
        if value <= end:
            counts[min(int(BINS * value / end), BINS - 1)] += 1
    plot = Plot(
        "Margins of the best score over the second, with noise and flips",
        (0, end),
        (0, max(counts) * 1.35),
        x_title="margin between the two best scores",
        y_title="steps",
    )
    width = end / BINS
    for index, count in enumerate(counts):
        plot.bar(index * width, (index + 1) * width, count, "one")
    legend = [(f"{len(values)} steps of the reference", "one")]
    if noise:
        top = max(counts)
        places = [end * step / 100 for step in range(101)]
        curve = [(place, top * math.exp(-((place / noise) ** 2) / 2)) for place in places]
        plot.band([(place, 0.0) for place in places], curve, "two")
        plot.line(curve, "two")
        legend.append(("what noise moves them by", "two"))
    for margin, said in flips:
        plot.mark(margin, 0, "two", said)
    if flips:
        legend.append((f"{len(flips)} flip{'s' if len(flips) > 1 else ''}, where the dots are", "two"))
    plot.legend(legend)
    return plot.svg()


def survival(findings: Findings) -> str:
    """The share of texts that are still the reference's, by token, where most of them change."""
    curves = sorted(
        (
            tested
            for tested in findings.tested
            if tested.divergence and tested.divergence.count and tested.survival
        ),
        key=lambda tested: tested.survival[-1].surviving,
    )
    if not curves:
        return ""
    last = max(len(reference.tokens) for reference in findings.references)
    plot = Plot(
        "Share of texts that are still the reference's, by token",
        (0, last),
        (0, 1),
        x_title="tokens",
        y_title="share of texts still the same",
    )
    alike: dict[tuple[SurvivalPoint, ...], list[str]] = {}
    for tested in curves:
        alike.setdefault(tested.survival, []).append(tested.name)
    shown = list(zip(COLOURS[:CURVES], alike.items(), strict=False))
    for colour, (points, _) in shown:
        if colour == COLOURS[0]:
            lower = _curve([(each.step, each.low) for each in points], last)
            upper = _curve([(each.step, each.high) for each in points], last)
            plot.band(lower, upper, colour, steps=True)
        plot.line(_curve([(each.step, each.surviving) for each in points], last), colour, steps=True)
    return plot.svg() + _key([(", ".join(names), colour) for colour, (_, names) in shown])


def _curve(points: Sequence[tuple[int, float]], last: float) -> list[tuple[float, float]]:
    """From all of the texts at the beginning to the last step of the plot."""
    return [(0.0, 1.0), *((float(step), share) for step, share in points), (last, points[-1][1])]


def _key(entries: Sequence[tuple[str, str]]) -> str:
    """Names beside their colours, below a plot."""
    items = "".join(f'<li class="{style}">{escape(name)}</li>' for name, style in entries)
    return f'<ul class="key">{items}</ul>'


def layers(attribution: Attribution) -> str:
    """Every operation in its layer: the same bits, other bits that came in, or other bits made there."""
    operations = attribution.operations
    kinds = list(dict.fromkeys(each.kind for each in operations))
    numbers = [each.layer for each in operations if each.layer is not None]
    first, last = min(numbers, default=0), max(numbers, default=0)
    # What is before and after all layers gets a column of its own.
    cell = min((WIDTH - NAMES - RIGHT) / (last - first + 3), WIDEST_CELL)
    parts = [text(NAMES - 6, 16, "layer", "quiet end")]
    for layer in range(first, last + 1, math.ceil(22 / cell)):
        parts.append(text(NAMES + cell * (layer - first + 1.5), 16, str(layer), "quiet middle"))
    for index, kind in enumerate(kinds):
        parts.append(text(NAMES - 6, 35 + ROW * index, shortened(kind, 14), "quiet end"))
    inside = False
    for each in operations:
        inside = inside or each.layer is not None
        column = each.layer - first + 1 if each.layer is not None else last - first + 2 if inside else 0
        style, said = "same", "the same bits"
        if not each.outputs_equal:
            style = "culprit" if each.inputs_equal else "changed"
            said = f"differs by up to {each.max_abs:.3g}"
        place = f'x="{NAMES + cell * column:.1f}" y="{24 + ROW * kinds.index(each.kind)}"'
        parts.append(
            f'<rect class="{style}" {place} width="{cell - 1:.1f}" height="{ROW - 1}">'
            f"<title>{escape(f'{each.name}: {said}')}</title></rect>"
        )
    key = [("the same bits", "same"), ("other bits came in", "changed"), ("other bits made here", "culprit")]
    title = f"Operations by layer under {attribution.condition}"
    return drawing(title, 28 + ROW * len(kinds), parts) + _key(key)
