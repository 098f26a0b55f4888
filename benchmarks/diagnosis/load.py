"""A bounded load on a server: so many requests, so many at once, timed chunk by chunk."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from sortition.integrations.errors import InputError
from sortition.integrations.openai_server import KEY, LONGEST_MESSAGE

PATIENCE: Final = 120.0
"""Seconds of silence after which a request is given up."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One request: all times in seconds.

    Attributes:
        begin: when it was sent, by the clock of `time.perf_counter`.
        first: from sending to the first chunk of text.
        gaps: between one chunk and the next.
        whole: from sending to the end.
        prompt, generated: tokens.
        cut: whether it ended because of `max_tokens`.
        queued, prefilling: what the server says of this very request; None where it does not
            (vLLM does with ``--enable-per-request-metrics``).
    """

    begin: float
    first: float
    gaps: tuple[float, ...]
    whole: float
    prompt: int
    generated: int
    cut: bool
    queued: float | None = None
    prefilling: float | None = None


@dataclass(frozen=True)
class Load:
    """What is asked.

    Attributes:
        model: its name at the server.
        prompts: one request each.
        concurrency: how many are open at once.
        max_tokens: of every answer.
        fields: further fields of every request's body.
    """

    model: str
    prompts: Sequence[str]
    concurrency: int = 8
    max_tokens: int = 32
    fields: Mapping[str, Any] = field(default_factory=dict)

    def run(self, root: str) -> list[Timed]:
        """Send all requests and read all answers.

        Raises:
            InputError: the server refuses one, or stops answering.
        """
        pool = ThreadPoolExecutor(self.concurrency)
        try:
            return list(pool.map(lambda prompt: self._ask(root, prompt), self.prompts))
        finally:
            # Interrupted, or after a failure, no further request is sent.
            pool.shutdown(cancel_futures=True)

    def _ask(self, root: str, prompt: str) -> Timed:
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.fields,
        }
        call = urllib.request.Request(
            f"{root}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        key = os.environ.get(KEY)
        if key:
            call.add_unredirected_header("Authorization", f"Bearer {key}")
        begin = time.perf_counter()
        arrivals: list[float] = []
        usage: dict[str, Any] = {}
        said: dict[str, Any] = {}
        finish: str | None = None
        try:
            with urllib.request.urlopen(call, timeout=PATIENCE) as answer:
                for event in _events(answer):
                    if "error" in event:
                        raise InputError(f"the server broke off: {json.dumps(event)[:LONGEST_MESSAGE]}")
                    for choice in event.get("choices", ()):
                        if choice.get("text"):
                            arrivals.append(time.perf_counter())
                        finish = choice.get("finish_reason") or finish
                    usage = event.get("usage") or usage
                    said = event.get("metrics") or said
        except urllib.error.HTTPError as error:
            with error:
                reason = error.read().decode(errors="replace")
            raise InputError(
                f"the server refuses the load: HTTP {error.code}: {reason[:LONGEST_MESSAGE]}"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise InputError(f"the server stopped answering: {getattr(error, 'reason', error)}") from None
        end = time.perf_counter()
        return Timed(
            begin=begin,
            first=(arrivals[0] if arrivals else end) - begin,
            gaps=tuple(after - before for before, after in pairwise(arrivals)),
            whole=end - begin,
            prompt=int(usage.get("prompt_tokens", 0)),
            generated=int(usage.get("completion_tokens", len(arrivals))),
            cut=finish == "length",
            queued=_seconds(said.get("queue_time_ms")),
            prefilling=_seconds(said.get("time_to_first_token_ms")),
        )


def _seconds(milliseconds: Any) -> float | None:
    return milliseconds / 1000 if isinstance(milliseconds, int | float) else None


def _events(lines: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The events of a stream."""
    for line in lines:
        text = line.decode(errors="replace").strip()
        if text.startswith("data:") and text != "data: [DONE]":
            event = json.loads(text.removeprefix("data:"))
            if isinstance(event, dict):
                yield event


def made_up(count: int, words: int) -> list[str]:
    """Prompts of so many words that share nothing, not even their beginning."""
    return [" ".join(str(7919 * (at + 1) + 104729 * word) for word in range(words)) for at in range(count)]
