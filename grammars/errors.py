"""Every error a grammar can raise, each saying where, what and why.

They live on the ground floor so that every floor above can raise and catch them.
"""

from __future__ import annotations


def quoted(text: str) -> str:
    """A text in quotes as Python writes it, but with backslashes as they are."""
    return repr(text).replace("\\\\", "\\")


class GrammarError(ValueError):
    """A pattern, schema or grammar that cannot be compiled.

    Attributes:
        reason: why, in one sentence.
        pointer: JSON pointer to the offending place (``""`` is the root), or None outside JSON Schema.
        keyword: the offending keyword or construct, or None.
        hint: what the user can do about it, or None.
    """

    def __init__(
        self,
        reason: str,
        *,
        pointer: str | None = None,
        keyword: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.reason = reason
        self.pointer = pointer
        self.keyword = keyword
        self.hint = hint
        super().__init__(reason, pointer, keyword, hint)

    def __str__(self) -> str:
        place = "" if self.pointer is None else f"at {self.pointer or 'the root'}: "
        keyword = "" if self.keyword is None else f"{quoted(self.keyword)}: "
        hint = "" if self.hint is None else f" ({self.hint})"
        return f"{place}{keyword}{self.reason}{hint}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.reason, self.pointer, self.keyword, self.hint))


def _rebuild(
    kind: type[GrammarError], reason: str, pointer: str | None, keyword: str | None, hint: str | None
) -> GrammarError:
    return kind(reason, pointer=pointer, keyword=keyword, hint=hint)


class Invalid(GrammarError):
    """The text is not a pattern, a schema or a grammar at all."""


class Unsupported(GrammarError):
    """Well formed, but not enforceable exactly by this version; it is refused, never ignored."""


class Unsatisfiable(GrammarError):
    """The language is empty: no output could ever satisfy it.

    Attributes:
        rules: the names of the grammar's rules that have no word, whatever the rules that they call may have.
    """

    rules: tuple[str, ...] = ()


class TooLarge(GrammarError):
    """The automaton would exceed a budget of states, bytes or work.

    Attributes:
        rules: the names of the grammar's rules, largest first, if they were what was too large.
    """

    rules: tuple[str, ...] = ()
