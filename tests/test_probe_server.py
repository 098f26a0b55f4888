"""Servers as targets of the probe: what is planted is found, and what cannot be seen is not claimed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from probe_server import NOISE, Planted, planted
from typer.testing import CliRunner

from sortition import cli
from sortition.benchmarks.probe.findings import Findings
from sortition.benchmarks.probe.measures import compare, digests
from sortition.benchmarks.probe.openai_target import OpenAITarget
from sortition.benchmarks.probe.target import Condition, NotPossible, Outcome
from sortition.integrations import openai_server
from sortition.integrations.errors import InputError

TEXTS = ("abc", "defgh", "a")
STEPS = 6


@pytest.fixture(autouse=True)
def _local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_server, "PAUSES", ())
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture
def server() -> Iterator[Planted]:
    with planted() as each:
        yield each


def run(target: OpenAITarget, *varies: tuple[str, int | str], texts: tuple[str, ...] = TEXTS) -> Outcome:
    return target.run(target.prompts(texts), Condition(tuple(varies)), STEPS)


def run_batch(server: Planted, target: OpenAITarget, *varies: tuple[str, int | str]) -> Outcome:
    """Four requests at a time, which the server works on together."""
    server.company = threading.Barrier(4)
    outcome = run(target, ("batch_size", 4), *varies)
    server.company = threading.Barrier(1)
    return outcome


def classes(*outcomes: Outcome) -> list[int]:
    """Numbers for outcomes, the same for those with equal bits."""
    seen = [tuple(digests(run) for run in outcome.runs) for outcome in outcomes]
    return [seen.index(each) for each in seen]


@pytest.mark.parametrize(
    ("kind", "axes"),
    [
        ("vllm", {"logprobs", "prefill", "draw"}),
        ("strict", {"logprobs"}),
        ("chat", {"logprobs"}),
        ("silent", set()),
    ],
)
def test_a_server_is_asked_what_it_can(kind: str, axes: set[str]) -> None:
    with planted(kind) as server:
        target = OpenAITarget(server.url)
        assert target.axes == axes | {"rerun", "batch_size", "neighbours", "seed", "prefix_cache"}
        assert target.describe()["log-probabilities"] == (kind != "silent")
        first, again = run(target), run(target, ("rerun", True))
        assert classes(first, again) == [0, 0]
        for outcome in (first, again):
            assert [len(each.tokens) for each in outcome.runs] == [STEPS] * len(TEXTS)
            assert {each.scores.shape[1] for each in outcome.runs} == {0 if kind == "silent" else 5}
        assert target.text(first.runs[0].tokens) == target.text(again.runs[0].tokens)
        assert set(target.text(first.runs[0].tokens)) <= set("abcdefgh")


def test_an_even_server_is_not_accused(server: Planted) -> None:
    target = OpenAITarget(server.url)
    batches = [run_batch(server, target), run_batch(server, target, ("neighbours", "other"))]
    assert classes(run(target), *batches) == [0, 0, 0]
    assert all(batch.evidence.took_effect for batch in batches)


def test_what_the_batch_changes_is_found(server: Planted) -> None:
    """Requests alone are one class; batches, and the prompt's own scores, the other."""
    server.noisy = True
    target = OpenAITarget(server.url)
    alone, batch = run(target), run_batch(server, target)
    others = [run_batch(server, target, ("neighbours", "longer")), run(target, ("prefill", True))]
    assert classes(alone, batch, *others) == [0, 1, 1, 1]
    found = compare(0, alone.runs[0], batch.runs[0])
    assert (found.first_difference, found.first_flip, found.max_abs) == (0, None, NOISE)
    assert batch.evidence.seen == "tokens of 4 to 4 of 4 requests came at the same time"


def test_another_token_is_found(server: Planted) -> None:
    server.flipping = True
    target = OpenAITarget(server.url)
    alone, batch = run(target), run_batch(server, target)
    found = compare(0, alone.runs[0], batch.runs[0])
    assert (found.first_difference, found.first_flip, found.steps) == (3, 3, 4)
    assert target.text(alone.runs[0].tokens)[:3] == target.text(batch.runs[0].tokens)[:3]
    assert target.text(alone.runs[0].tokens) != target.text(batch.runs[0].tokens)


def test_a_queue_is_no_batch(server: Planted) -> None:
    """A server that works on one request after the other is not said to have been tested with batches."""
    server.slots = threading.Semaphore(1)
    outcome = run(OpenAITarget(server.url), ("batch_size", 4))
    assert not outcome.evidence.took_effect
    assert outcome.evidence.seen == "tokens of 1 to 1 of 4 requests came at the same time"


def test_a_warm_cache_has_to_be_seen(server: Planted) -> None:
    target = OpenAITarget(server.url)
    warm = run(target, ("prefix_cache", "warm"))
    assert warm.evidence.took_effect
    assert warm.evidence.seen == "3 prompts had up to 5 tokens in the server's cache"
    server.tells_cache = False
    silent = run(target, ("prefix_cache", "warm"))
    assert not silent.evidence.took_effect
    assert "does not say" in silent.evidence.seen


def test_seeds_and_numbers_of_scores(server: Planted) -> None:
    target = OpenAITarget(server.url)
    alone, seeded = run(target), run(target, ("seed", 1))
    assert classes(alone, seeded, run(target, ("seed", 1)), run(target, ("logprobs", 7))) == [0, 1, 1, 0]


def test_what_a_server_cannot_do_is_not_exercised(server: Planted) -> None:
    target = OpenAITarget(server.url)
    with pytest.raises(NotPossible, match="not with this server: padding, threads"):
        run(target, ("padding", 1), ("threads", 2))
    with pytest.raises(NotPossible, match="the server refuses: HTTP 400: sortition: exactly one"):
        run(target, ("draw", 7))
    with pytest.raises(NotPossible, match="all runs ask for 5"):
        run(target, ("logprobs", 5))
    with pytest.raises(ValueError, match="cannot be told"):
        target.run(target.prompts(TEXTS), Condition(), STEPS, [[0] * STEPS] * 3)


@pytest.mark.parametrize(
    ("url", "model", "message"),
    [
        (
            "localhost:8000",
            None,
            "base_url is the URL of a server, http://... or https:",
        ),
        ("http://me:secret@127.0.0.1/v1", None, "no name and password in the URL"),
        ("http://127.0.0.1:9/v1", None, "no answer from http://127.0.0.1:9/v1: .*refused"),
        ("{url}/more", None, "the server names no model"),
        ("{url}", "another", "HTTP 404: no such model; a base URL mostly ends in /v1"),
    ],
)
def test_what_is_wrong_is_said(server: Planted, url: str, model: str | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        OpenAITarget(url.format(url=server.url), model)


def test_a_server_that_falls_silent(server: Planted) -> None:
    target = OpenAITarget(server.url, patience=0.3)
    server.silence = 0.6
    with pytest.raises(ConnectionError, match=f"no answer from {server.url}: timed out"):
        run(target, texts=TEXTS[:1])


def test_the_command_probes_a_server(server: Planted, tmp_path: Path) -> None:
    prompts, page, repro = (tmp_path / name for name in ("prompts.txt", "page.html", "repro.py"))
    prompts.write_text("\n".join(TEXTS))
    options = f"--base-url {server.url} --prompts {prompts} --steps 4 --page {page} --repro {repro}".split()
    even = ["--condition", "rerun", "--condition", "prefix_cache warm", "--condition", "prefill"]
    done = CliRunner().invoke(cli.app, ["probe", *options, *even])
    assert done.exit_code == 0, done.output
    assert "WITHIN THE LIMIT" in done.stdout
    assert f"planted at {server.url}" in page.read_text()
    assert "nothing that a script could show" in repro.read_text()
    missing = CliRunner().invoke(cli.app, ["probe", *options, "--served-model", "none"])
    assert missing.exit_code == 3
    assert missing.stderr.endswith("HTTP 404: no such model; a base URL mostly ends in /v1\n")


def test_a_server_that_goes_away(server: Planted, tmp_path: Path) -> None:
    """Before the reference is done there is nothing to tell; later, what was found is told."""
    prompts, output = tmp_path / "prompts.txt", tmp_path / "probe.json"
    prompts.write_text("\n".join(TEXTS))
    command = ["probe", "--base-url", server.url, "--prompts", str(prompts), "--steps", "2"]
    command += ["--output", str(output)]
    names = ("rerun", "logprobs 7", "logprobs 8", "logprobs 9")
    command += [word for name in names for word in ("--condition", name)]
    assert CliRunner().invoke(cli.app, command).exit_code == 0
    whole, server.requests = server.requests, 0
    server.most = whole - len(names) * len(TEXTS) - 1
    early = CliRunner().invoke(cli.app, command)
    assert early.exit_code == 3
    assert early.stderr.splitlines()[-1].startswith(f"error: no answer from {server.url}: ")
    server.requests, server.most = 0, server.most + 1 + len(TEXTS)
    late = CliRunner().invoke(cli.app, command)
    assert late.exit_code == 3
    found = Findings.from_json(output.read_text())
    assert [each.status for each in found.tested] == ["exercised", "error", "error", "not run"]
    assert found.verdict.headline == "A condition failed to run."
