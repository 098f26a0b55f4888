"""The error of this floor's jobs: something the user gave cannot be used."""

from __future__ import annotations


class InputError(ValueError):
    """What was given cannot be used; the message says what and where, in one line and in the user's words."""
