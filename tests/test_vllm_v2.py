"""vLLM's second model runner with the processor, for real, its kernels in Triton's interpreter."""

from __future__ import annotations

import math
from typing import Any

import pytest
from vllm_reports import judge, needs_vllm, run

needs_vllm("triton")

from vllm_judgements import *  # noqa: E402, F403


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run("v2", tmp_path_factory.mktemp("v2"))


def test_this_is_the_second_runner(report: dict[str, Any]) -> None:
    assert report["runner"] == "vllm.v1.worker.cpu.model_runner"
    assert report["asynchronous"]


def test_drafts_are_accepted_and_change_nothing(report: dict[str, Any]) -> None:
    assert 0 < report["accepted"] < report["proposed"]
    for result in report["drafts"]:
        judge(result)
    greedy = (0, 3, 4)
    for number in greedy:
        assert report["drafts"][number]["tokens"] == report["no drafts"][number]["tokens"]


def test_draws_are_the_same_with_drafts_and_without(report: dict[str, Any]) -> None:
    """vLLM refuses min_p and logit_bias beside drafts; ours hold for every draft."""
    assert report["accepted draws"] > 0
    texts = [tuple(result["tokens"]) for result in report["drawn with drafts"]]
    assert texts == [tuple(result["tokens"]) for result in report["drawn without drafts"]]
    assert len(set(texts)) == len(texts)
    for result in report["drawn with drafts"]:
        judge(result)
    biased, _, punished, _ = texts
    assert len(set(biased)) == len(set(punished)) == 2
    assert all(len(set(punished[at : at + 3])) > 1 for at in range(len(punished) - 2))


def test_as_many_drafts_stand_as_any_rule_could_let_stand(report: dict[str, Any]) -> None:
    """An n-gram is certain: a maximal coupling lets it stand with its probability, and so do we."""
    chances, stood = zip(*report["judged drafts"], strict=True)
    most, spread = sum(chances), math.sqrt(sum(chance * (1 - chance) for chance in chances))
    assert abs(sum(stood) - most) < 4 * spread and 3 < sum(stood) < len(stood)
    # vLLM counts the same, but none that came after a text's end.
    assert 0 <= sum(stood) - report["accepted draws"] <= len(report["drawn with drafts"])


def test_a_draw_alone_is_that_in_a_batch(report: dict[str, Any]) -> None:
    (alone,) = report["drawn alone"]
    assert alone["tokens"] == report["drawn with drafts"][0]["tokens"]
