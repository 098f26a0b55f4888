"""The engine of extractions that asks a server with OpenAI's interface: one with our processor, or any other.

It needs no library. The API key is read from the environment variable ``OPENAI_API_KEY``, if that is set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

from sortition.integrations.errors import InputError
from sortition.integrations.generation import Completion, Job
from sortition.integrations.openai_server import (
    HINTS,
    Refused,
    Server,
    Unanswered,
    check_url,
    first_model,
)
from sortition.integrations.request import FIELD, request
from sortition.integrations.turns import in_turn

SERVERS: Final = ("sortition", "response_format")
"""How a server takes a schema: in ``vllm_xargs``, by our processor; or in ``response_format``."""

USUAL: Final = {"whitespace": "default", "formats": "assert", "any_order": False, "ignore": ()}
"""What servers with means of their own are not told, and the values with which they need not be."""

GONE: Final = 8
"""Documents in a row without an answer, after which the server counts as gone. They get no record, so that
the next run asks for them again."""


@dataclass(frozen=True, slots=True)
class _Missing(Completion):
    """The completion of a prompt that no attempt got an answer to."""


def settled(job: Job) -> Job:
    """The job with what the server has to say filled in: its model's name, and how it takes a schema.

    Raises:
        InputError: no usable URL, no answer, no model, or an option of the grammar
            that the server would not be told of.
    """
    if job.base_url is None:
        raise InputError("the engine 'openai' needs base_url, such as http://localhost:8000/v1")
    check_url(job.base_url)
    if job.server not in (None, *SERVERS):
        raise InputError(f"server is {' or '.join(SERVERS)}, not {job.server!r}")
    server = Server(job.base_url)
    try:
        if job.served_model is None:
            job = replace(job, served_model=first_model(server))
        if job.server is None and job.grammar is not None:
            job = replace(job, server="sortition" if _has_processor(server, job) else "response_format")
    except Unanswered as problem:
        raise InputError(str(problem)) from None
    except Refused as problem:
        raise InputError(f"{job.base_url}: {problem}{HINTS.get(problem.status, '')}") from None
    if job.server == "response_format":
        for name, usual in USUAL.items():
            if getattr(job, name) != usual:
                raise InputError(f"{name} is only for servers that run our processor")
    return job


class OpenAIEngine:
    """A model behind a server, held to the grammar of one job. See `Engine`."""

    def __init__(self, job: Job) -> None:
        """Find out what the job leaves open; see `settled` for what may be wrong with it."""
        self._job = settled(job)
        self._server = Server(str(job.base_url))

    def generate(self, prompts: Iterable[str]) -> Iterator[Completion]:
        """See `Engine.generate`."""
        pool = ThreadPoolExecutor(self._job.batch_size)
        calls: dict[int, Future[Completion]] = {}

        def submit(number: int, prompt: str) -> None:
            calls[number] = pool.submit(self._complete, prompt)

        missing: list[Completion] = []
        try:
            for completion in in_turn(
                prompts, self._job.batch_size, submit, lambda number: calls.pop(number).result()
            ):
                if isinstance(completion, _Missing):
                    missing.append(completion)
                    if len(missing) == GONE:
                        raise InputError(f"{completion.error}, {GONE} documents in a row")
                    continue
                yield from missing
                missing.clear()
                yield completion
            yield from missing
        finally:
            self._server.stop()
            pool.shutdown(wait=False, cancel_futures=True)

    def _complete(self, prompt: str) -> Completion:
        job = self._job
        constraint: dict[str, Any] = {}
        if job.grammar is not None and job.server == "sortition":
            constraint["vllm_xargs"] = request(
                json_schema=job.schema,
                whitespace=job.whitespace,
                formats=job.formats,
                any_order=job.any_order,
                ignore=job.ignore,
                as_text=True,
            )
        elif job.grammar is not None:
            constraint["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "value", "schema": job.schema, "strict": True},
            }
        try:
            path, body = _call(job, prompt, job.max_tokens)
            return _read(self._server.ask(path, {**body, **constraint}))
        except Unanswered as problem:
            return _Missing(error=str(problem))
        except Refused as problem:
            if problem.status in HINTS:
                raise InputError(f"{job.base_url}: {problem}{HINTS[problem.status]}") from None
            return Completion(error=str(problem))


def _call(job: Job, prompt: str, max_tokens: int) -> tuple[str, dict[str, Any]]:
    """Path and body of a greedy request."""
    body = {"model": job.served_model, "temperature": 0, "max_tokens": max_tokens}
    if job.chat:
        return "/chat/completions", {**body, "messages": [{"role": "user", "content": prompt}]}
    return "/completions", {**body, "prompt": prompt}


def _read(answer: Any) -> Completion:
    try:
        (choice,) = answer["choices"]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        usage = answer.get("usage") or {}
        return Completion(
            text=text or "",
            ended=choice["finish_reason"] == "stop",
            prompt_tokens=int(usage.get("prompt_tokens", 0)),
            completion_tokens=int(usage.get("completion_tokens", 0)),
        )
    except (LookupError, TypeError, ValueError, AttributeError):
        return Completion(error=f"the server's answer is no completion: {answer!r:.200}")


def _has_processor(server: Server, job: Job) -> bool:
    """Whether the server refuses, in our words, a request that only our processor can find fault with."""
    path, body = _call(job, "?", 1)
    try:
        server.ask(path, {**body, "vllm_xargs": {FIELD: "{}"}})
    except Refused as refusal:
        if refusal.status in (400, 422):
            return f"{FIELD}: " in str(refusal)
        raise
    return False
