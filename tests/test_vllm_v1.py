"""vLLM's first model runner with the processor, for real, on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
from vllm_reports import judge, needs_vllm, run

needs_vllm()

from vllm_judgements import *  # noqa: E402, F403


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run("v1", tmp_path_factory.mktemp("v1"))


def test_this_is_the_first_runner(report: dict[str, Any]) -> None:
    assert report["runner"] == "vllm.v1.worker.cpu_model_runner"


def test_beam_search_drops_what_we_are_told(report: dict[str, Any]) -> None:
    """vLLM does not pass extra arguments on to beams. The day it does, the documentation has to change."""
    assert len(report["beams"]) == 2


def test_it_does_not_start_where_it_would_not_be_shown_tokens(report: dict[str, Any]) -> None:
    assert "named: pass logits_processors" in report["entry point"]


def test_vllm_refuses_drafts_beside_a_named_processor(report: dict[str, Any]) -> None:
    assert "not supported when speculative decoding" in report["drafts refused"]


def test_draws_by_every_field_of_the_sampler(report: dict[str, Any]) -> None:
    draws = report["draws"]
    again = {name.removesuffix(" again") for name in draws if name.endswith(" again")} - {"no seed"}
    assert len(again) > 15
    for name in again:
        (one,), (other,) = draws[name], draws[f"{name} again"]
        judge(one)
        assert one["tokens"] == other["tokens"], name
    # Each field makes another text, except that a bias of 20 leaves what a list of tokens leaves.
    texts = {tuple(draws[name][0]["tokens"]) for name in again}
    assert len(texts) >= len(again) - 4


def test_what_draws_leave_out(report: dict[str, Any]) -> None:
    draws = {name: results[0]["tokens"] for name, results in report["draws"].items()}
    words = set(draws["allowed_tokens"])
    assert 1 < len(words) <= 5
    assert set(draws["bad_words"]) <= words
    assert set(draws["repetition_penalty"]) > set(draws["logit_bias"])
    assert len(draws["min_tokens"]) == 5
    assert len(set(draws["temperature"])) > 5


def test_greedy_draws_are_those_of_vllm(report: dict[str, Any]) -> None:
    draws = {name: results[0]["tokens"] for name, results in report["draws"].items()}
    for name in ("theirs greedy", "ours greedy", "one token"):
        assert draws[name] == draws["greedy"], name
    assert draws["ours not greedy"] == draws["draw"] != draws["greedy"]


def test_seeds_of_draws(report: dict[str, Any]) -> None:
    draws = report["draws"]
    first, second = (each["tokens"] for each in draws["n"])
    assert first == draws["draw"][0]["tokens"] != second
    assert draws["no seed"][0]["tokens"] != draws["no seed again"][0]["tokens"]
    # In a batch of four and alone.
    assert draws["alone"][0]["tokens"] == draws["min_p"][0]["tokens"]


def test_draws_beside_other_features(report: dict[str, Any]) -> None:
    draws = report["draws"]
    (logprobs,) = draws["logprobs"]
    assert logprobs["tokens"] == draws["top_k"][0]["tokens"]
    for step, token in zip(logprobs["logprobs"], logprobs["tokens"], strict=True):
        assert -15 < step[str(token)] < 0
    (chosen,) = draws["structured outputs"]
    assert chosen["text"] in ("yes", "no", "perhaps not")


def test_the_host_s_draws_are_timed(report: dict[str, Any]) -> None:
    assert all(stats["draw_seconds"] > 0 for stats in report["stats"])
