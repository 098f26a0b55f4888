"""The error of this floor's jobs: something the user gave cannot be used."""

from __future__ import annotations

from typing import Final

LONGEST_REASON: Final = 300
"""Characters of what a library says about its own failure: it may repeat all that it was given."""


class InputError(ValueError):
    """What was given cannot be used; the message says what and where, in one line and in the user's words."""


def reason_of(problem: Exception) -> str:
    """What a library says about its own failure, in one line; libraries spread it over lines and links."""
    return " ".join(str(problem).split())[:LONGEST_REASON] or type(problem).__name__
