"""Kernels without a GPU: interpreted, compiled ahead of time, and launched without anything behind it.

Interpreting and compiling cannot be had in one process, so each is a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_sampling_backends import request_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

triton = pytest.importorskip("triton")

from sortition.benchmarks import device as benchmark  # noqa: E402
from sortition.benchmarks import footprint  # noqa: E402
from sortition.benchmarks.engine_step import EngineStep, vocabulary  # noqa: E402
from sortition.grammars.json_schema import json_schema  # noqa: E402
from sortition.integrations.vllm_compile import Compiler, Figures  # noqa: E402
from sortition.sampling import device, device_sampler  # noqa: E402
from sortition.sampling.parameters import Parameters  # noqa: E402
from sortition.sampling.rules import (  # noqa: E402
    Constrain,
    FrequencyPenalty,
    LogitBias,
    Temperature,
    TopP,
    Typical,
)
from sortition.sampling.sampler import Sampler, kernels_of  # noqa: E402

HERE = Path(__file__).parent


def run(*command: str, **environment: str) -> str:
    """What a Python process says, which has to end well."""
    process = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **environment},
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-6000:] + process.stderr[-3000:]
    return process.stdout


@pytest.mark.parametrize("part", ["number or words", "asked", "not number and not words and not asked"])
def test_kernels_do_what_their_definitions_do(part: str) -> None:
    pytest_options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", part)
    said = run("-m", "pytest", "tests/kernels_interpreted.py", *pytest_options, TRITON_INTERPRET="1")
    assert " passed" in said and "skipped" not in said


def test_vllm_requests_are_masked_and_drawn_by_kernels() -> None:
    part = "second and not waits or taken_over"
    pytest_options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", part)
    said = run("-m", "pytest", "tests/test_vllm_slots.py", *pytest_options, TRITON_INTERPRET="1")
    assert " passed" in said and "skipped" not in said


def test_the_benchmark_runs_without_a_gpu() -> None:
    pytest_options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    said = run("-m", "pytest", "tests/device_interpreted.py", *pytest_options, TRITON_INTERPRET="1")
    assert " passed" in said and "skipped" not in said


# Logits of other types are read by the same code, which `scan` and `apply` show.
COMPILED = [
    *(
        ("edit,select,finish,law,advance,mask,judge,elect,leave", "bfloat16", architecture)
        for architecture in ("80", "90", "100")
    ),
    ("scan,apply", "bfloat16,float16,float32", "80,90,100"),
]


@pytest.mark.parametrize(("names", "types", "architectures"), COMPILED)
def test_compiled_kernels_round_as_they_should(names: str, types: str, architectures: str) -> None:
    reports = json.loads(run("tests/kernels_aot.py", names, types, architectures, TRITON_INTERPRET="0"))
    assert len(reports) == len(names.split(",")) * len(types.split(",")) * len(architectures.split(","))
    for report in reports:
        assert report["inexact"] == [], report
        assert report["binary"] > 0
        if report["kernel"] in ("scan", "select", "judge"):
            assert any(".v4." in name for name in report["loads"]), report


class Recorded:
    """Stands for a kernel: takes down its grid, and does nothing."""

    def __init__(self, name: str, grids: list[tuple[str, Any]]) -> None:
        self.name, self.grids = name, grids

    def __getitem__(self, grid: Any) -> Any:
        self.grids.append((self.name, grid))
        return lambda *arguments, **options: None


READS = ("item", "tolist", "cpu", "numpy", "nonzero", "to", "__bool__", "__int__", "__float__", "__index__")
"""What would wait for a device."""


def test_a_launch_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    grids: list[tuple[str, Any]] = []
    for name in ("edit", "scan", "select", "finish"):
        monkeypatch.setattr(device, name, Recorded(name, grids))
    rows, width = 3, 10_000
    one = Parameters(top_p=0.9, repetition_penalty=2.0, bad_words=((1, 2),), temperature=0.0)
    request = request_of([one, Parameters(), Parameters(top_k=3)], entropy=True)
    logits = torch.randn(rows, width)
    parameters = device.Settings.of(request.columns, width, logits.device)
    inputs = device.Inputs.of(request, logits.device)
    room = device.Workspace(rows, width, device.needed(parameters, inputs, width), logits.device)

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("the host asks for what only the device knows")

    with monkeypatch.context() as patch:
        for name in READS:
            patch.setattr(Tensor, name, refuse)
        device.launch(logits, parameters, inputs, room, entropy=True)
    tiles = triton.cdiv(width, device.TILE) + 1
    assert grids == [
        ("edit", (rows,)),
        ("scan", (rows, tiles)),
        ("select", (rows, tiles)),
        ("finish", (rows,)),
    ]


class Apart(TorchDispatchMode):
    """Fails where a tensor of the host takes part: on a GPU that would be a copy, for which one waits."""

    def __torch_dispatch__(self, operator: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        result = operator(*arguments, **(keywords or {}))
        for each in tree_leaves((arguments, keywords, result)):
            assert not isinstance(each, Tensor) or each.device.type != "cpu", operator
        return result


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """A device of which nothing can be read; kernels launch nothing there."""
    monkeypatch.setattr(device_sampler, "runs_on", lambda device: True)
    monkeypatch.setattr(device, "law", footprint.Counted([], "law"))
    with footprint.counted():
        yield torch.device("meta")


@pytest.mark.parametrize(
    "options",
    [{}, {"top": 3, "raw": True, "entropy": True}, {"on_nan": "mend", "on_empty": "mend", "on_infinite": 1}],
    ids=str,
)
def test_a_sampler_asks_the_host_for_nothing(options: dict[str, Any], nowhere: torch.device) -> None:
    table = json_schema({"type": "string", "maxLength": 40}).compile(vocabulary(512))
    rules = Typical(0.9), Temperature(0.8), TopP(0.95), FrequencyPenalty(0.2), LogitBias({3: 1.0})
    sampler = Sampler(Constrain(table), *rules, backend="triton", **options)
    state = sampler.start(4, seed=1, prompts=[[1, 2]] * 4, device=nowhere)
    logits = torch.empty(4, 512, device=nowhere, dtype=torch.bfloat16)
    # Parameters are uploaded by the first draw.
    state = sampler.advance(state, sampler(logits, state).tokens)
    with Apart():
        for _ in range(3):
            draw = sampler(logits, state)
            state = sampler.advance(state, draw.tokens)
    assert draw.tokens.device == nowhere
    with pytest.raises(NotImplementedError):
        draw.tokens.tolist()


def test_a_step_of_vllm_asks_the_host_for_nothing(nowhere: torch.device) -> None:
    step = EngineStep(Compiler(vocabulary(512), Figures()), torch.empty(3, 512, device=nowhere), grammars=2)
    step.constrain_and_draw()
    step.go_on()
    with Apart():
        for _ in range(2):
            step.constrain_and_draw()
            step.go_on()


def test_a_device_without_a_number_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that is begun on "cuda" is drawn from by what began it, so that nothing is uploaded again."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    sampler = Sampler()
    drawer = kernels_of(sampler, torch.device("cuda"), 2)
    assert drawer is not None
    assert kernels_of(sampler, torch.device("cuda:1"), 2) is drawer


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels would draw")
def test_kernels_that_are_asked_for_where_they_do_not_run() -> None:
    sampler = Sampler(backend="triton")
    with pytest.raises(
        ValueError, match="kernels run on a GPU, not on cpu; without a backend, the host draws"
    ):
        sampler(torch.zeros(1, 5), sampler.start(1))


def test_a_workspace_has_to_fit() -> None:
    request = request_of([Parameters(logit_bias={1: 1.0, 2: 1.0})])
    logits = torch.randn(1, 300)
    parameters = device.Settings.of(request.columns, 300, logits.device)
    inputs = device.Inputs.of(request, logits.device)
    with pytest.raises(ValueError, match="a workspace of 1 rows of 301 for 1 of 300"):
        device.launch(logits, parameters, inputs, device.Workspace(1, 301, 9, logits.device))
    with pytest.raises(ValueError, match="a workspace of 0 rows of 300 for 1 of 300"):
        device.launch(logits, parameters, inputs, device.Workspace(0, 300, 9, logits.device))
    with pytest.raises(ValueError, match="edits may name 4 tokens, room is for 3"):
        device.launch(logits, parameters, inputs, device.Workspace(1, 300, 3, logits.device))


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would run for minutes")
def test_the_benchmark_needs_a_gpu() -> None:
    with pytest.raises(SystemExit, match="there is no GPU"):
        benchmark.main([])
