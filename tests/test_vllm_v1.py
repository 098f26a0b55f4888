"""vLLM's first model runner with the processor, for real, on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
from vllm_reports import needs_vllm, run

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
