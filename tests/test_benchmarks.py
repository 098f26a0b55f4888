"""The benchmarks run, and say what they measured."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from sortition.benchmarks import drafting, samplers, timing
from sortition.benchmarks.masks import read_cases
from sortition.benchmarks.sampler_peers import Peer, Setting, installed

# Of the peers' own.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SETTING = Setting("top-k 5, top-p 0.9, min-p 0.01", top_k=5, top_p=0.9, min_p=0.01)


def test_samplers_are_measured_side_by_side() -> None:
    peers = installed()
    report = samplers.run(peers, settings=[SETTING], rows=[2], vocabulary=512, rounds=1)
    (point,) = report["points"]
    assert set(point["ms per row"]) == {peer.name for peer in peers}
    assert all(value > 0 for value in point["ms per row"].values())
    console = Console(record=True, width=120)
    samplers.show(report, console)
    assert SETTING.name in console.export_text()
    json.dumps(report)


@pytest.mark.parametrize("peer", installed(), ids=lambda peer: peer.name)
def test_a_peer_draws_what_it_should(peer: Peer) -> None:
    logits = torch.tensor([[0.0, 9.0, 8.0, 1.0], [5.0, 0.0, 0.0, 0.0]])
    call = peer.prepare(Setting("top-k 2", top_k=2), 2)
    assert call is not None
    before = logits.clone()
    drawn = {tuple(call(logits).tolist()) for _ in range(50)}
    assert {first for first, _ in drawn} <= {1, 2}
    assert torch.equal(logits, before)


def test_drafters_are_measured_side_by_side() -> None:
    """On the embedded model, a few tokens of each kind of text."""
    pytest.importorskip("transformers")
    try:
        contenders = drafting.Contenders(layers=2)
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    chosen = [replace(task, prompts=["A:"], tokens=4) for task in drafting.tasks(contenders)]
    report = drafting.run(contenders, chosen, rounds=1)
    points = {(point["task"], point["contender"]): point for point in report["points"]}
    for (_, contender), point in points.items():
        assert 0 < point["tokens"] <= 4 and point["forwards"] > 0
        if contender.startswith("so.generate"):
            assert point["same text as without drafts"]
    grammar = points[chosen[0].name, "so.generate, grammar"]
    assert grammar["drafted"] > 0 and 0 <= grammar["acceptance"] <= 1
    assert grammar["forwards"] <= grammar["tokens"]
    console = Console(record=True, width=140)
    drafting.show(report, console)
    assert "so.generate, grammar" in console.export_text()
    json.dumps(report)


def test_interleaved_tells_fast_from_slow() -> None:
    seconds = timing.interleaved({"fast": lambda: sum(range(100)), "slow": lambda: sum(range(100_000))}, 3)
    assert seconds["slow"] > 20 * seconds["fast"] > 0


def test_masks_reads_a_sample(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps({"name": str(number)}) + "\n" for number in range(10))
    assert len(read_cases(path, None)) == 10
    assert read_cases(path, 3) == read_cases(path, 3)


def test_a_step_of_kernels_is_counted() -> None:
    pytest.importorskip("triton")
    from sortition.benchmarks import footprint

    report = footprint.run(width=1024, rows=(1, 3), grammars=(1, 2))
    assert [(each["rows"], each["grammars"]) for each in report] == [(1, 1), (1, 2), (3, 1), (3, 2)]
    # However many rows and grammars there are.
    assert {(each["kernels"], each["operators"]) for each in report} == {(10, report[0]["operators"])}
    one, two = report[2]["tables"], report[3]["tables"]
    assert one < two
    console = Console(record=True, width=120)
    footprint.show(report, console)
    assert "operators" in console.export_text()
    json.dumps(report)
