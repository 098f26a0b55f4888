"""The GPU's benchmark from end to end without a GPU: kernels are interpreted, and CUDA is made up.

For a process of its own, where TRITON_INTERPRET is set before Triton is imported; `test_kernels.py` runs it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sortition.benchmarks import device as benchmark
from sortition.benchmarks import device_draws, device_equality, device_peers, device_timing
from sortition.benchmarks.footprint import KERNELS, MODULES
from sortition.benchmarks.sampler_peers import Setting
from sortition.sampling import device

pytestmark = pytest.mark.filterwarnings("ignore:CUDA is not available")


class Event:
    """A moment."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return 1000 * (end.at - self.at) + 0.001


class Graph:
    """Repeats the launches of kernels that were captured, with the arguments that they had."""

    def __init__(self) -> None:
        self.launches: list[Callable[[], None]] = []

    def replay(self) -> None:
        for each in self.launches:
            each()


class Captured:
    """A kernel whose launches go into a graph."""

    def __init__(self, kernel: Any, graph: Graph) -> None:
        self.kernel, self.graph = kernel, graph

    def __getitem__(self, grid: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> None:
            self.graph.launches.append(partial(self.kernel[grid], *arguments, **options))
            self.graph.launches[-1]()

        return call


@contextmanager
def capture(graph: Graph) -> Iterator[None]:
    """Stands for `torch.cuda.graph`."""
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            for name in KERNELS:
                if name in vars(module):
                    patch.setattr(module, name, Captured(vars(module)[name], graph))
        yield


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A benchmark that takes seconds, and a CUDA that is there."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    properties = SimpleNamespace(name="none", major=9, minor=0, total_memory=1)
    made_up = {
        "is_available": lambda: True,
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": lambda stream: nullcontext(),
        "synchronize": lambda: None,
        "CUDAGraph": Graph,
        "graph": capture,
        "Event": Event,
        "set_sync_debug_mode": lambda mode: None,
        "get_device_properties": lambda device: properties,
    }
    for name, value in made_up.items():
        monkeypatch.setattr(torch.cuda, name, value)
    sizes = {
        "DEVICE": torch.device("cpu"),
        "ROWS": (1,),
        "DTYPES": (torch.bfloat16,),
        "VOCABULARY": 512,
        "SMALL": 512,
        "COMPARED": ((2 * len(device_equality.KINDS), 300, torch.bfloat16),),
        "CHUNK": len(device_equality.KINDS),
        "SETTINGS": (Setting("top-k 5, top-p 0.9", top_k=5, top_p=0.9),),
        "READ": 1 << 10,
        # However busy the machine is.
        "BUDGET": 1e6,
        "REPEATS": 1,
        "ROUNDS": 1,
        "LAUNCHES": 1,
        # vLLM would be imported for it, and cannot interpret its kernel.
        "PEERS": {name: device_peers.PEERS[name] for name in ("torch", "flashinfer")},
        "graph_draws_the_same": partial(device_equality.graph_draws_the_same, rows=4),
        "sampler_waits_for_nothing": partial(device_equality.sampler_waits_for_nothing, rows=2, steps=3),
        "grammars_mask_the_same": partial(device_equality.grammars_mask_the_same, rows=2, steps=6),
        "drafts_are_judged_the_same": partial(device_equality.drafts_are_judged_the_same, rows=1),
    }
    for name, value in sizes.items():
        for module in (benchmark, device_draws, device_equality, device_timing):
            if name in vars(module):
                monkeypatch.setattr(module, name, value)
    return monkeypatch


def test_the_benchmark_runs(small: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    with np.errstate(all="ignore"):
        benchmark.main(["--output", str(tmp_path / "device.json")])
    report = json.loads((tmp_path / "device.json").read_text())
    assert [part["rows"] for part in report["equality"]] == [2 * len(device_equality.KINDS)]
    assert [point["setting"] for point in report["points"]] == ["greedy", "top-k 5, top-p 0.9"]
    assert [step["rows"] for step in report["steps"]] == [1]
    for part in (*report["equality"], *(report[name] for name in ("graph", "sampler", "grammars", "drafts"))):
        assert part["rows"] > 0 and part["different"] == 0
    for point in report["points"]:
        assert point["ours"] > 0 and point["host"] > 0 and point["in a graph"]
        assert point["peers"]["torch"] > 0 and "flashinfer" in point["peers"]["flashinfer"]
    said = capsys.readouterr().out
    assert "0 unlike the CPU's" in said and "one draw of" in said and "one step of" in said


def test_the_benchmark_fails_where_draws_differ(small: pytest.MonkeyPatch) -> None:
    launch = device.launch

    def wrong(*arguments: Any, **options: Any) -> Any:
        draw = launch(*arguments, **options)
        draw.tokens[:1] += 1
        return draw

    small.setattr(device, "launch", wrong)
    with np.errstate(all="ignore"):
        part = device_equality.equality(16, 300, torch.float32, device_timing.Clock(600.0))
    assert part["rows"] == 16 and part["different"] == 1
    report = {
        **{name: {"different": 0} for name in ("graph", "sampler", "grammars", "drafts")},
        "equality": [part],
        "steps": [{"rows": 1, "refused": 0, "in a graph": True}],
        "points": [{"in a graph": False}],
    }
    assert benchmark.faults_of(report) == [
        "1 rows of 300 tokens differ",
        "points that cannot be captured in a graph",
    ]


def test_nothing_is_begun_when_time_is_up(small: pytest.MonkeyPatch) -> None:
    with np.errstate(all="ignore"):
        report = benchmark.run(device_timing.Clock(0.0))
    assert report["steps"] == report["points"] == []
    assert report["left out"].startswith("from 1 rows of torch.bfloat16, greedy")
    assert [part["rows"] for part in report["equality"]] == [0]
