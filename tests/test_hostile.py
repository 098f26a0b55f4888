"""Hostile inputs are refused or compiled before they cost much."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import hostile
import pytest

from sortition.grammars.background import SWITCH

PIECES = 120
"""CPU time for each, in pieces of fixed work that are timed beside it, as tests share their cores. None
needed more than 51, where a piece took 40 ms, beside other programs."""

PEAK = 500
"""MiB for all of them, one after the other in one process."""


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """What came of all inputs, without compiled loops: in the first second of a process there are none."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), SWITCH: "0"}
    done = subprocess.run(
        [sys.executable, str(Path(hostile.__file__))],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", hostile.INPUTS)
def test_is_over_soon(name: str, report: dict[str, Any]) -> None:
    seconds, piece, outcome = report["outcomes"][name]
    assert seconds < PIECES * piece, f"{seconds:.2f} s: {outcome}"


def test_memory_is_bounded(report: dict[str, Any]) -> None:
    assert report["peak"] < PEAK
