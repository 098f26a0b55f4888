"""Requests to a server with OpenAI's interface: JSON in, JSON out, and patience."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from sortition.integrations.errors import InputError

PAUSES: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each further attempt, where the server names no other: 15 in all, a restart of a proxy."""

LONGEST_PAUSE: Final = 60.0
"""Seconds, whatever the server asks for."""

PATIENCE: Final = 600.0
"""Seconds of silence after which an attempt is given up; a request's time in the server's queue is silent."""

LONGEST_MESSAGE: Final = 300
"""Characters of a server's message that are kept: it may repeat the request."""

HINTS: Final = {
    401: "; the key is read from OPENAI_API_KEY",
    404: "; a base URL mostly ends in /v1",
}
"""What may be wrong for every request, by the status of HTTP."""

Events: TypeAlias = list[tuple[float, Any]]
"""What a server sent part by part, each part with the time at which it came (`time.perf_counter`)."""

KEY: Final = "OPENAI_API_KEY"
"""The environment variable of the key. Servers of one's own mostly need none."""


class Unanswered(Exception):
    """No attempt got an answer, or only ones that say to come again; the message has the last reason."""


class Refused(Exception):
    """The server does not do what it was asked; the message is its own.

    Attributes:
        status: of HTTP.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Server:
    """A server at a base URL, which mostly ends in ``/v1``. Threads may share it."""

    def __init__(self, base_url: str, patience: float = PATIENCE) -> None:
        """See `PATIENCE`."""
        self._base_url = base_url.rstrip("/")
        self._patience = patience
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the pauses between attempts; whoever is in one gets no answer."""
        self._stopped.set()

    def ask(self, path: str, body: Any = None) -> Any:
        """The server's answer to a body, or without one to a mere GET. Asks again where that may help.

        Raises:
            Unanswered, Refused: see there.
        """
        return self._ask(path, body, json.load)

    def stream(self, path: str, body: dict[str, Any]) -> Events:
        """The server's answer to a body, in the parts in which it came. Asks again where that may help.

        Raises:
            Unanswered, Refused: see there.
        """
        return self._ask(path, {**body, "stream": True}, _events)

    def _ask(self, path: str, body: Any, read: Callable[[Any], Any]) -> Any:
        for pause in (*PAUSES, None):
            try:
                return self._attempt(path, body, read)
            except urllib.error.HTTPError as error:
                with error:
                    reason = f"HTTP {error.code}: {_message(error)}"
                if error.code not in (408, 429) and error.code < 500:
                    raise Refused(error.code, reason) from None
                pause = pause and _asked_for(error, pause)
            # The server may be cut off in the middle of its answer, too.
            except (OSError, http.client.HTTPException) as error:
                reason = str(getattr(error, "reason", error)) or type(error).__name__
            except ValueError:
                raise Refused(200, "the answer is not JSON") from None
            if pause is None or self._stopped.wait(pause):
                break
        raise Unanswered(f"no answer from {self._base_url}: {reason[:LONGEST_MESSAGE]}")

    def _attempt(self, path: str, body: Any, read: Callable[[Any], Any]) -> Any:
        data = None if body is None else json.dumps(body).encode()
        call = urllib.request.Request(self._base_url + path, data, {"Content-Type": "application/json"})
        key = os.environ.get(KEY)
        if key:
            # Not sent on to wherever a redirection leads.
            call.add_unredirected_header("Authorization", f"Bearer {key}")
        with urllib.request.urlopen(call, timeout=self._patience) as answer:
            return read(answer)


def check_url(base_url: str) -> None:
    """Raises InputError for what is not the URL of a server."""
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InputError(f"base_url is the URL of a server, http://... or https://..., not {base_url!r}")


def first_model(server: Server) -> str:
    """The first model that a server names; raises InputError where it names none."""
    try:
        return str(server.ask("/models")["data"][0]["id"])
    except (LookupError, TypeError):
        raise InputError("the server names no model: choose one (--served-model)") from None


def _events(answer: Any) -> Events:
    """The events of an answer, as server-sent events have them; a plain one is one event."""
    if "event-stream" not in answer.headers.get("Content-Type", ""):
        return [(time.perf_counter(), json.load(answer))]
    events = []
    for line in answer:
        kind, _, data = line.partition(b":")
        if kind == b"data" and data.strip() != b"[DONE]":
            event = json.loads(data)
            if isinstance(event, dict) and "error" in event:
                raise Refused(200, _said(event)[:LONGEST_MESSAGE])
            events.append((time.perf_counter(), event))
    return events


def _message(error: urllib.error.HTTPError) -> str:
    """What a refusal says, by OpenAI's interface or in plain words."""
    try:
        text = error.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        text = ""
    try:
        said = json.loads(text)
    except ValueError:
        said = text
    return _said(said)[:LONGEST_MESSAGE] or str(error.reason)


def _said(said: Any) -> str:
    """The words of a server's complaint, in one line."""
    # {"error": {"message": ...}} by OpenAI's interface, {"detail": ...} by many a server's frame.
    for name in ("error", "detail", "message"):
        if isinstance(said, dict):
            said = said.get(name, said)
    text = said if isinstance(said, str) else json.dumps(said)
    return " ".join(text.split())


def _asked_for(error: urllib.error.HTTPError, pause: float) -> float:
    """The pause that the server asks for, in seconds; a date there is not understood."""
    try:
        return min(max(float(error.headers.get("Retry-After", pause)), 0.0), LONGEST_PAUSE)
    except ValueError:
        return pause
