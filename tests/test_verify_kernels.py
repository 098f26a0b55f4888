"""Kernels that verify drafts, without a GPU: interpreted, compiled ahead of time, and waiting for nothing."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from test_kernels import READS, Recorded, run
from test_sampling_backends import request_of

from sortition.sampling import device, verify_device
from sortition.sampling.parameters import Parameters
from sortition.sampling.verification import TOKEN


@pytest.mark.parametrize(
    "chosen",
    [
        # Three minutes of interpreting are too much for every day.
        pytest.param("", marks=pytest.mark.slow, id="all"),
        pytest.param("own or (every_method and (token or coupled)) or nan", id="some"),
    ],
)
def test_kernels_find_what_the_definition_finds(chosen: str) -> None:
    options = ("-q", "-k", chosen, "-p", "no:cacheprovider", "-p", "no:xdist")
    said = run("-m", "pytest", "tests/verify_interpreted.py", *options, TRITON_INTERPRET="1")
    assert " passed" in said and "skipped" not in said


@pytest.mark.parametrize(("dtype", "architectures"), [("bfloat16", "80,90,100"), ("float32", "90")])
def test_compiled_kernels_round_as_they_should(dtype: str, architectures: str) -> None:
    reports = json.loads(
        run("tests/kernels_aot.py", "weigh,verify", dtype, architectures, TRITON_INTERPRET="0")
    )
    assert len(reports) == 2 * len(architectures.split(","))
    for report in reports:
        assert report["inexact"] == [], report
        assert report["binary"] > 0


@pytest.mark.parametrize("certain", [False, True])
def test_a_launch_waits_for_nothing(certain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    grids: list[tuple[str, Any]] = []
    for module, names in (
        (device, ("edit", "scan", "select", "finish")),
        (verify_device, ("weigh", "verify")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, Recorded(name, grids))
    rows, nodes, width = 2, 3, 5000

    def side(places: int) -> verify_device.Side:
        request = request_of([Parameters(top_p=0.9)] * places)
        return verify_device.Side.of(torch.randn(places, width), request)

    target, drafter = side(rows * (nodes + 1)), None if certain else side(rows * nodes)
    chains = verify_device.Chains(
        torch.zeros(rows, nodes, dtype=torch.int64),
        torch.from_numpy(np.full(rows, TOKEN, np.int8)),
        torch.zeros(rows, dtype=torch.int64),
    )

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("the host asks for what only the device knows")

    with monkeypatch.context() as patch:
        for name in READS:
            patch.setattr(Tensor, name, refuse)
        verify_device.launch(target, drafter, chains)
    draw = ["edit", "scan", "select", "finish", "weigh"]
    assert [name for name, _ in grids] == draw * (1 if certain else 2) + ["verify"]
    assert grids[-1] == ("verify", (rows,))
