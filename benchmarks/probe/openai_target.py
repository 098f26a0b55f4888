"""A server with OpenAI's interface as a target: all that can be learnt from outside, by log-probabilities.

What else the server does at the same time is unknown; a probe wants a server of its own.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import urlsplit

from sortition.benchmarks.probe.openai_answers import Answer, Names, read, read_prefill
from sortition.benchmarks.probe.target import Condition, Evidence, NotPossible, Outcome, Prompt
from sortition.benchmarks.probe.top_scores import WIDTH, Top, more_scores, run_of
from sortition.integrations.errors import InputError
from sortition.integrations.openai_server import (
    HINTS,
    PATIENCE,
    Refused,
    Server,
    Unanswered,
    check_url,
    first_model,
)
from sortition.integrations.request import FIELD, request

WISHES: Final[tuple[dict[str, Any], ...]] = (
    {"stream_options": {"include_usage": True}},
    {"return_tokens_as_token_ids": True},
    {"return_token_ids": True},
    {"ignore_eos": True},
)
"""Fields that not every server has. Each is asked for alone, and kept if it is not refused."""

GREETING: Final = "Hello, my name is"
"""What a server is asked to go on from while we find out what it can."""

TRIES: Final = 3
"""How often a batch is sent until its requests overlap: small models may answer before the next one comes."""

LONGER: Final = 4
"""Prompts that a longer neighbour is made of."""

NOT_ASKED_SO: Final = (400, 404, 405, 422)
"""How servers refuse what they do not know, by the status of HTTP."""


class OpenAITarget:
    """A model behind a URL. See `Target`.

    A batch is requests at the same time: that the server works on them together shows in when tokens come.
    """

    forces = False

    def __init__(self, base_url: str, model: str | None = None, *, patience: float = PATIENCE) -> None:
        """Find out what the server can.

        Args:
            base_url: such as http://localhost:8000/v1.
            model: as the server calls it; by default the first that it names.
            patience: seconds of silence after which an attempt is given up.

        Raises:
            InputError: no usable URL, no answer, or no completions.
        """
        check_url(base_url)
        if urlsplit(base_url).username is not None:
            raise InputError("no name and password in the URL, please: the key is read from OPENAI_API_KEY")
        self._url = base_url
        self._server = Server(base_url, patience)
        self._names = Names()
        self._texts: dict[tuple[int, ...], str] = {}
        self._fingerprints: set[str] = set()
        self._fields: dict[str, Any] = {}
        self._salted = False
        try:
            self._model = model or first_model(self._server)
            self._chat = self._only_chats()
            self.axes = self._discover()
        except Refused as refusal:
            raise InputError(f"{self._url}: {refusal}{HINTS.get(refusal.status, '')}") from None
        except Unanswered as problem:
            raise InputError(str(problem)) from None
        self.name = f"{self._model} at {self._url}"

    def describe(self) -> dict[str, Any]:
        """See `Target.describe`."""
        return {
            "server": self._url,
            "model": self._model,
            "interface": "chat" if self._chat else "completions",
            "fingerprints": sorted(self._fingerprints),
            "log-probabilities": self._scored,
            "fields": sorted(self._fields),
        }

    def prompts(self, texts: Sequence[str]) -> list[Prompt]:
        """Texts as they are: the server has the tokenizer."""
        return [Prompt(text) for text in texts]

    def text(self, tokens: Sequence[int]) -> str:
        """See `Target.text`."""
        known = self._texts.get(tuple(tokens))
        return "".join(self._names.text(token) for token in tokens) if known is None else known

    def run(
        self,
        prompts: Sequence[Prompt],
        condition: Condition,
        steps: int,
        forced: Sequence[Sequence[int]] | None = None,
    ) -> Outcome:
        """See `Target.run`; raises ConnectionError where the server no longer answers."""
        if forced is not None:
            raise ValueError("a server cannot be told the tokens to go on with")
        settings = dict(condition.settings)
        missing = settings.keys() - self.axes
        if missing:
            raise NotPossible(f"not with this server: {', '.join(sorted(missing))}")
        begin = time.perf_counter()
        try:
            answers, evidence = self._answers(prompts, settings, steps)
            runs = tuple(answer.run() for answer in answers)
            if settings.get("prefill"):
                runs = tuple(
                    run_of(answer.tokens, self._prefill(answer.prompt, answer.tokens)) for answer in answers
                )
                evidence = Evidence(True, "the tokens were sent with the prompt, and scored in one pass")
        except Refused as refusal:
            raise NotPossible(f"the server refuses: {refusal}") from None
        except Unanswered as problem:
            raise ConnectionError(str(problem)) from None
        for answer in answers:
            self._texts[answer.tokens] = answer.text
        notes: dict[str, Any] = {}
        if len(self._fingerprints) > 1:
            notes["fingerprints"] = f"{len(self._fingerprints)}: there may be several servers behind the URL"
        return Outcome(runs, evidence, time.perf_counter() - begin, notes)

    def _answers(
        self, prompts: Sequence[Prompt], settings: Mapping[str, Any], steps: int
    ) -> tuple[list[Answer], Evidence]:
        """The answers to the prompts as the condition wants them, and whether it took effect."""
        fields = _fields(settings, self._chat)
        if "prefix_cache" in settings:
            return self._warm(prompts, steps, fields)
        rows = int(settings.get("batch_size", 1))
        if rows == 1:
            answers = [self._complete(prompt.text, steps, fields) for prompt in prompts]
            return answers, Evidence(True, "one request after the other")
        answers, company = [], []
        kind = settings.get("neighbours")
        with ThreadPoolExecutor(rows) as pool:
            for number in range(len(prompts)):
                texts = [prompts[number].text, *_neighbours(prompts, number, rows - 1, kind)]
                for _ in range(TRIES):
                    batch = list(pool.map(lambda text: self._complete(text, steps, fields), texts))
                    if _company(batch) > 1:
                        break
                answers.append(batch[0])
                company.append(_company(batch))
        seen = f"tokens of {min(company)} to {max(company)} of {rows} requests came at the same time"
        return answers, Evidence(min(company) > 1, seen)

    def _warm(
        self, prompts: Sequence[Prompt], steps: int, fields: Mapping[str, Any]
    ) -> tuple[list[Answer], Evidence]:
        """Every prompt twice, the second time with what the server kept of the first."""
        answers = []
        for prompt in prompts:
            # Apart from what other conditions left in the cache.
            salted = {**fields, **({"cache_salt": uuid.uuid4().hex} if self._salted else {})}
            self._complete(prompt.text, 1, salted)
            answers.append(self._complete(prompt.text, steps, salted))
        cached = [answer.cached or 0 for answer in answers]
        if all(answer.cached is None for answer in answers):
            return answers, Evidence(False, "the server does not say how many tokens came from its cache")
        hits = sum(count > 0 for count in cached)
        return answers, Evidence(
            hits > 0, f"{hits} prompts had up to {max(cached)} tokens in the server's cache"
        )

    def _complete(self, text: str, steps: int, fields: Mapping[str, Any] | None = None) -> Answer:
        """One completion; raises Refused and Unanswered, the latter also for an answer that is none."""
        body: dict[str, Any] = {"model": self._model, "temperature": 0, "max_tokens": steps}
        if self._chat:
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = text
        if self._salted:
            body["cache_salt"] = uuid.uuid4().hex
        path = "/chat/completions" if self._chat else "/completions"
        events = self._server.stream(path, {**body, **self._fields, **(fields or {})})
        try:
            answer = read(events, self._names)
        except (LookupError, TypeError, ValueError, AttributeError) as problem:
            raise Unanswered(f"{self._url}: the answer is no completion: {problem!r:.100}") from None
        if answer.fingerprint:
            self._fingerprints.add(answer.fingerprint)
        return answer

    def _prefill(self, prompt: Sequence[int], tokens: Sequence[int]) -> tuple[Top, ...]:
        """The best log-probabilities of tokens that are given with the prompt, not generated."""
        body = {
            "model": self._model,
            "prompt": [*prompt, *tokens],
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": WIDTH,
        }
        if self._salted:
            body["cache_salt"] = uuid.uuid4().hex
        try:
            return read_prefill(self._server.ask("/completions", body), len(prompt))
        except (LookupError, TypeError, ValueError, AttributeError):
            raise Refused(200, "the answer has no log-probabilities of the prompt") from None

    def _only_chats(self) -> bool:
        """Whether the server has no completions of plain texts."""
        self._chat = False
        try:
            self._complete(GREETING, 1)
        except Refused as refusal:
            if refusal.status not in NOT_ASKED_SO:
                raise
            self._chat = True
            try:
                self._complete(GREETING, 1)
            except Refused:
                raise refusal from None
        return self._chat

    def _discover(self) -> frozenset[str]:
        """Ask for each thing that not every server has, keep what is granted; the axes that follow."""
        for wish in (_logprobs(WIDTH, self._chat), *WISHES):
            if self._grants(wish):
                self._fields.update(wish)
        self._salted = self._grants({"cache_salt": uuid.uuid4().hex})
        answer = self._complete(GREETING, 2)
        self._scored = bool(answer.best)
        axes = {"rerun", "batch_size", "neighbours", "seed", "prefix_cache"}
        if self._scored:
            axes.add("logprobs")
        if answer.prompt and answer.best and not self._chat:
            try:
                self._prefill(answer.prompt, answer.tokens)
                axes.add("prefill")
            except Refused:
                pass
        if self._has_processor():
            axes.add("draw")
        return frozenset(axes)

    def _grants(self, wish: Mapping[str, Any]) -> bool:
        try:
            self._complete(GREETING, 2, wish)
        except Refused as refusal:
            if refusal.status not in NOT_ASKED_SO:
                raise
            return False
        return True

    def _has_processor(self) -> bool:
        """Whether the server refuses, in our words, a request that only our processor can find fault with."""
        try:
            self._complete(GREETING, 1, {"vllm_xargs": {FIELD: "{}"}})
        except Refused as refusal:
            return f"{FIELD}: " in str(refusal)
        return False


def _fields(settings: Mapping[str, Any], chat: bool) -> dict[str, Any]:
    """What a condition adds to each request."""
    fields: dict[str, Any] = {}
    if "logprobs" in settings:
        fields.update(_logprobs(more_scores(settings), chat))
    for axis in ("seed", "draw"):
        if axis in settings:
            fields.update(temperature=1, seed=int(settings[axis]))
    if "draw" in settings:
        fields["vllm_xargs"] = request(draw=True, as_text=True)
    return fields


def _logprobs(count: int, chat: bool) -> dict[str, Any]:
    return {"logprobs": True, "top_logprobs": count} if chat else {"logprobs": count}


def _neighbours(prompts: Sequence[Prompt], number: int, count: int, kind: Any) -> list[str]:
    """Texts of the other requests: the prompt itself, or other prompts, or several of those in one."""
    if kind is None:
        return [prompts[number].text] * count
    others = [prompt.text for prompt in (*prompts[number + 1 :], *prompts[:number])] or ["Something else"]
    if kind == "longer":
        others = [
            "\n".join(others[(each + more) % len(others)] for more in range(LONGER))
            for each in range(len(others))
        ]
    return [others[each % len(others)] for each in range(count)]


def _company(batch: Sequence[Answer]) -> int:
    """How many answers were under way when a token of the first one came, in the median of its tokens."""
    spans = [(answer.times[0], answer.times[-1]) for answer in batch if answer.times]
    # The first token follows the prompt, which may be read alone.
    return int(
        statistics.median(
            [sum(first <= moment <= last for first, last in spans) for moment in batch[0].times[1:]] or [1]
        )
    )
