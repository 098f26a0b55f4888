"""A small server with OpenAI's interface whose faults are planted: what a probe from outside should find."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STEP = 0.01
"""Seconds a token, so that a client sees one come after the other."""

LONGEST = 5.0
"""Seconds that a request waits for its company."""

NOISE = 0.125
"""What every score moves by where requests run together."""

VOCABULARY = tuple("abcdefgh")

KNOWN = {
    "vllm": None,
    "strict": {"model", "prompt", "max_tokens", "temperature", "seed", "stream", "logprobs"},
    "chat": {"model", "messages", "max_tokens", "temperature", "seed", "stream", "logprobs", "top_logprobs"},
    "silent": {"model", "prompt", "max_tokens", "temperature", "seed", "stream"},
}
"""Fields that a kind of server does not refuse; None for all."""


class Planted(ThreadingHTTPServer):
    """Attributes tell what is wrong with it.

    Attributes:
        kind: see `KNOWN`; "vllm" also tells token numbers, and scores of prompts.
        noisy: scores depend on whether other requests are under way.
        flipping: and so much that every prompt's fourth token changes.
        slots: requests that are worked on at the same time.
        company: makes so many requests go on step by step together.
        steady: so many more answers are as they would be alone, whatever `noisy` says.
        tells_cache: whether it says what came from its cache.
        silence: seconds before it says anything.
        requests: how many it got.
        most: after so many it is gone.
    """

    daemon_threads = True

    def __init__(self, kind: str = "vllm") -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        self.kind = kind
        self.noisy = self.flipping = False
        self.tells_cache = True
        self.slots = threading.Semaphore(64)
        self.company = threading.Barrier(1)
        self.steady = 0
        self.lock = threading.Lock()
        self.silence = 0.0
        self.requests = 0
        self.most = sys.maxsize
        self.known: set[tuple[str, str]] = set()


class Handler(BaseHTTPRequestHandler):
    server: Planted

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.answer(200, {"data": [{"id": "planted"}]} if self.path == "/v1/models" else {})

    def do_POST(self) -> None:
        server = self.server
        with server.lock:
            server.requests += 1
        if server.requests > server.most:
            self.close_connection = True
            return None
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(server.silence)
        chat = self.path == "/v1/chat/completions"
        if (server.kind == "chat") != chat:
            return self.answer(404, {"detail": "Not Found"})
        known = KNOWN[server.kind]
        unknown = body.keys() - known if known is not None else set()
        if unknown:
            return self.answer(400, {"error": {"message": f"unknown fields: {sorted(unknown)}"}})
        if body["model"] != "planted":
            return self.answer(404, {"error": {"message": "no such model"}})
        if body.get("vllm_xargs"):
            return self.answer(400, {"error": {"message": "sortition: exactly one of json_schema, ..."}})
        with server.slots, contextlib.suppress(ConnectionError):
            self.complete(body, chat)

    def complete(self, body: dict[str, Any], chat: bool) -> None:
        prompt = body["messages"][0]["content"] if chat else body["prompt"]
        if isinstance(prompt, list):
            return self.answer(200, {"choices": [{"text": "", "prompt_logprobs": self.read(prompt)}]})
        key = (str(body.get("cache_salt")), prompt)
        cached = len(prompt) if key in self.server.known else 0
        self.server.known.add(key)
        if not body.get("stream"):
            return self.answer(200, {"choices": [self.whole(prompt, body, chat)]})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        together = self.server.company.parties > 1
        for step in range(body["max_tokens"]):
            self.server.company.wait(LONGEST)
            time.sleep(STEP)
            flipping = self.server.flipping and together and step == 3
            scores = self.scores(len(prompt) + step, together, flipping, body.get("seed", 0))
            self.event(
                {"choices": [self.part(prompt, step, scores, body, chat)], "system_fingerprint": "one"}
            )
        if self.server.tells_cache and self.server.kind == "vllm":
            usage = {"prompt_tokens": len(prompt), "prompt_tokens_details": {"cached_tokens": cached}}
            self.event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def whole(self, prompt: str, body: dict[str, Any], chat: bool) -> dict[str, Any]:
        """All of an answer in one, noisy when no steady one is left."""
        with self.server.lock:
            together = self.server.steady == 0
            self.server.steady = max(self.server.steady - 1, 0)
        parts = [
            self.part(prompt, step, self.scores(len(prompt) + step, together), body, chat)
            for step in range(body["max_tokens"])
        ]
        text = "".join(part["delta"]["content"] if chat else part["text"] for part in parts)
        said = {"message": {"content": text}} if chat else {"text": text}
        return {**said, "logprobs": [part["logprobs"] for part in parts]}

    def scores(self, context: int, together: bool, flipping: bool = False, seed: int = 0) -> list[float]:
        """Log-probabilities after so many tokens, with the noise that is planted."""
        best = (context * 3 + seed) % len(VOCABULARY)
        moved = NOISE if together and self.server.noisy else 0.0
        scores = [-4.0 - token / 8 - moved for token in range(len(VOCABULARY))]
        scores[best] = -0.5 - moved
        if flipping:
            scores[(best + 1) % len(VOCABULARY)] = -0.25
        return scores

    def part(
        self, prompt: str, step: int, scores: list[float], body: dict[str, Any], chat: bool
    ) -> dict[str, Any]:
        ranked = sorted(range(len(VOCABULARY)), key=lambda token: -scores[token])
        token = VOCABULARY[ranked[0]]
        numbered = body.get("return_tokens_as_token_ids")
        name = {each: f"token_id:{each}" if numbered else VOCABULARY[each] for each in ranked}
        part: dict[str, Any] = {"delta": {"content": token}} if chat else {"text": token}
        if body.get("return_token_ids") and step == 0:
            # Its tokenizer folds all letters into its own few.
            part["prompt_token_ids"] = [ord(each) % len(VOCABULARY) for each in prompt]
        top = ranked[: body.get("top_logprobs", body.get("logprobs", 0))]
        if chat and body.get("logprobs"):
            entries = [{"token": name[each], "logprob": scores[each]} for each in top]
            part["logprobs"] = {"content": [{**entries[0], "top_logprobs": entries}]}
        elif body.get("logprobs"):
            part["logprobs"] = {
                "tokens": [name[ranked[0]]],
                "token_logprobs": [scores[ranked[0]]],
                "top_logprobs": [{name[each]: scores[each] for each in top}],
            }
        return part

    def read(self, tokens: list[int]) -> list[dict[str, Any] | None]:
        """Scores of a prompt's tokens: those of requests that run together."""
        rows = (self.scores(context, together=True) for context in range(1, len(tokens)))
        return [None, *({str(token): {"logprob": score} for token, score in enumerate(row)} for row in rows)]

    def event(self, value: Any) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()

    def answer(self, status: int, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextlib.contextmanager
def planted(kind: str = "vllm") -> Iterator[Planted]:
    """A server of that kind, while it runs."""
    with Planted(kind) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
