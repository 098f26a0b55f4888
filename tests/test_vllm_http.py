"""vLLM's OpenAI server with the processor: good and bad requests at the same time."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tiny_llama import save_tiny_llama
from vllm_reports import LONGEST, is_valid, needs_vllm
from vllm_scenarios import DATE, PERSON, TREE, WORDS
from vllm_server import serve

from sortition.benchmarks.probe.conditions import parse
from sortition.benchmarks.probe.openai_target import OpenAITarget
from sortition.benchmarks.probe.options import Options
from sortition.benchmarks.probe.study import study
from sortition.integrations.request import request

needs_vllm()

Answer = tuple[int, dict[str, Any]]


class Server:
    def __init__(self, url: str) -> None:
        self.url = url

    def post(self, extra: Any, path: str = "/v1/completions", **fields: Any) -> Answer:
        body = {"model": "tiny", "max_tokens": 60, **fields}
        if path == "/v1/completions":
            body.setdefault("prompt", "Say:")
        if extra is not None:
            body["vllm_xargs"] = extra
        call = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(call, timeout=LONGEST) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("http")
    with serve(
        save_tiny_llama(folder / "tiny"),
        folder,
        served_model_name="tiny",
        max_model_len="256",
        num_gpu_blocks_override="64",
        chat_template=str(chat_template(folder)),
    ) as url:
        yield Server(url)


def chat_template(folder: Path) -> Path:
    path = folder / "template.jinja"
    path.write_text("{% for message in messages %}{{ message['content'] }}\n{% endfor %}")
    return path


GOOD: list[dict[str, Any] | None] = [
    {"json_schema": PERSON},
    {"choice": WORDS},
    None,
    {"regex": DATE},
    {"json_schema": json.dumps(PERSON), "whitespace": "compact", "any_order": 0},
    {"regex": DATE, "draw": 1, "min_p": 0.01, "logit_bias": {"5": -1}, "order": ["min_p", "top_k"]},
]
BAD: list[tuple[Any, str]] = [
    ({"sortition": json.dumps({"regexp": "a"})}, "did you mean 'regex'?"),
    ({"sortition": json.dumps({"json_schema": {"type": "strin"}})}, "at the root: 'type'"),
    ({"sortition": json.dumps({"regex": "(a"})}, "regex: "),
    ({"sortition": "not JSON"}, "the field is not JSON"),
    ({"sortition": json.dumps({"regex": "a", "dry": 0.1})}, "'dry' is not built yet"),
    ({"sortition": json.dumps({"min_p": 1.5})}, "min_p is from 0 to 1"),
    ({"sortition": json.dumps({"draw": 1, "top_kk": 5})}, "did you mean 'top_k'?"),
    ({"sortition": 1}, "JSON text is needed, not int"),
    ({"sortition": json.dumps({"json_schema": {"const": "x" * (1 << 20)}})}, "bytes of grammar"),
    ({"sortition": json.dumps({"regex": "[a-z]{100000}"})}, "takes more than 2,600,000 steps"),
]


def test_good_and_bad_requests_at_the_same_time(server: Server) -> None:
    def good(number: int) -> None:
        fields = GOOD[number % len(GOOD)]
        extra = None if fields is None else {"sortition": json.dumps(fields)}
        status, answer = server.post(extra, temperature=1.0, seed=number)
        assert status == 200, answer
        (choice,) = answer["choices"]
        if fields is not None:
            assert choice["finish_reason"] == "stop"
            assert is_valid(choice["text"], fields), choice

    def bad(number: int) -> None:
        extra, message = BAD[number % len(BAD)]
        status, answer = server.post(extra)
        assert status == 400, answer
        assert message in answer["error"]["message"]

    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(good if number % 3 else bad, number // 2) for number in range(42)]
        for call in calls:
            call.result()


def test_chat(server: Server) -> None:
    status, answer = server.post(
        request(json_schema=TREE, as_text=True),
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "A tree, please."}],
        n=2,
        temperature=1.0,
        seed=1,
        logprobs=True,
        top_logprobs=2,
    )
    assert status == 200, answer
    assert len(answer["choices"]) == 2
    for choice in answer["choices"]:
        if choice["finish_reason"] == "stop":
            assert is_valid(choice["message"]["content"], {"json_schema": TREE})


def test_draws(server: Server) -> None:
    def draw(seed: int, **sampler: Any) -> list[str]:
        extra = request(draw=True, typical=0.9, **sampler, as_text=True)
        status, answer = server.post(extra, max_tokens=12, temperature=1.0, seed=seed, n=2)
        assert status == 200, answer
        return [choice["text"] for choice in answer["choices"]]

    assert draw(1) == draw(1)
    assert len({*draw(1), *draw(5), *draw(5, temperature=0.3)}) == 6
    assert draw(1)[1] == draw(2)[0]
    status, answer = server.post(request(repetition_penalty=1.5, as_text=True), repetition_penalty=1.1)
    assert status == 400
    assert "say it once" in answer["error"]["message"]


def test_structured_outputs_of_the_server_are_not_combined_with_ours(server: Server) -> None:
    status, answer = server.post(
        request(choice=WORDS, as_text=True), structured_outputs={"choice": ["maybe"]}
    )
    assert status == 400
    assert "one grammar a request" in answer["error"]["message"]


def test_extra_arguments_at_the_wrong_place_pass_unseen(server: Server) -> None:
    """The server ignores a body's unknown fields, so that nobody can tell: the documentation says it."""
    status, _ = server.post(None, extra_args={"sortition": {"regex": "(a"}}, max_tokens=2)
    assert status == 200


def test_a_probe_from_outside(server: Server) -> None:
    """Which requests have the same bits is found, whichever these are here, and what was seen is true."""
    target = OpenAITarget(f"{server.url}/v1")
    assert {"prefill", "draw", "logprobs"} <= target.axes
    names = ["rerun", "batch_size 4", "batch_size 8", "prefill", "prefix_cache warm", "padding 1"]
    drawn = ["rerun, given draw 7", "batch_size 4 and neighbours other, given draw 7"]
    conditions = [parse(name) for name in [*names, *drawn]]
    prompts = target.prompts(["Say:", "The capital of France is", "one two three four " * 8])
    found = study(target, prompts, conditions, Options(steps=24))
    tested = {each.name: each for each in found.tested}
    assert {name for name, each in tested.items() if each.status == "exercised"} == {
        *names[:4],
        *drawn,
    }
    # It works on four requests at a time, and tells no cached tokens.
    assert tested["batch_size 8"].evidence.endswith("of 8 requests came at the same time")
    assert int(tested["batch_size 8"].evidence.split()[4]) < 8
    assert "does not say" in tested["prefix_cache warm"].evidence
    assert not tested["padding 1"].possible
    for name in ("rerun", "rerun, given draw 7"):
        assert tested[name].bitwise is not None and tested[name].bitwise.count == 0
    assert {name for names_ in found.classes for name in names_} == {"reference", *names[:4]}
    # Where our draw has equal scores, it takes equal tokens.
    for each in tested[drawn[1]].comparisons:
        assert each.first_flip is None or each.first_difference is not None
    differing = [each for each in found.tested if each.bitwise and each.bitwise.count and each.counts]
    assert bool(differing) == bool(found.attributions)
