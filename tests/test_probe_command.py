"""`sortition probe`: what it prints and writes, and its exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tiny_llama import save_tiny_llama
from typer.testing import CliRunner

from sortition.benchmarks.probe.answers import answer_parser
from sortition.benchmarks.probe.findings import Findings
from sortition.cli import app
from sortition.integrations.errors import InputError

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


def test_answers_may_be_all_that_matters(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, expected, output = (tmp_path / name for name in ("prompts.txt", "expected.txt", "probe.json"))
    prompts.write_text("The name\nA list of numbers\n")
    expected.write_text("yes\nyes\n")
    (tmp_path / "judges.py").write_text("def always(text):\n    return 'yes'\n")
    monkeypatch.chdir(tmp_path)
    shared = ("--model", folder, "--prompts", prompts, "--steps", 2, "--condition", "batch_size 2")
    for answer, deviation in (("judges:always", 0.0), ("(no) such words", None)):
        asked = ("--answer", answer, "--require", "answers", "--output", output)
        done = probe(*shared, *asked, *(("--expected", expected) if deviation is not None else ()))
        assert done.exit_code == 0, done.output
        measured = Findings.from_json(output.read_text()).agreement
        assert measured is not None and measured.tar_answers is not None
        assert (measured.runs, measured.tar_answers.count, measured.std_accuracy) == (2, 2, deviation)


def test_time_that_runs_out_is_said(folder: Path, tmp_path: Path) -> None:
    output, junit = tmp_path / "probe.json", tmp_path / "probe.xml"
    done = probe(*("--model", folder, "--steps", 2, "--minutes", 1e-9, "--output", output, "--junit", junit))
    assert done.exit_code == 2, done.output
    assert "not run, out of time: rerun, batch_size 2, " in done.output
    assert "out of time: the same command goes on from here" in done.output
    assert "not run: out of time" in junit.read_text()
    assert (tmp_path / "probe.json.partial").exists()
    assert Findings.from_json(output.read_text()).stopped == "out of time"


def test_nothing_is_lost_where_findings_cannot_be_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, kept = tmp_path / "probe.json", tmp_path / "probe.json.partial"
    asked = ("--model", folder, "--steps", 2, "--condition", "rerun", "--output", output)
    problems: list[BaseException] = [OSError(28, "No space left on device"), KeyboardInterrupt()]
    write = Path.write_text

    def fails(path: Path, *arguments: Any, **options: Any) -> int:
        if path == output and problems:
            raise problems.pop(0)
        return write(path, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", fails)
    done = probe(*asked)
    assert (done.exit_code, kept.exists()) == (3, True)
    assert f"error: cannot write {output}: No space left on device" in done.output
    done = probe(*asked)
    assert (done.exit_code, kept.exists()) == (130, True)
    assert "interrupted: the same command goes on from here" in done.output
    done = probe(*asked)
    assert (done.exit_code, kept.exists()) == (0, False)
    assert Findings.from_json(output.read_text()).tested[0].status == "exercised"


@pytest.mark.slow
def test_an_interrupted_probe_keeps_its_results(folder: Path, tmp_path: Path) -> None:
    """A real process and real signals: Ctrl-C, then the same command again."""
    output, kept = tmp_path / "probe.json", tmp_path / "probe.json.partial"
    arguments = ("probe", "--model", folder, "--steps", 20, "--output", output, "--dtype", "float32")
    command = [sys.executable, "-m", "sortition", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    started = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    while not kept.exists() or kept.read_text().count("\n") < 3:
        assert started.poll() is None
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    _, said = started.communicate()
    assert started.returncode == 130, said
    assert "interrupted: the same command goes on from here" in said
    first = Findings.from_json(output.read_text())
    done = [each.name for each in first.tested if each.status == "exercised"]
    assert first.stopped == "interrupted" and len(done) >= 2
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode in (0, 1), again.stderr
    second = Findings.from_json(output.read_text())
    assert second.stopped == "" and not kept.exists()
    for one, two in zip(first.tested, second.tested, strict=True):
        # Seconds are measured anew, unless they come from what was kept.
        assert one.status == "not run" or one == two


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "no/such/folder"), "there is no folder no/such/folder"),
        (("--condition", "bach_size 3"), "there is no axis 'bach_size'"),
        (("--condition", "batch_size"), "--condition: batch_size takes a whole number of at least 1"),
        (("--condition", "rerun", "--condition", "rerun"), "rerun is there twice"),
        (("--require", "beauty"), "--require is bitwise, tokens, answers, not 'beauty'"),
        (("--require", "answers"), "give --answer"),
        (("--answer", "(unclosed"), "is no regular expression"),
        (("--answer", "json:no_such_function"), "cannot find the function json:no_such_function"),
        (("--engine", "warp"), "--engine is hf or vllm, not 'warp'"),
        (("--sampler", "--base-url", "http://localhost"), "--sampler and --base-url name different things"),
        (("--dtype", "int8"), "--dtype is bfloat16, float16, float32, not 'int8'"),
        (("--prompts", "no/such/file"), "cannot read no/such/file: No such file"),
        (("--output", "no/such/folder/probe.json"), "there is no folder no/such/folder"),
        (("--output", "/proc/probe.json"), "cannot write /proc/probe.json: "),
        (("--page", "."), "cannot write .: it is a folder"),
        (("--served-model", "x"), "--served-model is for --base-url"),
        (("--sampler", "--dtype", "float32"), "--dtype is for a model that is loaded here"),
        (("--sampler", "--prompts", "x"), "--prompts is for models"),
        (("--engine", "vllm", "--attention", "eager"), "--attention is for a model of transformers"),
        (("--base-url", "http://localhost:1", "--dtype", "float16"), "--dtype is for a model that is loaded"),
        (("--condition", "rerun", "--pairs"), "--pairs is for the plan, not beside --condition"),
        (("--condition", "rerun", "--batch-size", "3"), "--batch-size is for the plan"),
        (("--steps", "0"), "Invalid value for '--steps'"),
        (("--nonsense",), "No such option: --nonsense"),
    ],
)
def test_what_cannot_be_run_is_an_error(arguments: tuple[str, ...], message: str) -> None:
    """At once: before a model is loaded."""
    done = probe(*arguments)
    assert done.exit_code == 3
    assert message in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\n  \n", "has no lines with text"), (b"\xff\xfe\x00", "is not UTF-8 text")],
)
def test_prompts_that_are_none(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(content)
    done = probe("--prompts", path)
    assert done.exit_code == 3 and message in done.output


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    done = probe("--model", tmp_path)
    assert done.exit_code == 3
    assert f"\nerror: there is no model in {tmp_path}: " in done.output
    assert "Traceback" not in done.output


def test_answers_that_fail_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_judges.py").write_text("def fails(text):\n    return 1 / 0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InputError, match="failing_judges:fails fails on the completion 'x': ZeroDivisionError"
    ):
        answer_parser("failing_judges:fails")("x")
    assert answer_parser(r"is (\d+)")("it is 42.") == "42"
    assert answer_parser(r"\d+")("it is 42.") == "42"
    assert answer_parser(r"\d+")("nothing") is None
