"""Pattern text -> expression over code points: what the dialects share, in one pass without recursion.

Anchors and word boundaries come out as `Assertion`. What a dialect decides for itself is an abstract method.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import ClassVar, Final

from sortition.grammars.assertions import BEGIN, END_OR_LAST_NEWLINE, Assertion, conditions_in, numbers
from sortition.grammars.backreferences import Backreference, Group, without_backreferences
from sortition.grammars.characters import ANY_CHARACTER, complement, intersection, union
from sortition.grammars.errors import Invalid, TooLarge, Unsupported, quoted
from sortition.grammars.expr import (
    EMPTY,
    NOTHING,
    Alternative,
    Class,
    Concat,
    Expr,
    Graph,
    Literal,
    Ranges,
    Repeat,
    alternative,
    concat,
    literal,
    one_of,
    repeat,
)
from sortition.grammars.lookaround import Look
from sortition.grammars.nfa import NODE_STEPS
from sortition.grammars.unicode import CaseRule, with_other_cases
from sortition.grammars.words import any_of
from sortition.grammars.work import BUDGET, charge, expect

NESTING_BUDGET: Final = 50
"""Groups inside one another; each costs later stages up to 7 Python frames, of which there are 1,000."""

CLASS_STEPS: Final = 15
"""Steps that a character class takes to be read, or a letter in any case."""

RANGES_PER_STEP: Final = 1
"""Ranges of character classes that are read in one step."""

_PLAIN: Final = re.compile(r"[^\\.^$*+?{}()|\[\]\s#]+")
_SPACE_OR_COMMENT: Final = re.compile(r"[ \t\n\r\v\f]+|#(?:[^\\\n]|\\.)*", re.DOTALL)
"""What the flag `x` skips; an escaped newline ends no comment."""
_BACKREFERENCE: Final = re.compile(r"\\[1-9]|\\k<|\(\?P=")
"""What every pattern with backreferences has in it."""
_MODIFIERS: Final = re.compile(r"\(\?(?P<on>[a-zA-Z]*)(?:-(?P<off>[a-zA-Z]+))?(?P<end>[:)])")


@dataclass(frozen=True)
class Flags:
    """The flags in force at one place of a pattern."""

    ignore_case: bool = False
    multi_line: bool = False
    dot_all: bool = False
    verbose: bool = False
    ascii: bool = False


class _Last(Enum):
    """What a quantifier would apply to."""

    NOTHING = auto()
    ATOM = auto()
    ASSERTION = auto()
    REPEAT = auto()


@dataclass
class _Group:
    """A group that is open: the branches before the last `|`, the items since, how lookaround begins.

    `number` is that of what it captures, 0 if nothing; `greedy` is the last item if that is a greedy repeat.
    """

    opening: int
    outer_flags: Flags
    atomic: bool = False
    look: str = ""
    number: int = 0
    branches: list[Expr] = field(default_factory=list)
    items: list[Expr] = field(default_factory=list)
    last: _Last = _Last.NOTHING
    greedy: tuple[Expr, int, int | None] | None = None


class PatternParser(ABC):
    """One pattern being read.

    Attributes:
        pattern: the text.
        position: where the next character is.
        flags: in force here.
        names: of the groups so far, with their numbers.
    """

    braces: ClassVar[re.Pattern[str]]
    """A counted repeat, with its bounds as groups `low`, `comma` and `high`."""
    may_begin_at_zero: ClassVar[bool]
    """Whether the lower bound may be left out."""
    flag_letters: ClassVar[dict[str, str]]
    """The field of `Flags` for every letter."""
    bracket_may_come_first: ClassVar[bool]
    """Whether `]` at the beginning of a class is a member."""
    has_possessive: ClassVar[bool]
    fixed_behind: ClassVar[bool]
    """Whether what is looked for behind must have one length."""
    repeated_looks: ClassVar[bool]
    """Whether a quantifier may follow lookaround."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.position = 0
        self.flags = Flags()
        self.names: dict[str, int] = {}
        self.capturing = 0
        self._refers = _BACKREFERENCE.search(pattern) is not None
        self._groups = [_Group(0, self.flags)]

    @abstractmethod
    def escape(self) -> Expr:
        """Read an escape outside a class; `position` is behind the backslash."""

    @abstractmethod
    def class_escape(self) -> int | Ranges:
        """Read an escape inside a class: one character or a set."""

    @abstractmethod
    def special_group(self) -> None:
        """Read `(?` and what follows up to the content of the group."""

    @abstractmethod
    def mixed_range(self, low: int | Ranges, high: int | Ranges, start: int) -> Ranges:
        """What `low-high` means in a class where one of them is not a single character."""

    @abstractmethod
    def anchor(self, sign: str) -> Assertion:
        """What `^` or `$` means here."""

    @property
    @abstractmethod
    def line_ends(self) -> Ranges:
        """What `.` does not match."""

    @property
    @abstractmethod
    def case_rule(self) -> CaseRule:
        """How case is ignored here."""

    def parse(self) -> Expr:
        """The language of the pattern, with assertions in it.

        Raises:
            Invalid: not a pattern of this dialect.
            Unsupported: constructs that are not regular or not built, such as backreferences to any text.
            TooLarge: groups nested too deeply, or too long repeats.
        """
        while self.position < len(self.pattern):
            if self.flags.verbose and (skipped := _SPACE_OR_COMMENT.match(self.pattern, self.position)):
                self.position = skipped.end()
            elif plain := _PLAIN.match(self.pattern, self.position):
                self.position = plain.end()
                self._characters(plain.group())
            else:
                self._special()
        group = self._groups[-1]
        if len(self._groups) > 1:
            raise self.invalid("missing )", group.opening)
        expr = _choice(group)
        if self._refers:
            expr = without_backreferences(expr)
        expect(NODE_STEPS * unrolled(expr), "the pattern with its repeats written out")
        return expr

    def invalid(self, problem: str, position: int, hint: str | None = None) -> Invalid:
        """The error for text that is not a pattern."""
        return Invalid(f"{problem} at position {position}", hint=hint)

    def unsupported(self, construct: str, what: str, position: int, hint: str | None = None) -> Unsupported:
        """The error for a construct that is understood but not enforced."""
        return Unsupported(f"{what} not supported, at position {position}", keyword=construct, hint=hint)

    def ahead(self, text: str) -> bool:
        """Whether this text comes next."""
        return self.pattern.startswith(text, self.position)

    def skip(self, text: str) -> bool:
        """Read this text if it comes next."""
        if self.ahead(text):
            self.position += len(text)
            return True
        return False

    def take(self, expression: str) -> re.Match[str] | None:
        """Read what this regular expression matches next."""
        match = re.compile(expression).match(self.pattern, self.position)
        if match:
            self.position = match.end()
        return match

    def character(self, code: int) -> Expr:
        """One character, or its other cases where case is ignored."""
        if self.flags.ignore_case:
            return self.members(((code, code),))
        return literal((code,)) if intersection(((code, code),), ANY_CHARACTER) else NOTHING

    def members(self, ranges: Ranges) -> Expr:
        """One character of a set, or its other cases where case is ignored."""
        return one_of(intersection(self.with_cases(ranges), ANY_CHARACTER))

    def with_cases(self, ranges: Ranges) -> Ranges:
        """The set as it is written, or with the other cases where case is ignored."""
        return with_other_cases(ranges, self.case_rule) if self.flags.ignore_case else ranges

    def name_group(self, end: str) -> str:
        """Read the name of a group and the character after it."""
        start = self.position
        stop = self.pattern.find(end, start)
        name = self.pattern[start : max(start, stop)]
        if stop < 0 or not name.replace("$", "_").isidentifier():
            raise self.invalid("a group needs a name that is an identifier", start)
        self.position = stop + 1
        return name

    def open(self, opening: int, *, flags: Flags | None = None, atomic: bool = False, look: str = "") -> None:
        """Begin a group whose opening parenthesis is at `opening`."""
        if len(self._groups) > NESTING_BUDGET:
            raise TooLarge(f"more than {NESTING_BUDGET} groups inside one another at position {opening}")
        self._groups.append(_Group(opening, self.flags, atomic, look))
        self.flags = flags or self.flags

    def capture(self, opening: int, name: str = "") -> None:
        """Begin a group that captures what it matches."""
        self.open(opening)
        self.capturing += 1
        self._groups[-1].number = self.capturing
        if name:
            self.names[name] = self.capturing

    def backreference(self, group: int | None, position: int) -> Expr:
        """What a group has matched, None for one that has not been read."""
        sign = self.pattern[position : self.position]
        if group is None:
            raise self.unsupported(sign, "backreferences to groups that follow are", position)
        if self.flags.ignore_case:
            raise self.unsupported(sign, "backreferences that ignore case are", position)
        return Backreference(group, sign, position)

    def modifiers(self) -> tuple[set[str], set[str], str] | None:
        """Read `(?on-off:` or `(?on)`: the letters at both sides of the minus sign, the last character."""
        match = _MODIFIERS.match(self.pattern, self.position)
        if match is None or not (match["on"] or match["off"]):
            return None
        turned_on, turned_off = set(match["on"]), set(match["off"] or "")
        unknown = (turned_on | turned_off) - self.flag_letters.keys()
        if unknown:
            raise self.invalid(f"unknown flag {min(unknown)!r}", self.position)
        if turned_on & turned_off:
            raise self.invalid("a flag is turned on and off", self.position)
        self.position = match.end()
        return turned_on, turned_off, match["end"]

    @property
    def branch(self) -> dict[int, int]:
        """In which branch of each open group, by the place of its parenthesis, the next item is."""
        return {group.opening: len(group.branches) for group in self._groups[1:]} | {
            -1: len(self._groups[0].branches)
        }

    @property
    def at_the_start(self) -> bool:
        """Whether nothing but comments and flags has been read."""
        group = self._groups[0]
        return len(self._groups) == 1 and not group.branches and group.last is _Last.NOTHING

    @property
    def anchored_start(self) -> bool:
        """Whether nothing but anchors to the beginning of the text has been read."""
        group = self._groups[0]
        return len(self._groups) == 1 and not group.branches and all(each is BEGIN for each in group.items)

    def _special(self) -> None:
        """Read one item that begins with a character that may have a meaning."""
        start = self.position
        sign = self.pattern[start]
        group = self._groups[-1]
        if sign == "\\":
            self.position += 1
            self.item(self.escape())
        elif sign == "[":
            self.item(self._character_class())
        elif sign == "(":
            if self.ahead("(?"):
                self.special_group()
            else:
                self.position += 1
                self.capture(start)
        elif sign == ")":
            self.position += 1
            if len(self._groups) == 1:
                raise self.invalid("unbalanced parenthesis", start)
            self._close()
        elif sign == "|":
            self.position += 1
            group.branches.append(_sequence(group.items))
            group.items, group.last = [], _Last.NOTHING
        elif bounds := self._quantifier():
            self._repeat(*bounds, start)
        else:
            self.position += 1
            if sign in "^$":
                self.item(self.anchor(sign))
            elif sign == ".":
                self.item(one_of(ANY_CHARACTER if self.flags.dot_all else complement(self.line_ends)))
            else:
                self._characters(sign)

    def item(self, expr: Expr) -> None:
        """Add what has been read to the group that is open."""
        if isinstance(expr, Class):
            charge(CLASS_STEPS + len(expr.ranges) // RANGES_PER_STEP)
        group = self._groups[-1]
        group.items.append(expr)
        fixed = isinstance(expr, Assertion) or (isinstance(expr, Look) and not self.repeated_looks)
        group.last = _Last.ASSERTION if fixed else _Last.ATOM

    def _characters(self, text: str) -> None:
        """Plain characters; the last is an item of its own, since a quantifier may follow."""
        if self.flags.ignore_case or not text.isascii():
            for character in text:
                self.item(self.character(ord(character)))
            return
        if len(text) > 1:
            self.item(literal(tuple(map(ord, text[:-1]))))
        self.item(literal((ord(text[-1]),)))

    def _close(self) -> None:
        group = self._groups.pop()
        self.flags = group.outer_flags
        expr = _choice(group)
        if group.atomic:
            expr = self._atomic(group)
        if group.look:
            self.item(self._look(expr, group))
            return
        if self._refers and group.number and not any(each.look for each in self._groups):
            expr = Group(expr, group.number)
        outer = self._groups[-1]
        outer.items.append(expr)
        outer.last = _Last.ATOM

    def _look(self, body: Expr, group: _Group) -> Look:
        """Lookaround; what is inside may look in the same direction only."""
        ahead, negated = "<" not in group.look, "!" in group.look
        if self.fixed_behind and not ahead and _length(body) is None:
            raise self.invalid("look-behind needs a fixed length", group.opening)
        if not all(_is_enforced(each, ahead, negated) for each in conditions_in(body)):
            what = "looking in both directions at once, or for no end of the text behind, is"
            raise self.unsupported(group.look, what, group.opening)
        return Look(f"lookaround {next(numbers)}", body, ahead, negated)

    def _quantifier(self) -> tuple[int, int | None] | None:
        """Read the bounds of a repeat."""
        sign = self.pattern[self.position]
        if sign in "*+?":
            self.position += 1
            return (sign == "+", 1 if sign == "?" else None)
        start = self.position
        counted = self.braces.match(self.pattern, start)
        if counted is None:
            return None
        if not self.may_begin_at_zero and not counted["low"]:
            what = "repeats without a lower bound, which ECMA-262 reads as text and others as {0,n}, are"
            raise self.unsupported(counted[0], what, start, hint="write the 0, or \\{ for text")
        self.position = counted.end()
        low_text, high_text = counted["low"], counted["high"]
        if max(len(low_text), len(high_text or "")) > len(str(BUDGET)):
            raise TooLarge(
                f"the repeat at position {start} is longer than {BUDGET:,}", hint="lower the bounds"
            )
        low = int(low_text or 0)
        high = low if counted["comma"] is None else int(high_text) if high_text else None
        if high is not None and high < low:
            raise self.invalid("the bounds of the repeat are in the wrong order", start)
        return low, high

    def _repeat(self, low: int, high: int | None, start: int) -> None:
        group = self._groups[-1]
        if group.last in (_Last.NOTHING, _Last.ASSERTION):
            raise self.invalid("nothing to repeat", start)
        if group.last is _Last.REPEAT:
            raise self.invalid("multiple repeat", start)
        body = group.items[-1]
        group.items[-1] = _repeated(body, low, high)
        group.last = _Last.REPEAT
        group.greedy = None
        if self.skip("?"):
            return
        if not (self.has_possessive and self.skip("+")):
            group.greedy = body, low, high
        elif _length(group.items[-1]) is None:
            group.items[-1] = self._possessive(body, low, high, start)

    def _possessive(self, body: Expr, low: int, high: int | None, start: int) -> Expr:
        """A repeat that gives nothing back: of words of one length, it ends where no other follows."""
        if not self._has_one_way(body):
            raise self.unsupported(
                self.pattern[start : self.position],
                "possessive repeats of what has more than one length are",
                start,
                hint="a greedy repeat, without the last +, may mean the same here",
            )
        stop = Look(f"lookaround {next(numbers)}", body, True, True)
        if high is None:
            return concat(repeat(body, low, None), stop)
        return alternative(concat(repeat(body, low, high - 1), stop), repeat(body, high, high))

    def _atomic(self, group: _Group) -> Expr:
        """A group that gives nothing back: of words of one length each, the first branch that fits."""
        branches = [*group.branches, _sequence(group.items)]
        expr = any_of(tuple(branches))
        if _length(expr) is not None:
            return expr
        if len(branches) == 1 and len(group.items) == 1 and group.greedy:
            return self._possessive(*group.greedy, group.opening)
        if not all(map(self._has_one_way, branches)):
            raise self.unsupported(
                "(?>", "atomic groups with parts of more than one length are", group.opening
            )
        chosen: list[Expr] = []
        earlier: list[Expr] = []
        for branch in branches:
            chosen.append(concat(*earlier, branch))
            earlier.append(Look(f"lookaround {next(numbers)}", branch, True, True))
        return alternative(*chosen)

    def _has_one_way(self, expr: Expr) -> bool:
        """Whether a place decides if an expression fits there, and how far it reaches."""
        return not self._refers and _length(expr) is not None and not any(conditions_in(expr))

    def _character_class(self) -> Expr:
        opening = self.position
        self.position += 1
        negated = self.skip("^")
        first = self.position
        written: list[tuple[int, int]] = []
        sets: list[Ranges] = []

        def add(member: int | Ranges) -> None:
            if isinstance(member, int):
                written.append((member, member))
            elif member not in sets:
                sets.append(member)

        while not (self.ahead("]") and (self.position > first or not self.bracket_may_come_first)):
            start = self.position
            low = self._class_member(opening)
            if not (self.ahead("-") and not self.ahead("-]")):
                add(low)
                continue
            self.position += 1
            high = self._class_member(opening)
            if not (isinstance(low, int) and isinstance(high, int)):
                sets.append(self.mixed_range(low, high, start))
            elif high < low:
                raise self.invalid(f"bad range {quoted(self.pattern[start : self.position])}", start)
            else:
                written.append((low, high))
        self.position += 1
        members = union(self.with_cases(union(tuple(written))), *sets)
        return one_of(complement(members) if negated else intersection(members, ANY_CHARACTER))

    def _class_member(self, opening: int) -> int | Ranges:
        if self.position >= len(self.pattern):
            raise self.invalid("unterminated character class", opening)
        if self.skip("\\"):
            return self.class_escape()
        self.position += 1
        return ord(self.pattern[self.position - 1])


def unrolled(expr: Expr) -> int:
    """How many nodes an automaton needs at most for an expression, every repeat written out.

    Copies of a body that may be empty see through one another, so that they cost the square.
    """
    if isinstance(expr, Literal):
        return len(expr.units)
    if isinstance(expr, Concat | Alternative):
        return sum(map(unrolled, expr.parts))
    if isinstance(expr, Repeat):
        copies = max(expr.low, expr.high or 1)
        return unrolled(expr.body) * copies * (copies if _may_be_empty(expr.body) else 1)
    if isinstance(expr, Graph):
        return sum(unrolled(word) for _, word, _ in expr.edges)
    return unrolled(expr.body) if isinstance(expr, Look) else 1


def _may_be_empty(expr: Expr) -> bool:
    if isinstance(expr, Concat):
        return all(map(_may_be_empty, expr.parts))
    if isinstance(expr, Alternative):
        return any(map(_may_be_empty, expr.parts))
    if isinstance(expr, Repeat):
        return expr.low == 0 or _may_be_empty(expr.body)
    # The only graphs here are prefix trees of words.
    return not isinstance(expr, Literal | Class | Graph)


def _repeated(body: Expr, low: int, high: int | None) -> Expr:
    """A repeat; a repeat of a repeat becomes one where their counts leave no gap."""
    if isinstance(body, Look):
        # To look again changes nothing.
        return body if low else EMPTY
    if high == 0 or not isinstance(body, Repeat):
        return repeat(body, low, high)
    # n copies reach from body.low * n to body.high * n; n + 1 copies must begin no later than one after that.
    if low == high:
        gapless = True
    elif low == 0:
        gapless = body.low <= 1
    else:
        gapless = body.high is None or body.low * (low + 1) <= body.high * low + 1
    if not gapless:
        return repeat(body, low, high)
    return repeat(body.body, body.low * low, None if body.high is None or high is None else body.high * high)


def _length(expr: Expr) -> int | None:
    """The length of all words of an expression, or None where they differ or are too many to look at."""
    if isinstance(expr, Literal):
        return len(expr.units)
    if isinstance(expr, Concat):
        lengths = [_length(part) for part in expr.parts]
        return None if None in lengths else sum(length or 0 for length in lengths)
    if isinstance(expr, Alternative):
        lengths = [_length(part) for part in expr.parts]
        return lengths[0] if lengths.count(lengths[0]) == len(lengths) else None
    if isinstance(expr, Repeat):
        length = _length(expr.body)
        return None if length is None or (length and expr.low != expr.high) else length * expr.low
    if isinstance(expr, Group):
        return _length(expr.body)
    if isinstance(expr, Graph | Backreference):
        return None
    return 1 if isinstance(expr, Class) else 0


def _is_enforced(condition: Assertion | Look, ahead: bool, negated: bool) -> bool:
    """Whether a condition can be followed inside lookaround of this kind."""
    if isinstance(condition, Look):
        negated = negated or condition.negated
        return condition.ahead == ahead and all(
            _is_enforced(each, ahead, negated) for each in conditions_in(condition.body)
        )
    # That a newline follows which does not end the text is nothing that can be promised.
    return ahead or not negated or condition is not END_OR_LAST_NEWLINE


def _choice(group: _Group) -> Expr:
    return any_of((*group.branches, _sequence(group.items)))


def _sequence(items: list[Expr]) -> Expr:
    """The items one after the other, with words that touch joined."""
    parts: list[Expr] = []
    units: list[int] = []
    for item in items:
        if isinstance(item, Literal):
            units.extend(item.units)
        else:
            parts += [literal(tuple(units)), item]
            units = []
    return concat(*parts, literal(tuple(units)))
