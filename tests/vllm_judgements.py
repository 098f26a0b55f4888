"""What holds on both of vLLM's model runners. Imported by a module with a fixture `report`."""

from __future__ import annotations

from typing import Any

from vllm_reports import has_grammar, is_beginning, is_valid, judge

Report = dict[str, Any]


def test_requests_with_and_without_grammars_share_a_batch(report: Report) -> None:
    for result in report["mixed"]:
        judge(result)
    constrained = [result for result in report["mixed"] if has_grammar(result["fields"])]
    assert len(constrained) == 6
    # All of them are short enough to be finished, except that the tree may go deep.
    assert sum(result["reason"] == "stop" for result in constrained) >= 5


def test_free_requests_give_what_they_give_without_the_processor(report: Report) -> None:
    pairs = [
        (mixed, free)
        for mixed, free in zip(report["mixed"], report["free"], strict=True)
        if mixed["fields"] is None
    ]
    assert len(pairs) == 4
    for mixed, free in pairs:
        assert mixed["tokens"] == free["tokens"]


def test_other_parameters_beside_a_grammar(report: Report) -> None:
    features = report["features"]
    cut = {"stop string", "max tokens", "ignore eos"}
    for name, results in features.items():
        for result in results:
            if name not in cut:
                judge(result)
                assert result["reason"] == "stop", name

    assert len(features["n"]) == 2
    assert features["seed"][0]["tokens"] == features["same seed"][0]["tokens"]
    assert all(len(step) >= 3 for step in features["logprobs"][0]["logprobs"])
    (stopped,) = features["stop string"]
    assert stopped["stop"] == '"age"'
    assert is_beginning(stopped["text"], stopped["fields"])
    (short,) = features["max tokens"]
    assert short["reason"] == "length"
    assert is_beginning(short["text"], short["fields"])
    # The finished text is followed by end tokens alone, which are no part of it.
    (ignoring,) = features["ignore eos"]
    assert len(ignoring["tokens"]) == 20
    assert is_valid(ignoring["text"], ignoring["fields"])


def test_the_same_law_wherever_logits_are_changed(report: Report) -> None:
    """By vLLM alone, by vLLM beside our draw, or by our draw alone: greedy texts tell."""
    plain, *_ = report["edits"]["plain"]
    changed = {name: texts for name, texts in report["edits"].items() if name != "plain"}
    assert changed
    for name, (theirs, both, ours) in changed.items():
        assert theirs == both == ours, name
        assert theirs != plain, name


def test_processed_logprobs_show_the_mask(report: Report) -> None:
    (result,) = report["processed"]
    judge(result)
    values = [value for step in result["logprobs"] for value in step.values()]
    assert float("-inf") in values
    assert all(
        step[str(token)] > float("-inf")
        for step, token in zip(result["logprobs"], result["tokens"], strict=True)
    )


def test_refusals_say_why(report: Report) -> None:
    expected = {
        "no grammar": "one of json_schema, regex, choice is needed",
        "two grammars": "not regex and choice",
        "misspelt": "did you mean 'json_schema'?",
        "not built": "'xtc' is not built yet",
        "seed": "'seed' is the request's own seed",
        "bounds": "top_p is from 0 to 1",
        "said twice": "'presence_penalty' is among our fields, and the request itself",
        "schema": "at the root: 'type'",
        "structured outputs": "structured outputs",
        "thinking budget": "thinking_token_budget",
    }
    assert report["refusals"].keys() == expected.keys()
    for name, part in expected.items():
        assert part in report["refusals"][name]


def test_aborts_and_the_places_they_leave(report: Report) -> None:
    assert 6 <= len(report["aborted"]) <= 11
    for result in report["aborted"]:
        judge(result)


def test_preemption_and_prompts_in_pieces(report: Report) -> None:
    assert report["preemptions"] >= 1
    for result in report["cramped"]:
        judge(result)
    # The third is sampled without a seed.
    for number in (0, 1, 3):
        assert report["cramped"][number]["tokens"] == report["not cramped"][number]["tokens"]


def test_figures(report: Report) -> None:
    (stats,) = report["stats"]
    # Every admission counts: those of the mixed batch, the features, and of twelve requests half aborted.
    assert stats["requests"] > 30
    assert stats["compiles"] + stats["cache_hits"] == stats["requests"]
    assert stats["compiles"] <= 8
    assert stats["closed_rows"] == stats["dead_rows"] == stats["unread_tokens"] == 0
    assert stats["compile_seconds"] > 0
    assert stats["drawn_rows"] > 12


def test_a_real_model(report: Report) -> None:
    for result in report.get("real", []):
        judge(result)
        assert result["reason"] == "stop"
