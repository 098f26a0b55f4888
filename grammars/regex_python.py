"""The pattern syntax of Python's `re`, for `str` patterns."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from typing import ClassVar, Final

from sortition.grammars.assertions import (
    BEGIN,
    END,
    END_OR_LAST_NEWLINE,
    NEWLINE,
    Assertion,
    line_begin,
    line_end,
    word_boundary,
)
from sortition.grammars.characters import LAST_CODE_POINT, complement
from sortition.grammars.errors import quoted
from sortition.grammars.expr import Expr, Ranges, one_of
from sortition.grammars.regex_syntax import PatternParser
from sortition.grammars.unicode import ASCII_DIGITS, ASCII_SPACE, ASCII_WORD, CaseRule, python_class

_CONTROLS: Final = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_ASCII_CLASSES: Final = {"d": ASCII_DIGITS, "s": ASCII_SPACE, "w": ASCII_WORD}
_HEX_DIGITS: Final = {"x": 2, "u": 4, "U": 8}


class PythonParser(PatternParser):
    """A pattern of `re`. Also read: `(?<name>...)`, and `\\z` and an empty `\\B` as Python 3.14 does."""

    braces = re.compile(r"\{(?!\})(?P<low>[0-9]*)(?P<comma>,(?P<high>[0-9]*))?\}")
    may_begin_at_zero = True
    flag_letters: ClassVar[dict[str, str]] = {
        "i": "ignore_case",
        "m": "multi_line",
        "s": "dot_all",
        "x": "verbose",
        "a": "ascii",
        "u": "",
    }
    bracket_may_come_first = True
    has_possessive = True
    fixed_behind = True
    repeated_looks = True
    line_ends = NEWLINE

    @property
    def case_rule(self) -> CaseRule:
        """ASCII letters alone under the flag `a`."""
        return "ascii" if self.flags.ascii else "python"

    def anchor(self, sign: str) -> Assertion:
        """`$` also stands before a newline that ends the text."""
        if self.flags.multi_line:
            return line_begin(NEWLINE) if sign == "^" else line_end(NEWLINE)
        return BEGIN if sign == "^" else END_OR_LAST_NEWLINE

    def escape(self) -> Expr:
        """Anchors, classes, backreferences, characters."""
        start = self.position - 1
        if self.skip("A"):
            return BEGIN
        if self.skip("Z") or self.skip("z"):
            return END
        if boundary := self.take(r"[bB]"):
            return word_boundary(self._class("w"), negated=boundary[0] == "B")
        if octal := self.take(r"0[0-7]{0,2}|[1-7][0-7][0-7]"):
            return self.character(self._octal(octal[0], start))
        if reference := self.take(r"[1-9][0-9]?"):
            if int(reference[0]) > self.capturing:
                raise self.invalid(f"no group {reference[0]} to refer to", start)
            return self.backreference(int(reference[0]), start)
        meaning = self._class_or_character(start)
        return self.character(meaning) if isinstance(meaning, int) else one_of(meaning)

    def class_escape(self) -> int | Ranges:
        """Classes and characters."""
        start = self.position - 1
        if self.skip("b"):
            return 8
        if octal := self.take(r"[0-7]{1,3}"):
            return self._octal(octal[0], start)
        return self._class_or_character(start)

    def mixed_range(self, low: int | Ranges, high: int | Ranges, start: int) -> Ranges:
        """An error."""
        raise self.invalid(f"bad range {quoted(self.pattern[start : self.position])}", start)

    def special_group(self) -> None:
        """Names, flags, comments, lookaround; conditions and recursion are refused."""
        start = self.position
        if self.skip("(?:"):
            self.open(start)
        elif self.skip("(?>"):
            self.open(start, atomic=True)
        elif self.skip("(?#"):
            if not self.take(r"(?:[^)\\]|\\[\s\S])*\)"):
                raise self.invalid("unterminated comment", start)
        elif lookaround := self.take(r"\(\?<?[=!]"):
            self.open(start, look=lookaround[0])
        elif self.skip("(?("):
            raise self.unsupported("(?(", "conditions on groups are", start)
        elif self.skip("(?P="):
            name = self.name_group(")")
            if name not in self.names:
                raise self.invalid(f"no group {name!r} to refer to", start)
            self.item(self.backreference(self.names[name], start))
        elif recursion := self.take(r"\(\?(R|[0-9]+|&|P>)"):
            raise self.unsupported(recursion[0], "recursion is", start)
        elif self.take(r"\(\?P?<"):
            name = self.name_group(">")
            if name in self.names:
                raise self.invalid(f"the group name {name!r} is used twice", start)
            self.capture(start, name)
        else:
            self._open_with_flags(start)

    def _open_with_flags(self, start: int) -> None:
        modifiers = self.modifiers()
        if modifiers is None:
            raise self.invalid(f"unknown extension {self.pattern[start : start + 3]!r}", start)
        turned_on, turned_off, end = modifiers
        if {"a", "u"} <= turned_on or turned_off & {"a", "u"}:
            raise self.invalid("the flags a and u exclude each other and cannot be turned off", start)
        if end == ")" and not self.at_the_start:
            raise self.invalid("flags for the whole pattern stand at its start", start)
        if end == ")" and turned_off:
            raise self.invalid("flags are turned off inside a group only", start)
        fields = {self.flag_letters[letter]: True for letter in turned_on - {"u"}}
        fields |= {self.flag_letters[letter]: False for letter in turned_off}
        if "u" in turned_on:
            fields["ascii"] = False
        flags = replace(self.flags, **fields)
        if end == ")":
            self.flags = flags
        else:
            self.open(start, flags=flags)

    def _class(self, letter: str) -> Ranges:
        return _ASCII_CLASSES[letter] if self.flags.ascii else python_class(letter)

    def _octal(self, digits: str, start: int) -> int:
        if int(digits, 8) > 0o377:
            raise self.invalid(f"octal escape \\{digits} above \\377", start)
        return int(digits, 8)

    def _class_or_character(self, start: int) -> int | Ranges:
        if self.position >= len(self.pattern):
            raise self.invalid("nothing follows the backslash", start)
        letter = self.pattern[self.position]
        self.position += 1
        if letter in "dsw":
            return self._class(letter)
        if letter in "DSW":
            return complement(self._class(letter.lower()))
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter in _HEX_DIGITS:
            digits = self.take(rf"[0-9a-fA-F]{{{_HEX_DIGITS[letter]}}}")
            if digits and int(digits[0], 16) <= LAST_CODE_POINT:
                return int(digits[0], 16)
        elif letter == "N":
            if name := self.take(r"\{([^}]+)\}"):
                try:
                    return ord(unicodedata.lookup(name[1]))
                except (KeyError, TypeError):
                    raise self.invalid(f"no character is named {name[1]!r}", start) from None
        elif not (letter.isascii() and letter.isalnum()):
            return ord(letter)
        raise self.invalid(f"bad escape {quoted(self.pattern[start : self.position])}", start)
