"""Kernels that verify drafts, without a GPU: interpreted, compiled ahead of time, and waiting for nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from test_kernels import Apart, Recorded, run
from test_verify import GRAMMAR, LETTERS

from sortition.sampling import device, device_constraint, device_sampler, verify_device
from sortition.sampling.rules import Constrain, FrequencyPenalty, Temperature, TopP
from sortition.sampling.sampler import Sampler
from sortition.sampling.verification import Method
from sortition.sampling.verify import drafting, verify

SOME = (
    "lengths and False",
    "trees and False",
    "grammar and tree",
    "before and chain",
    "row and flag",
    "refused",
    "raises",
    "goes_on",
    "makes_equal",
)
"""Of the tests in the interpreter: half a minute, where all of them take more than a minute."""


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param("", marks=pytest.mark.slow, id="all"),
        pytest.param(" or ".join(f"({each})" for each in SOME), id="some"),
    ],
)
def test_kernels_find_what_the_definition_finds(chosen: str) -> None:
    options = ("-q", "-k", chosen, "-p", "no:cacheprovider", "-p", "no:xdist")
    said = run("-m", "pytest", "tests/verify_interpreted.py", *options, TRITON_INTERPRET="1")
    assert " passed" in said and "skipped" not in said


@pytest.mark.parametrize(("dtype", "architectures"), [("bfloat16", "80,90,100"), ("float32", "90")])
def test_compiled_kernels_round_as_they_should(dtype: str, architectures: str) -> None:
    reports = json.loads(
        run("tests/kernels_aot.py", "walk,block", dtype, architectures, TRITON_INTERPRET="0")
    )
    assert len(reports) == 2 * len(architectures.split(","))
    for report in reports:
        assert report["inexact"] == [], report
        assert report["binary"] > 0


LAUNCHED: dict[Any, tuple[str, ...]] = {
    device: ("edit", "scan", "select", "finish"),
    device_constraint: ("advance", "mask"),
    verify_device: ("walk", "block"),
}


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("certain", [False, True], ids=["laws", "certain"])
@pytest.mark.parametrize("methods", [("token",), ("coupled", "block"), ("greedy", "distinct", "typical")])
def test_a_verification_waits_for_nothing(
    methods: tuple[Method, ...], certain: bool, tree: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the public call to the last launch, on a device of which nothing can be read, and alone there.

    With a grammar, and with rules that see the drafts.
    """
    grids: list[tuple[str, Any]] = []
    for module, names in LAUNCHED.items():
        for name in names:
            monkeypatch.setattr(module, name, Recorded(name, grids))
    monkeypatch.setattr(device_sampler, "runs_on", lambda where: True)
    nowhere = torch.device("meta")
    rows, nodes, width = len(methods), 3, 5000
    sampler = Sampler(
        LETTERS,
        *(Constrain(GRAMMAR), TopP(0.9), FrequencyPenalty(0.2)),
        backend="triton",
        on_nan="mend",
        on_empty=3,
    )
    drafter = Sampler(Temperature(0.5), backend="triton")
    state = sampler.start(rows, seed=1, device=nowhere)
    tokens = torch.empty(rows, nodes, dtype=torch.int64, device=nowhere)
    target = torch.empty(rows, nodes + 1, width, device=nowhere)
    parents = tokens if tree else None
    more = {"method": list(methods), "parents": parents, "draft_sampler": drafter}
    laws = None if certain else torch.empty(rows, nodes, width, device=nowhere)
    # Parameters are uploaded once.
    verify(tokens, laws, target, sampler, state, **more)
    grids.clear()
    with Apart():
        found = verify(tokens, laws, target, sampler, state, **more)
    assert found.tokens.device == nowhere
    assert drafting(state, list(methods)).seeds.device == nowhere
    by_laws = not certain and any(method in ("token", "distinct", "block") for method in methods)
    # What is mended of NaN may be empty after it.
    draws = (2 + by_laws) * ["edit", "scan", "select", "finish"]
    ends = ["walk"] * any(method != "block" for method in methods) + ["block"] * ("block" in methods)
    assert [name for name, _ in grids] == ["advance", "mask", *draws, *ends]
    assert grids[-1] == (ends[-1], (rows,))
