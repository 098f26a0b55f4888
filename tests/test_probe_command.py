"""`sortition probe`: what it prints and writes, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_llama import save_tiny_llama
from typer.testing import CliRunner

from sortition.benchmarks.probe.findings import Findings
from sortition.cli import app

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny"))


def probe(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["probe", *map(str, arguments)])


def test_it_says_what_it_found_and_keeps_it(folder: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("The name\n\nA list of numbers\n")
    output, page = tmp_path / "probe.json", tmp_path / "probe.html"
    asked = (
        "--condition",
        "rerun",
        "--condition",
        "process fresh",
        "--condition",
        "batch_size 2 and padding 3",
    )
    shared = ("--model", folder, "--prompts", prompts, "--steps", 3, "--dtype", "float32")
    done = probe(*shared, *asked, "--output", output, "--page", page)
    assert done.exit_code == 0, done.output
    assert "process fresh" in done.output
    findings = Findings.from_json(output.read_text())
    assert [each.text for each in findings.references] == ["The name", "A list of numbers"]
    rerun, fresh, together = findings.tested
    # The same machine and kernels: a fresh process gives the same bits.
    assert (rerun.bitwise, fresh.bitwise) == (fresh.bitwise, rerun.bitwise)
    assert rerun.bitwise is not None and rerun.bitwise.count == 0
    assert fresh.evidence.startswith("process ")
    assert together.evidence == "passes of 2 rows, 3 pad tokens or more beside each prompt"
    assert page.read_text().startswith("<!")
    assert list(tmp_path.glob("*.partial")) == []
    json.loads(output.read_text())


def test_what_was_asked_for_and_did_not_happen_is_inconclusive(folder: Path) -> None:
    done = probe("--model", folder, "--steps", 2, "--condition", "chunk 500")
    assert done.exit_code == 2, done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "no/such/folder"), "there is no folder no/such/folder"),
        (("--condition", "bach_size 3"), "there is no axis 'bach_size'"),
        (("--require", "beauty"), "--require is bitwise or tokens"),
    ],
)
def test_what_cannot_be_run_is_an_error(arguments: tuple[str, ...], message: str) -> None:
    done = probe(*arguments)
    assert done.exit_code == 3
    assert message in done.output
