"""Rules as they are made: each has its name before its body, so that recursion needs nothing special."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeAlias, TypeVar

from sortition.grammars.expr import NOTHING, Call, Expr, alternative
from sortition.grammars.json_characters import Spelling
from sortition.grammars.nfa import NODE_STEPS
from sortition.grammars.schema_facts import Terms
from sortition.grammars.schema_origin import Origin, placed
from sortition.grammars.schema_ways import Counted, Marks
from sortition.grammars.work import charge, expect

RULE_STEPS: Final = 60
"""Steps that each rule takes."""

Names: TypeAlias = tuple[str, ...]
"""Rules any one of which may be called."""

Way = TypeVar("Way", Marks, Counted)


class Rules:
    """The rules of one schema.

    Attributes:
        bodies: the expression of each rule, by name; `NOTHING` until it is made.
        origins: where in the schema each comes from, by name.
        positions: places in all strings together, each of which needs a node.
    """

    def __init__(self) -> None:
        self.bodies: dict[str, Expr] = {}
        self.origins: dict[str, Origin] = {}
        self.positions = 0
        self._calls: dict[Names, Expr] = {}
        self._parts: dict[Hashable, Expr] = {}
        self._strings: dict[str, tuple[Terms, Callable[[bool], Spelling]]] = {}

    def fresh(self, name: str) -> str:
        """A name that no rule has: this one, if it is free."""
        charge(RULE_STEPS)
        return name if name not in self.bodies else f"{name} ({len(self.bodies)})"

    def count(self, places: int) -> None:
        """Take note of how many places there are in a string."""
        self.positions += places
        expect(NODE_STEPS * self.positions, "to count characters")

    def put_off(self, name: str, terms: Terms, spell: Callable[[bool], Spelling]) -> None:
        """Put off a rule for strings until it is known how all strings are to be spelled.

        Args:
            name: of the rule.
            terms: that the strings fulfil, for errors.
            spell: makes the body, given whether characters are calls.
        """
        self.bodies[name] = NOTHING
        self._strings[name] = (terms, spell)

    def spell(self, called: bool) -> None:
        """Make the rules that were put off; `called`: characters are calls."""
        for name, (terms, spell) in self._strings.items():
            with placed(terms):
                spelling = spell(called)
            self.bodies[name] = spelling.expr
            self.bodies.update(spelling.rules)

    def call(self, names: Names) -> Expr:
        """Any one of the rules; the same object for the same rules."""
        expr = self._calls.get(names)
        if expr is None:
            expr = self._calls[names] = alternative(*(Call(name) for name in names))
        return expr

    def calls(self, ways: Sequence[tuple[Names, Way]]) -> list[tuple[Expr, Way]]:
        """The ways to write a value, its rules as calls."""
        return [(self.call(names), way) for names, way in ways]

    def part(self, content: Hashable, expr: Expr) -> Expr:
        """A call to a rule for a part of an object; the same for the same content."""
        call = self._parts.get(content)
        if call is None:
            name = self.fresh(f"part {len(self._parts)}")
            self.bodies[name] = expr
            call = self._parts[content] = Call(name)
        return call
