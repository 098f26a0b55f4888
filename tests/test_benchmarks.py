"""The benchmarks run, and say what they measured."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from rich.console import Console

from sortition.benchmarks import drafting, heap, masks, samplers, timing
from sortition.benchmarks.mask_outcomes import keywords
from sortition.benchmarks.masks import read_cases
from sortition.benchmarks.peer_environment import newest
from sortition.benchmarks.sampler_peers import Peer, Setting, installed
from sortition.integrations.errors import InputError

# Of the peers' own.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CASES: list[dict[str, Any]] = [
    {
        "name": "object",
        "schema": {
            "type": "object",
            "properties": {"a": {"type": "boolean"}},
            "required": ["a"],
            "additionalProperties": False,
        },
        "tests": [{"data": {"a": True}, "valid": True}, {"data": {"a": 1}, "valid": False}],
    },
    {"name": "enum", "schema": {"enum": ["tr", 1]}, "tests": [{"data": 1, "valid": True}]},
    {
        "name": "too much",
        "schema": {"type": "array", "uniqueItems": True},
        "tests": [{"data": [1, 1], "valid": False}],
    },
]


def write_cases(path: Path, cases: list[dict[str, Any]]) -> Path:
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(case) + "\n" for case in cases)
    return path


def sortition(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sortition", *arguments]
    return subprocess.run(
        command, env={**os.environ, "COLUMNS": "200"}, capture_output=True, text=True, check=False
    )


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
    assert median(seconds["slow"]) > 20 * median(seconds["fast"]) > 0
    assert len(seconds["fast"]) > len(seconds["slow"]) >= 3


def test_percentiles() -> None:
    assert timing.percentiles([1.0, 2.0, 3.0, 10.0], (50, 90)) == {
        "p50": 2.5,
        "p90": 7.9,
        "mean": 4,
        "max": 10,
    }
    assert timing.percentiles([], (50,)) == {"p50": None, "mean": None, "max": None}


def test_a_process_is_pinned_to_one_core() -> None:
    code = "import os; from sortition.benchmarks.timing import pin; print(pin(), os.sched_getaffinity(0))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    core, cores = said.split(maxsplit=1)
    assert cores.strip() == "{" + core + "}"


def test_masks_reads_a_sample(tmp_path: Path) -> None:
    path = write_cases(tmp_path / "cases.jsonl.gz", [{**CASES[0], "name": str(at)} for at in range(10)])
    assert len(read_cases(path, None)) == 10
    assert read_cases(path, 3) == read_cases(path, 3)
    write_cases(path, [{"name": "no tests", "schema": {}}])
    with pytest.raises(InputError, match="no JSON lines of schemas with their tests: KeyError"):
        read_cases(path, None)
    path.write_text("no gzip")
    with pytest.raises(InputError, match="BadGzipFile"):
        read_cases(path, None)


def test_the_cases_of_its_own_are_what_jsonschema_says() -> None:
    cases = read_cases(masks.CASES, None)
    assert len(cases) == 20 == len({case["name"] for case in cases})
    for case in cases:
        jsonschema.Draft202012Validator.check_schema(case["schema"])
        judge = jsonschema.Draft202012Validator(
            case["schema"], format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
        assert {test["valid"] for test in case["tests"]} == {True, False}
        for test in case["tests"]:
            assert judge.is_valid(test["data"]) == test["valid"], (case["name"], test)


def test_keywords_are_those_of_all_schemas_inside() -> None:
    schema = {
        "properties": {"pattern": {"items": [{"minLength": 1}], "additionalProperties": {"not": {}}}},
        "enum": [{"maxLength": 3}],
        "required": ["format"],
        "title": "contains",
    }
    expected = {"properties", "items", "minLength", "additionalProperties", "not", "enum", "required"}
    assert keywords(schema) == expected


def test_the_heap_is_that_of_what_is_held() -> None:
    if heap.held() is None:
        pytest.skip("no glibc 2.33")
    before = heap.held()
    kept = np.ones(3_000_000)
    after = heap.held()
    assert before is not None and after is not None
    assert after - before == pytest.approx(kept.nbytes, rel=0.05)


def test_masks_are_measured_side_by_side(tmp_path: Path) -> None:
    """The command, in a process of its own, with a vocabulary of bytes and a few words."""
    cases = write_cases(tmp_path / "cases.jsonl.gz", CASES)
    tokens = [*(bytes([byte]) for byte in range(256)), b'"a', b'":', b"tr", b"true", b"ru", b"rue"]
    ranks = tmp_path / "bytes.tiktoken"
    ranks.write_text("".join(f"{b64encode(token).decode()} {at}\n" for at, token in enumerate(tokens)))
    output, plots = tmp_path / "masks.json", tmp_path / "plots"
    command = ["bench", "masks", "--peers", "installed", "--cases", str(cases), "--tokenizer", str(ranks)]
    done = sortition(*command, "--output", str(output), "--plots", str(plots))
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(output.read_text())
    assert report["schemas"] == report["schemas wanted"] == len(CASES)
    assert {"sortition", "numpy"} <= set(report["versions"])
    ours = report["engines"]["sortition"]
    assert (ours["compiled"], ours["passed"]) == (2, 2)
    # Which items were there is more than a table can hold.
    assert ours["refused"] == {"uniqueItems": 1}
    assert ours["wrongly accepted"] == ours["wrongly refused"] == []
    assert report["keywords"]["type"]["schemas"] == 2
    assert report["keywords"]["uniqueItems"]["engines"]["sortition"]["compiled"] == 0
    for figure in ("first mask us", "mask us", "mask + advance us", "heap KiB", "table KiB"):
        assert 0 <= ours[figure]["p50"] <= ours[figure]["max"], figure
    for text in ("3 schemas, one thread", "by keyword", "uniqueItems", "passed", "heap KiB p50"):
        assert text in done.stdout
    assert (plots / "masks.html").is_file() and (plots / "masks-step.svg").is_file()


def test_the_newest_peers_come_into_an_environment_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    notes: list[str] = []
    # One that was interrupted on the way is made again.
    broken = newest(["numpy"], notes.append, tmp_path).parents[1]
    (broken / "made").unlink()
    shutil.rmtree(next(broken.glob("lib/python*/site-packages/pip/_internal")))
    # It is here already, which is seen there, and it is not asked for anywhere.
    python = newest(["numpy"], notes.append, tmp_path)
    assert tmp_path in python.parents and "numpy" in notes[0]
    code = "import sys, numpy; print(sys.prefix, numpy.__file__)"
    said = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith(str(tmp_path)) and said.strip().endswith(str(np.__file__))
    with pytest.raises(InputError, match=r"--peers installed takes those here: .*nobody"):
        newest(["sortition-peer-of-nobody"], notes.append, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["samplers", "--peers", "old"], "--peers is newest or installed, not 'old'"),
        (["samplers", "--output", "nowhere/at/all.json"], "there is no folder"),
        (["drafting", "--output", "nowhere/at/all.json"], "there is no folder"),
        (["drafting", "--output", "/proc/report.json"], "cannot write /proc/report.json: "),
        (["samplers", "--plots", __file__], "is no folder"),
        (["masks", "--cases", "no.gz"], "there is no file no.gz"),
        (["masks", "--cases", __file__, "--tokenizer", "no.model"], "there is no file no.model"),
        (["masks", "--cases", __file__, "--tokenizer", __file__], "has no JSON lines"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_the_bench_refuses_before_it_measures(arguments: list[str], message: str) -> None:
    done = sortition("bench", *arguments)
    assert done.returncode == 2
    assert message in done.stderr


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
