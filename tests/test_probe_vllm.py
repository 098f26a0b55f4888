"""A real vLLM engine as a target of the probe: conditions take effect, or say that they did not."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from probe_findings import findings
from probe_vllm import CONDITIONS, STEPS
from tiny_llama import save_tiny_llama
from vllm_reports import LONGEST, TESTS, environment, needs_vllm

from sortition.benchmarks.probe.report.repro import script

needs_vllm()


def probe(folder: Path, which: str) -> dict[str, Any]:
    path = folder / "report.json"
    command = [
        sys.executable,
        str(TESTS / "probe_vllm.py"),
        str(save_tiny_llama(folder / "tiny")),
        str(path),
        which,
    ]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=LONGEST, check=False
    )
    assert done.returncode == 0, done.stderr[-5000:]
    result: dict[str, Any] = json.loads(path.read_text())
    return result


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return probe(tmp_path_factory.mktemp("one"), "one")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return probe(tmp_path_factory.mktemp("others"), "others")


SEEN = {
    "rerun": "18 of 18 forward passes had 1 rows",
    "batch_size 2": "18 of 18 forward passes had 2 rows",
    "batch_size 8 and position last": "18 of 18 forward passes had 8 rows",
    "batch_size 8 and neighbours longer": "forward passes had 8 rows",
    "chunk 16": "prompts were read in up to ",
    "prefix_cache warm": "tokens in the cache",
    "prefill": "scored in one pass",
}
SEEN_ELSEWHERE = {
    "drafts 3": " stood",
    "process fresh": "an engine of its own, in float32",
    "dtype bfloat16": "an engine of its own, in bfloat16",
}


@pytest.mark.parametrize("name", SEEN)
def test_conditions_take_effect_and_prove_it(report: dict[str, Any], name: str) -> None:
    assert report[name]["took effect"], report[name]["seen"]
    assert SEEN[name] in report[name]["seen"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEN_ELSEWHERE)
def test_engines_of_their_own(others: dict[str, Any], name: str) -> None:
    assert others[name]["took effect"], others[name]["seen"]
    assert SEEN_ELSEWHERE[name] in others[name]["seen"]
    if name == "dtype bfloat16":
        # What has to differ does, so that equality elsewhere means something.
        assert not any(others[name]["equal"])
        assert others[name]["largest"] > 0
    if name == "process fresh":
        assert others[name]["equal"] == [True] * 3


@pytest.mark.parametrize(("name", "why"), [("threads 2", "threads"), ("logprobs 5", "all runs ask for 5")])
def test_what_it_cannot_do_is_said(report: dict[str, Any], name: str, why: str) -> None:
    assert why in report[name]["not possible"]


@pytest.mark.parametrize(
    "name", ["rerun", "logprobs 9", "rerun, given seed 7", "rerun, given draw 7", "rerun, given batch_size 8"]
)
def test_the_same_again_is_the_same(report: dict[str, Any], name: str) -> None:
    assert report[name]["equal"] == [True] * 3


def test_tokens_are_led(report: dict[str, Any]) -> None:
    """All go on with the reference's tokens, whatever they would have said, where they are not drawn."""
    for name in CONDITIONS:
        if "tokens" in report[name] and "seed" not in name and "draw" not in name:
            assert report[name]["tokens"] == report["reference"], name
    assert {len(tokens) for name in CONDITIONS for tokens in report[name].get("tokens", [])} == {STEPS}


def test_our_draw_goes_by_the_seed_and_not_by_the_batch(report: dict[str, Any]) -> None:
    """Where the scores are the same bits, so are the tokens that are drawn from them."""
    assert report["draw 7"]["tokens"] != report["reference"]
    batch = report["batch_size 8, given draw 7"]
    assert all(not flips for equal, flips in zip(batch["equal"], batch["flips"], strict=True) if equal)


@pytest.mark.slow
def test_the_script_tells_the_truth(report: dict[str, Any], tmp_path: Path) -> None:
    """It differs where the probe of the same prompt did, and not otherwise."""
    made_up = findings()
    first = dataclasses.replace(made_up.references[0], text="Say:")
    described = {**report["environment"], "model": str(save_tiny_llama(tmp_path / "tiny"))}
    references = (first, *made_up.references[1:])
    changes = {"references": references, "tested": made_up.tested[:2], "environment": described}
    text = script(dataclasses.replace(made_up, **changes))
    assert text is not None
    path = tmp_path / "repro.py"
    path.write_text(text)
    command = [sys.executable, str(path)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=LONGEST, check=False
    )
    assert done.returncode == (not report["batch_size 2"]["equal"][0]), done.stderr[-3000:]


def test_the_target_describes_itself(report: dict[str, Any]) -> None:
    described = report["environment"]
    assert described["device"] == "cpu"
    assert described["options"]["max_model_len"] == 512
    assert report["text"] == "Say:"
