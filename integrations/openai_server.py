"""Requests to a server with OpenAI's interface: JSON in, JSON out, and patience."""

from __future__ import annotations

import http.client
import json
import os
import threading
import urllib.error
import urllib.request
from typing import Any, Final

PAUSES: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each further attempt, where the server names no other: 15 in all, a restart of a proxy."""

LONGEST_PAUSE: Final = 60.0
"""Seconds, whatever the server asks for."""

PATIENCE: Final = 600.0
"""Seconds of silence after which an attempt is given up; a request's time in the server's queue is silent."""

LONGEST_MESSAGE: Final = 300
"""Characters of a server's message that are kept: it may repeat the request."""

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

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url.rstrip("/")
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the pauses between attempts; whoever is in one gets no answer."""
        self._stopped.set()

    def ask(self, path: str, body: Any = None) -> Any:
        """The server's answer to a body, or without one to a mere GET. Asks again where that may help.

        Raises:
            Unanswered, Refused: see there.
        """
        for pause in (*PAUSES, None):
            try:
                return self._attempt(path, body)
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

    def _attempt(self, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        call = urllib.request.Request(self._base_url + path, data, {"Content-Type": "application/json"})
        key = os.environ.get(KEY)
        if key:
            # Not sent on to wherever a redirection leads.
            call.add_unredirected_header("Authorization", f"Bearer {key}")
        with urllib.request.urlopen(call, timeout=PATIENCE) as answer:
            return json.load(answer)


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
    # {"error": {"message": ...}} by OpenAI's interface, {"detail": ...} by many a server's frame.
    for name in ("error", "detail", "message"):
        if isinstance(said, dict):
            said = said.get(name, said)
    text = said if isinstance(said, str) else json.dumps(said)
    return " ".join(text.split())[:LONGEST_MESSAGE] or str(error.reason)


def _asked_for(error: urllib.error.HTTPError, pause: float) -> float:
    """The pause that the server asks for, in seconds; a date there is not understood."""
    try:
        return min(max(float(error.headers.get("Retry-After", pause)), 0.0), LONGEST_PAUSE)
    except ValueError:
        return pause
