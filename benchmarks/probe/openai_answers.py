"""What servers with OpenAI's interface answer, as runs: tokens, their times, the best log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sortition.benchmarks.probe.target import Run
from sortition.benchmarks.probe.top_scores import Top, run_of
from sortition.integrations.openai_server import Events

TOKEN_ID: Final = "token_id:"
"""What vLLM writes before a number, where it is asked for numbers in place of texts."""


class Names:
    """Numbers for tokens: the server's own where it tells them, else by their texts."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._texts: list[str] = []

    def number(self, name: str) -> int:
        if name.startswith(TOKEN_ID):
            return int(name.removeprefix(TOKEN_ID))
        if name not in self._numbers:
            self._numbers[name] = len(self._texts)
            self._texts.append(name)
        return self._numbers[name]

    def text(self, number: int) -> str:
        """Of a token that had a text; "" of others."""
        return self._texts[number] if number < len(self._texts) else ""


@dataclass(frozen=True)
class Answer:
    """One completion.

    Attributes:
        tokens: of the completion.
        best: the best log-probabilities at each step, none where the server tells none.
        times: at which each token came.
        text: all of them.
        prompt: its tokens, where the server tells them.
        cached: how many of those came from a cache; None where it does not say.
        fingerprint: of the server, "" where it has none.
    """

    tokens: tuple[int, ...]
    best: tuple[Top, ...]
    times: tuple[float, ...]
    text: str
    prompt: tuple[int, ...]
    cached: int | None
    fingerprint: str

    def run(self) -> Run:
        """As a run that nobody led."""
        return run_of(self.tokens, self.best)


def read(events: Events, names: Names) -> Answer:
    """The answer whose parts these are.

    Raises:
        LookupError, TypeError, ValueError: it is no completion.
    """
    tokens: list[int] = []
    best: list[Top] = []
    times: list[float] = []
    text, fingerprint = "", ""
    prompt: tuple[int, ...] = ()
    cached = None
    for time, event in events:
        fingerprint = event.get("system_fingerprint") or fingerprint
        details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
        cached = details.get("cached_tokens", cached)
        for choice in event["choices"]:
            prompt = tuple(choice.get("prompt_token_ids") or event.get("prompt_token_ids") or prompt)
            said = choice.get("text")
            if said is None:
                said = (choice.get("delta") or choice.get("message") or {}).get("content")
            text += said or ""
            logprobs = choice.get("logprobs")
            steps = list(_steps(logprobs, names)) if logprobs else []
            if not steps and said:
                # One part, one token: all that can be told without log-probabilities.
                steps = [(names.number(said), [])]
            for token, scores in steps:
                tokens.append(token)
                times.append(time)
                if scores:
                    best.append(scores)
    if len(best) not in (0, len(tokens)):
        raise ValueError("some of its tokens have log-probabilities and some have none")
    return Answer(tuple(tokens), tuple(best), tuple(times), text, prompt, cached, fingerprint)


def _steps(logprobs: Mapping[str, Any], names: Names) -> Iterator[tuple[int, Top]]:
    """The tokens of one part, with their best log-probabilities, in either form of the interface."""
    if "content" in logprobs:
        for each in logprobs["content"] or []:
            best = {_name(other): other["logprob"] for other in each.get("top_logprobs") or []}
            yield _step(_name(each), each["logprob"], best, names)
    else:
        tops = logprobs.get("top_logprobs") or [{}] * len(logprobs["tokens"])
        for name, value, best in zip(logprobs["tokens"], logprobs["token_logprobs"], tops, strict=True):
            yield _step(name, value, best or {}, names)


def _name(entry: Mapping[str, Any]) -> str:
    """A token of chats: by its bytes where they are told, since texts may have lost some."""
    name: str = entry["token"]
    if name.startswith(TOKEN_ID) or not entry.get("bytes"):
        return name
    return bytes(entry["bytes"]).decode(errors="surrogateescape")


def _step(name: str, value: float, best: Mapping[str, float], names: Names) -> tuple[int, Top]:
    """A token and its step's scores, its own among them, without what the server calls impossible."""
    shown = {**best, name: value}
    return names.number(name), [(names.number(each), float(score)) for each, score in shown.items()]


def read_prefill(answer: Any, first: int) -> tuple[Top, ...]:
    """The best log-probabilities of a prompt's tokens, from one on, as vLLM tells them.

    Raises:
        LookupError, TypeError, ValueError: they are not there.
    """
    (choice,) = answer["choices"]
    told = choice.get("prompt_logprobs") or answer["prompt_logprobs"]
    return tuple(
        [(int(token), float(each["logprob"])) for token, each in step.items()] for step in told[first:]
    )
