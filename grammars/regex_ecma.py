"""The pattern syntax of ECMA-262, which JSON Schema prescribes for `pattern`.

Patterns mean what they mean under the flag `u`: a character is a code point, `\\p` is a property. What the
flag would reject and Annex B accepts is read as there (`\\_`, `{` and `]` as characters, octal escapes).
Letters without a meaning (`\\A`, `\\Z`, `\\a`) are errors: other dialects give them one.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Final

from sortition.grammars.assertions import BEGIN, END, Assertion, line_begin, line_end, word_boundary
from sortition.grammars.characters import LAST_CODE_POINT, complement, union
from sortition.grammars.errors import GrammarError, quoted
from sortition.grammars.expr import Expr, Ranges, one_of
from sortition.grammars.regex_syntax import PatternParser
from sortition.grammars.unicode import (
    ASCII_DIGITS,
    ASCII_WORD,
    ECMA_LINE_ENDS,
    ECMA_SPACE,
    CaseRule,
    unicode_property,
)
from sortition.grammars.work import charge

_CONTROLS: Final = {"f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_WORD_WITHOUT_CASE: Final = union(ASCII_WORD, ((0x17F, 0x17F), (0x212A, 0x212A)))
"""Under `iu` the long s and the Kelvin sign are word characters, because they fold to s and k."""

_CAPTURING: Final = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|(\((?!\?)|\(\?P?<(?![=!]))", re.DOTALL)


class EcmaParser(PatternParser):
    """A pattern of ECMA-262. Also read: `(?P<name>...)`, and flags such as `(?i)` first, or behind `^`."""

    braces = re.compile(r"\{(?:(?P<low>[0-9]+)|(?=,[0-9]))(?P<comma>,(?P<high>[0-9]*))?\}")
    may_begin_at_zero = False
    flag_letters: ClassVar[dict[str, str]] = {"i": "ignore_case", "m": "multi_line", "s": "dot_all"}
    bracket_may_come_first = False
    has_possessive = False
    fixed_behind = False
    repeated_looks = False
    line_ends = ECMA_LINE_ENDS
    case_rule: CaseRule = "ecma"

    def __init__(self, pattern: str) -> None:
        super().__init__(pattern)
        self._branches_of: dict[str, list[dict[int, int]]] = {}

    def anchor(self, sign: str) -> Assertion:
        """`$` stands at the very end only."""
        if self.flags.multi_line:
            return line_begin(ECMA_LINE_ENDS) if sign == "^" else line_end(ECMA_LINE_ENDS)
        return BEGIN if sign == "^" else END

    def escape(self) -> Expr:
        """Word boundaries, backreferences, classes, characters."""
        start = self.position - 1
        if boundary := self.take(r"[bB]"):
            return word_boundary(self._word, negated=boundary[0] == "B")
        if self.skip("k<"):
            return self.backreference(self.names.get(self.name_group(">")), start)
        if (reference := self.take(r"[1-9][0-9]*")) and int(reference[0][:4]) <= self._groups_in_all:
            number = int(reference[0])
            return self.backreference(number if number <= self.capturing else None, start)
        self.position = start + 1
        meaning = self._class_or_character(start)
        return self.character(meaning) if isinstance(meaning, int) else one_of(meaning)

    def class_escape(self) -> int | Ranges:
        """Classes and characters."""
        start = self.position - 1
        return 8 if self.skip("b") else self._class_or_character(start)

    def mixed_range(self, low: int | Ranges, high: int | Ranges, start: int) -> Ranges:
        """Both sides and the minus sign (Annex B), unless it looks like a difference of sets."""
        if self.pattern.endswith("--", 0, self.position) and high == 0x2D and not self.ahead("]"):
            what = "differences of sets, which the flag v has and others read as a union, are"
            hint = r"write (?!\d)\w for [\w--\d], or escape the - for text"
            raise self.unsupported("--", what, self.position - 2, hint)
        members = (((side, side),) if isinstance(side, int) else side for side in (low, high))
        return self.with_cases(union(((0x2D, 0x2D),), *members))

    def special_group(self) -> None:
        """Names, flags and lookaround."""
        start = self.position
        if self.skip("(?:"):
            self.open(start)
        elif lookaround := self.take(r"\(\?<?[=!]"):
            self.open(start, look=lookaround[0])
        elif self.take(r"\(\?P?<"):
            name = self.name_group(">")
            self._check_new(name, start)
            self.capture(start, name)
        else:
            at_the_start = self.at_the_start
            # Behind an anchor they mean the same, but for the flag that changes anchors.
            anchored = self.anchored_start
            modifiers = self.modifiers()
            if modifiers and anchored and "m" not in modifiers[0]:
                at_the_start = True
            if modifiers is None or (modifiers[2] == ")" and (modifiers[1] or not at_the_start)):
                hint = "flags hold for a group, (?i:...), or begin the pattern" if modifiers else None
                raise self.invalid(f"unknown group {self.pattern[start : start + 3]!r}", start, hint)
            turned_on, turned_off, end = modifiers
            fields = {self.flag_letters[letter]: letter in turned_on for letter in turned_on | turned_off}
            flags = replace(self.flags, **fields)
            if end == ")":
                self.flags = flags
            else:
                self.open(start, flags=flags)

    def _check_new(self, name: str, start: int) -> None:
        """Groups share a name only where at most one of them takes part: in different branches."""
        here = self.branch
        charge(1 + len(self._branches_of.setdefault(name, [])))
        for before in self._branches_of[name]:
            if all(before.get(group, number) == number for group, number in here.items()):
                raise self.invalid(f"another group is named {name!r}", start)
        self._branches_of[name].append(here)

    @cached_property
    def _groups_in_all(self) -> int:
        return sum(match[1] is not None for match in _CAPTURING.finditer(self.pattern))

    @property
    def _word(self) -> Ranges:
        return _WORD_WITHOUT_CASE if self.flags.ignore_case else ASCII_WORD

    def _class_or_character(self, start: int) -> int | Ranges:
        if self.position >= len(self.pattern):
            raise self.invalid("nothing follows the backslash", start)
        if octal := self.take(r"[0-3][0-7]{0,2}|[4-7][0-7]?"):
            return int(octal[0], 8)
        letter = self.pattern[self.position]
        self.position += 1
        if letter in "dDsSwW":
            ranges = {"d": ASCII_DIGITS, "s": ECMA_SPACE, "w": self._word}[letter.lower()]
            return self.with_cases(ranges if letter.islower() else complement(ranges))
        if letter in "pP":
            return self._property(letter == "P", start)
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter == "c" and (control := self.take(r"[a-zA-Z]")):
            return ord(control[0]) % 32
        if letter == "x" and (digits := self.take(r"[0-9a-fA-F]{2}")):
            return int(digits[0], 16)
        if letter == "u":
            return self._unicode_escape(start)
        if letter.isascii() and letter.isalpha():
            raise self.invalid(f"bad escape {quoted(self.pattern[start : self.position])}", start)
        return ord(letter)

    def _unicode_escape(self, start: int) -> int:
        if pair := self.take(r"([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})"):
            high, low = int(pair[1], 16), int(pair[2], 16)
            return 0x10000 + ((high - 0xD800) << 10 | low - 0xDC00)
        if digits := self.take(r"[0-9a-fA-F]{4}"):
            return int(digits[0], 16)
        if (digits := self.take(r"\{0*([0-9a-fA-F]{1,6})\}")) and int(digits[1], 16) <= LAST_CODE_POINT:
            return int(digits[1], 16)
        raise self.invalid(f"bad escape {quoted(self.pattern[start : self.position + 1])}", start)

    def _property(self, negated: bool, start: int) -> Ranges:
        braced = self.take(r"\{([^}]*)\}")
        if braced is None:
            raise self.invalid("a property is written in braces", start, hint=r"for example \p{L}")
        try:
            ranges = unicode_property(braced[1])
        except GrammarError as error:
            reason = f"{error.reason}, at position {start}"
            raise type(error)(reason, keyword=error.keyword, hint=error.hint) from error
        return self.with_cases(complement(ranges) if negated else ranges)
