"""Scripts that show a difference again: they run alone, and tell the truth."""

from __future__ import annotations

import ast
import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from probe_findings import HOSTILE, findings
from probe_server import planted

from sortition.benchmarks.probe import findings as kinds
from sortition.benchmarks.probe.conditions import parse
from sortition.benchmarks.probe.findings import Comparison, Findings
from sortition.benchmarks.probe.options import Options
from sortition.benchmarks.probe.report.repro import script
from sortition.benchmarks.probe.study import study

ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "transformers": {
        "transformers": "5",
        "folder": "/no/such 'folder'",
        "dtype": "bfloat16",
        "attention": "sdpa",
        "threads": 1,
    },
    "vllm": {"vllm": "0.32", "model": "some model", "options": {"dtype": "bfloat16"}},
    "completions": {
        "server": "http://localhost:8000/v1",
        "model": "m",
        "interface": "completions",
        "fields": ["ignore_eos"],
    },
    "chat": {"server": "http://localhost:8000/v1", "model": "m", "interface": "chat", "fields": []},
}


@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_scripts_are_python_whatever_the_prompt(kind: str) -> None:
    text = script(dataclasses.replace(findings(target=HOSTILE), environment=ENVIRONMENTS[kind]))
    assert text is not None
    ast.parse(text)
    assert HOSTILE not in text.split('"""')[1]
    assert repr(f"Prompt 0 {HOSTILE}") in text


def test_the_smallest_pair_is_shown() -> None:
    """Prompt 0 changes its text soonest, and two rows are the fewest."""
    text = script(dataclasses.replace(findings(), environment=ENVIRONMENTS["transformers"]))
    assert text is not None
    assert "batch_size 2: another token than alone at token 7." in text
    assert "scores(2, row=0)" in text
    assert "TOKENS = [0, 1, 2, 3, 4, 5]" in text


def test_what_cannot_be_shown_has_no_script() -> None:
    probe = findings()
    assert script(probe) is None
    environment = ENVIRONMENTS["transformers"]
    assert script(dataclasses.replace(probe, environment=environment, tested=probe.tested[:1])) is None
    given = tuple(dataclasses.replace(each, given={"dtype": "float32"}) for each in probe.tested)
    assert script(dataclasses.replace(probe, environment=environment, tested=given)) is None


def only(found: Findings, tested: kinds.Tested, compared: Comparison) -> Findings:
    """Findings with one pair, which is said to differ, whether it does or not."""
    compared = dataclasses.replace(compared, first_difference=compared.first_difference or 0)
    return dataclasses.replace(found, tested=(dataclasses.replace(tested, comparisons=(compared,)),))


def run(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "repro.py"
    path.write_text(text)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, str(path)],
        env={**environment, "HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_scripts_of_transformers_tell_the_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a batch, padded, or in pieces: a script differs where the probe said so, and not otherwise.

    The model's folder is named as seen from here, and scripts run in another one.
    """
    pytest.importorskip("transformers")
    from tiny_llama import save_tiny_llama

    from sortition.benchmarks.probe.transformers_target import TransformersTarget

    save_tiny_llama(tmp_path / "tiny")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    target = TransformersTarget.load(Path("tiny"), "float32")
    assert target.name == "tiny"
    conditions = [parse(name) for name in ("batch_size 3 and position last", "padding 5", "chunk 2")]
    prompts = target.prompts(["The capital of France is not a city", "Say it once more:"])
    found = study(target, prompts, conditions, Options(steps=4, attribute=False))
    assert torch.get_num_threads() == found.environment["threads"]
    for tested in found.tested:
        compared = tested.comparisons[0]
        text = script(only(found, tested, compared))
        assert text is not None
        done = run(text, elsewhere)
        assert done.returncode == (compared.first_difference is not None), (tested.name, done.stderr[-3000:])
        assert "greatest difference of two scores: " in done.stdout


@pytest.mark.parametrize(("kind", "interface"), [("vllm", "completions"), ("chat", "chat")])
@pytest.mark.parametrize("differs", [True, False])
def test_scripts_of_servers_tell_the_truth(kind: str, interface: str, differs: bool, tmp_path: Path) -> None:
    """One request alone, then two at the same time."""
    with planted(kind) as server:
        server.noisy = True
        server.steady = 1 if differs else 3
        environment = {**ENVIRONMENTS[interface], "server": server.url, "model": "planted"}
        text = script(dataclasses.replace(findings(), environment=environment))
        assert text is not None
        done = run(text, tmp_path)
        assert done.returncode == differs, done.stderr
        assert ("logprobs, alone: " in done.stdout) == differs
