"""Warnings: what a schema says without effect, a sentence for each keyword and format that is ignored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from typing import Final

from sortition.grammars.schema_keywords import ELSEWHERE, KEYWORDS, nearest

_FORMAT: Final = "format "
"""Before the name of a format among the things that are ignored."""


class Ignored:
    """The keywords and formats of a document that are ignored, with how often and where first.

    Args:
        unwanted: keywords that the user wants ignored.
    """

    def __init__(self, unwanted: Set[str]) -> None:
        self._unwanted = unwanted
        self._count: Counter[str] = Counter()
        self._first_at: dict[str, str] = {}

    def keyword(self, name: str, pointer: str) -> None:
        """Take note of a keyword."""
        self._count[name] += 1
        self._first_at.setdefault(name, pointer)

    def format(self, name: str, pointer: str) -> None:
        """Take note of a format."""
        self.keyword(_FORMAT + name, pointer)

    def warnings(self) -> tuple[str, ...]:
        """One sentence for each of them."""
        return tuple(map(self._warning, self._count))

    def _warning(self, what: str) -> str:
        more = self._count[what] - 1
        place = f"at {self._first_at[what] or 'the root'}" + (f" and {more} more" if more else "")
        if what.startswith(_FORMAT):
            return f"{what.removeprefix(_FORMAT)!r} ({place}) is not a format of JSON Schema; it is ignored"
        if what in self._unwanted:
            return f"{what!r} ({place}) is ignored, as `ignore` says"
        if what in KEYWORDS:
            return f"{what!r} ({place}) is not a keyword of the draft that the schema names; it is ignored"
        if what in ELSEWHERE:
            return f"{what!r} ({place}) is not a keyword; it is ignored: it is {ELSEWHERE[what]}"
        meant = nearest(what)
        guess = f"; did you mean {meant!r}?" if meant else ""
        return f"{what!r} ({place}) is not a keyword; it is ignored{guess}"
