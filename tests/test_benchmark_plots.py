"""Pictures of the benches: every figure of a report is in them, at its place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from sortition.benchmarks import plots
from sortition.benchmarks.charts import Scale

MADE_ON: dict[str, Any] = {
    "machine": {"processor": "a <fast> one", "cores": 2, "system": "Linux", "python": "3.11"},
    "versions": {"sortition": "1", "theirs": "2"},
    "core": 1,
}
SAMPLERS: dict[str, Any] = {
    **MADE_ON,
    "vocabulary": 131072,
    "points": [
        {
            "rows": rows,
            "setting": setting,
            "ms per row": {"ours": 0.1 * rows, "theirs": 2.0, **more},
            "tails, ms per row": {name: {"p99": 77.25} for name in ("ours", "theirs", *more)},
        }
        for rows in (1, 32)
        for setting, more in (("top-k 50", {}), ("min-p", {"another": 30.0}))
    ],
}


def _nothing(engine: dict[str, Any]) -> dict[str, Any]:
    return {name: dict.fromkeys(value) if isinstance(value, dict) else 0 for name, value in engine.items()}


PERCENTILES = {"p50": 2.0, "p99": 250.0, "max": 9000.0}
ENGINE = {
    "compiled": 9,
    "passed": 8,
    "wrongly accepted instances": 0,
    "wrongly refused instances": 1,
    "first mask us": PERCENTILES,
    "mask + advance us": {**PERCENTILES, "p50": 0.0},
    "heap KiB": PERCENTILES,
}
ENGINES = {"ours": ENGINE, "theirs": ENGINE}
MASKS: dict[str, Any] = {
    **MADE_ON,
    "schemas": 10,
    "engines": ENGINES,
    "keywords": {
        "type": {"schemas": 10, "engines": ENGINES},
        # None of the engines compiles any.
        "not": {"schemas": 1, "engines": {name: _nothing(ENGINE) for name in ENGINES}},
    },
}


@pytest.mark.parametrize(
    ("report", "files", "dots"),
    [
        (SAMPLERS, {"samplers-1.svg": 2 * 2 + 1, "samplers-32.svg": 2 * 2 + 1}, 3),
        # What took no time cannot stand on a logarithmic axis.
        (
            MASKS,
            {
                "masks-first.svg": 2 * 3,
                "masks-step.svg": 2 * 2,
                "masks-memory.svg": 2 * 3,
                "masks-first-by-keyword.svg": 2,
                "masks-memory-by-keyword.svg": 2,
            },
            2,
        ),
    ],
    ids=["samplers", "masks"],
)
def test_a_report_is_drawn(report: dict[str, Any], files: dict[str, int], dots: int, tmp_path: Path) -> None:
    page = plots.save(report, tmp_path / "plots")
    assert {path.name for path in page.parent.iterdir()} == {*files, page.name}
    for name, figures in files.items():
        svg = ElementTree.parse(page.parent / name).getroot()
        circles = svg.findall("{*}circle")
        # One for each figure, and one for each name in the key.
        assert len(circles) == figures + dots
        assert svg.find("{*}style") is not None
    text = page.read_text()
    assert text.count("<svg") == len(files)
    assert not re.search(r"<script|src=|href=|url\(", text)
    assert "one thread on core: 1" in text and "theirs: 2" in text
    if "keywords" in report:
        assert "<td>not</td>" in text
    else:
        assert text.count("(77.250)") == 10


@pytest.mark.parametrize(
    ("scale", "ticks"),
    [
        (Scale(0, 1, 0, 100), [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (Scale(0, 9.6, 0, 100), [0, 2, 4, 6, 8]),
        (Scale(0.01, 100, 0, 100, logarithmic=True), [0.01, 0.1, 1, 10, 100]),
        (Scale(3, 3, 0, 100), [3]),
    ],
)
def test_ticks_are_round_and_within(scale: Scale, ticks: list[float]) -> None:
    assert scale.ticks() == pytest.approx(ticks)
    if scale.low < scale.high:
        assert [scale(scale.low), scale(scale.high)] == pytest.approx([0, 100])
