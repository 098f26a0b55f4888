"""The overhead tool inside a real vLLM engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_llama import save_tiny_llama
from vllm_reports import LONGEST, TESTS, environment, needs_vllm

from sortition.benchmarks.overhead import parts

needs_vllm()

STRUCTURES = ("none", "ours", "xgrammar", "guidance")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("overhead")
    output = folder / "report.json"
    command = [
        sys.executable,
        str(TESTS / "vllm_overhead.py"),
        str(save_tiny_llama(folder / "tiny")),
        str(output),
    ]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=LONGEST, check=False
    )
    assert done.returncode == 0, done.stderr[-5000:]
    result: dict[str, Any] = json.loads(output.read_text())
    return result


def decode(report: dict[str, Any], structure: str) -> dict[str, Any]:
    (found,) = (each for each in report["loads"][structure]["steps"] if each["kind"] == "decode")
    result: dict[str, Any] = found
    return result


def test_what_is_measured(report: dict[str, Any]) -> None:
    assert report["engine"]["runner"] == "CPUModelRunner"
    assert set(report["structures"]) >= set(STRUCTURES)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_next_to_nothing_is_unexplained(report: dict[str, Any], structure: str) -> None:
    found = decode(report, structure)
    assert 0 <= found["unexplained"] <= 0.05 * found["total"]


def test_kinds_of_steps(report: dict[str, Any]) -> None:
    loads = report["loads"]
    # The late request is read, three steps on, while the others write.
    assert loads["none"]["kinds"] == ["prefill", "decode", "decode", "mixed", *["decode"] * 7]
    assert loads["none"]["rows"] == [2, 2, 2, 3, 3, 3, 3, 3, 1, 1, 1]
    assert loads["ours"]["kinds"] == ["prefill", *["decode"] * 7]


def test_parts_are_where_they_belong(report: dict[str, Any]) -> None:
    milliseconds = {structure: decode(report, structure)["parts"] for structure in STRUCTURES}
    for found in milliseconds.values():
        assert set(found) >= set(parts.ORDER) - {parts.MASK_APPLY}
        assert found[parts.FORWARD] > found[parts.LOGITS] > 0
        assert 5 <= found["processor: Busy"] < 7
    # Tiny steps that do nothing take microseconds.
    for part, those in {
        parts.MASK_FILL: {"xgrammar", "guidance"},
        parts.PENALTIES: {"xgrammar"},
        parts.FILTERS: {"ours"},
        parts.LOGPROBS: {"none"},
        "processor: Processor": {"ours"},
    }.items():
        most = max(milliseconds, key=lambda name: milliseconds[name][part])
        assert most in those or all(milliseconds[name][part] > 0.1 for name in those), part
    assert {name for name, found in milliseconds.items() if parts.MASK_APPLY in found} == {
        "xgrammar",
        "guidance",
    }


@pytest.mark.parametrize("structure", ["ours", "xgrammar", "guidance"])
def test_texts_are_held_to_the_schema(report: dict[str, Any], structure: str) -> None:
    assert report["loads"][structure]["text"].lstrip().startswith("{")


@pytest.mark.parametrize("structure", STRUCTURES)
def test_parts_can_be_left_out(report: dict[str, Any], structure: str) -> None:
    found = report["loads"][structure]
    # Their sum over a step has what cannot be left out, such as telling processors who has come.
    assert found["left out"]["processor: Busy"] < 1


def test_tokens_are_those_of_the_script(report: dict[str, Any]) -> None:
    assert report["forced"]


def test_a_planted_processor_is_found(report: dict[str, Any]) -> None:
    busy = report["busy"]
    assert busy["verdict"] == "exposed"
    # It ends late where the machine is shared.
    assert 4.5 < busy["exposed ms"] < 7


def test_a_draw_left_out_leaves_the_filters_in(report: dict[str, Any]) -> None:
    """In vLLM they are inside of the draw."""
    whole, without = decode(report, "ours")["parts"], report["loads"]["ours"]["no draw"]
    assert without[parts.FILTERS] > 0.3 * whole[parts.FILTERS]
    assert without[parts.DRAW] < whole[parts.DRAW]


def test_the_second_runner_is_refused_by_name(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sortition", "overhead", "--engine", "vllm", "--model", str(tmp_path)]
    done = subprocess.run(
        command,
        env={**environment(), "VLLM_USE_V2_MODEL_RUNNER": "1"},
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert done.returncode == 2
    assert "error: vLLM's second model runner is not measured" in done.stderr
