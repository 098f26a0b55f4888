"""Lowering: what a schema says becomes rules, in which equal pieces are one rule wherever they stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import comb
from typing import Final, TypeAlias

from sortition.grammars.errors import GrammarError, Unsatisfiable, Unsupported
from sortition.grammars.expr import NOTHING, Expr, literal
from sortition.grammars.json_any_value import ANY_OF_TYPE, any_value_rules
from sortition.grammars.json_keys import KeyRules
from sortition.grammars.json_numbers import number
from sortition.grammars.json_plans import (
    ArrayPlan,
    MemberPlan,
    ObjectsPlan,
    ShapePlan,
    Ways,
    depths_of,
    expect_all_sets,
    indentation,
)
from sortition.grammars.json_rules import Names, Rules, Way
from sortition.grammars.json_strings import languages_of_any, of_lengths, positions, string
from sortition.grammars.json_whitespace import Policy
from sortition.grammars.schema_assertions import DIFFERENT
from sortition.grammars.schema_covering import covers
from sortition.grammars.schema_facts import Arrays, Facts, Numbers, Objects, Strings, Terms
from sortition.grammars.schema_keys import Met, Signs, classes, declared, is_key, listed_keys, terms_of
from sortition.grammars.schema_keywords import leave
from sortition.grammars.schema_logic import Logic
from sortition.grammars.schema_order import placed_in_order
from sortition.grammars.schema_origin import NO_VALUE, Kind, Origin, crossed, placed, too_large_at
from sortition.grammars.schema_ways import Marks, item_ways, member_ways, values_of
from sortition.grammars.work import charge

OBJECT_STEPS: Final = 1_200
"""Steps that each object takes, with all that is in it."""

ARRAY_STEPS: Final = 80
"""Steps that each array takes, beside those of its items."""

MANY_SETS: Final = 4
"""Sets of strings at one place up to which each has a rule of its own; more become one automaton."""

MANY_SPACES: Final = 5_000
"""Spaces of indentation at all places together from which on line breaks become calls, too.

A Kubernetes schema of 504 rules then needs 14,500 states instead of 31,200, more than a machine may have.
With 5,000 to 14,000 spaces machines have half the states and take up to half the time, tables take the same,
and a step of 11 microseconds takes up to 2 more.
"""

MANY_POSITIONS: Final = 200
"""Places in all strings together from which on characters become calls (see `json_characters`).

With two strings of up to 255 characters the machine then takes 0.1 s instead of 0.6 s, and the table for 128k
tokens 1.5 MiB instead of 2.9 MiB; but ten times as many of its moves need a look at the stack.
"""

Part: TypeAlias = "str | Numbers | Strings | Arrays | Objects | tuple[Objects, ...]"
"""What a rule accepts: null, true or false, a set of values of one type, or several sets of objects."""

_KINDS: Final[dict[type, Kind]] = {
    Numbers: "number",
    Strings: "string",
    Arrays: "array",
    Objects: "object",
    tuple: "object",
}
_ANY_PARTS: Final[tuple[Part, ...]] = ("null", "true", "false", *ANY_OF_TYPE)


class Lowering:
    """Makes the rules of one schema."""

    def __init__(self, logic: Logic, policy: Policy, any_order: bool) -> None:
        self.rules = Rules()
        self._keys = KeyRules(self.rules, logic.cases)
        self._logic = logic
        self._policy = policy
        self._any_order = any_order
        self._plans: dict[str, ObjectsPlan | ArrayPlan] = {}
        self._names: dict[Part, str] = {}
        self._values: dict[tuple[Terms, ...], list[Names]] = {}
        self._waiting: list[tuple[str, Arrays | tuple[Objects, ...], Origin]] = []
        self._is_free = False

    def lower(self, root: Terms) -> tuple[Expr, Mapping[str, Expr]]:
        """The root expression and all rules.

        Raises:
            GrammarError: as `json_schema`.
        """
        names = self._value(root)
        while self._waiting:
            name, part, origin = self._waiting.pop()
            # What is inside of a value has no place of its own.
            with too_large_at(origin if origin.keyword else Origin.of(root)):
                if isinstance(part, Arrays):
                    self._plans[name] = self._array(part, origin)
                else:
                    shapes = [self._shape(objects, origin, len(part) == 1) for objects in part]
                    self._plans[name] = ObjectsPlan(origin, shapes, self._any_order)
        if not self._logic.possible(root):
            raise self._unsatisfiable(root)
        bodies = self.rules.bodies
        depths = depths_of(self._plans, names, self._policy)
        spaces = indentation(self._plans, depths, self._policy)
        called = self.rules.positions > MANY_POSITIONS or spaces > MANY_SPACES
        expect_all_sets([self._plans[name] for name in depths], self.rules)
        for name, at in depths.items():
            plan, whitespace = self._plans[name], self._policy.at(at, called)
            with too_large_at(plan.origin):
                bodies[name] = plan.graph(self.rules, whitespace)
            bodies.update(whitespace.rules)
        self.rules.spell(called)
        if self._is_free:
            bodies.update(any_value_rules(self._policy, called, self._any_order))
        return self.rules.call(names), bodies

    def _value(self, terms: Terms) -> Names:
        """The rules whose words are the values that fulfil the terms."""
        return self._ways_of((terms,))[0]

    def _ways_of(self, ways: tuple[Terms, ...]) -> list[Names]:
        """The same for each of some ways to write one value."""
        names = self._values.get(ways)
        if names is None:
            parts = [self._parts_of(terms) for terms in ways]
            cases, possible = self._logic.cases, self._logic.possible
            objects = [[part for part in each if isinstance(part, Objects)] for each in parts]
            covering = [covers(each, self._any_order, cases) for each in objects]
            ordered = {} if self._any_order else placed_in_order(covering, cases, possible)
            names = self._values[ways] = []
            for terms, each, among in zip(ways, parts, covering, strict=True):
                kept = [part for part in each if not isinstance(part, Objects) or among[part] is part]
                written = [ordered.get(part, part) if isinstance(part, Objects) else part for part in kept]
                names.append(self._names_of(written, terms))
        return names

    def _parts_of(self, terms: Terms) -> list[Part]:
        """The parts of the values that fulfil the terms, none beside all of their type."""
        if not terms:
            return list(_ANY_PARTS)
        parts = dict.fromkeys(part for facts in self._logic.cases(terms) for part in _parts(facts))
        free = {type(part) for part in parts if part in ANY_OF_TYPE}
        return [part for part in parts if part in ANY_OF_TYPE or type(part) not in free]

    def _names_of(self, parts: Sequence[Part], terms: Terms) -> Names:
        """The names of the rules for these parts; many sets of strings become one automaton."""
        strings = [part for part in parts if isinstance(part, Strings) and part.values is None]
        if len(strings) > MANY_SETS:
            parts = [part for part in parts if part not in strings]
        objects = tuple(part for part in parts if isinstance(part, Objects) and part not in ANY_OF_TYPE)
        if len(objects) > 1 and not self._any_order:
            others = [part for part in parts if not isinstance(part, Objects) or part in ANY_OF_TYPE]
            parts = [*others, objects]
        with placed(terms, None):
            names = tuple(dict.fromkeys(self._name(part, terms) for part in parts))
        return names + self._any_of(strings, terms) if len(strings) > MANY_SETS else names

    def _any_of(self, sets: Sequence[Strings], terms: Terms) -> Names:
        """The names of rules for many sets of strings: one for each pair of lengths that is counted."""
        origin = Origin.of(terms, "string")
        names = []
        with placed(terms):
            for low, high, automaton in languages_of_any(sets):
                self.rules.count(len(automaton))
                name = self.rules.fresh(f"string {origin.pointer or '/'}")
                self.rules.origins[name] = origin
                self.rules.put_off(name, terms, partial(of_lengths, automaton, low, high))
                names.append(name)
        return tuple(names)

    def _name(self, part: Part, terms: Terms) -> str:
        """The name of the rule for a part, which is made if it is new."""
        if isinstance(part, str):
            self.rules.bodies[part] = literal(part.encode())
            return part
        name = self._names.get(part)
        if name is not None:
            return name
        if isinstance(part, Arrays):
            for refusal in part.refused:
                raise refusal.error
        if part in ANY_OF_TYPE:
            name = ANY_OF_TYPE[part]
            self._is_free = True
        else:
            origin = Origin.of(terms, _KINDS[type(part)])
            name = self.rules.fresh(f"{_KINDS[type(part)]} {origin.pointer or '/'}")
            self.rules.origins[name] = origin
            if isinstance(part, Numbers):
                with placed(terms, "number"):
                    self.rules.bodies[name] = number(part)
            elif isinstance(part, Strings):
                with placed(terms):
                    self.rules.count(positions(part))
                self.rules.put_off(name, terms, partial(string, part))
            else:
                self._waiting.append((name, (part,) if isinstance(part, Objects) else part, origin))
                self.rules.bodies[name] = NOTHING
        self._names[part] = name
        return name

    def _shape(self, objects: Objects, origin: Origin, alone: bool) -> ShapePlan:
        """The plan for one set of objects, which may be alone."""
        cases = self._logic.cases
        charge(OBJECT_STEPS)
        names, required, signs = declared(objects), frozenset(objects.required), Signs.of(objects)
        listed: list[str] = []
        if alone and objects.low > len(required) + 1 and not objects.wishes:
            # What is declared does not repeat, so that it can be counted.
            listed = listed_keys(objects.names, cases)
            names = tuple(dict.fromkeys([*names, *listed]))
        members = []
        for key in names:
            value: Ways = []
            if is_key(key, objects.names, cases):
                value = self._member(terms_of(objects, key), signs.met_by(key, cases), False)
            left_out = Marks(signs.absent.get(key, 0))
            if value or key in required or left_out != Marks():
                rule = self._keys.declared(key, origin)
                members.append(MemberPlan(rule, value, key in required, left_out))
        undeclared = [
            (keys.automaton, self._member(keys.value, keys.met, True))
            for keys in classes(objects, frozenset(names), signs, cases, self._logic.possible)
            if not listed
        ]
        undeclared = [(keys, value) for keys, value in undeclared if value]
        anywhere = [
            (self._keys.anywhere(frozenset(names), objects.later, keys, objects.names, origin), value)
            for keys, value in undeclared
        ]
        after = [
            [(self._keys.later(group, keys, objects.names, origin), value) for keys, value in undeclared]
            for group in objects.later
        ]
        # Keys that are not declared may repeat, and only one of them is sure to be a member more.
        if undeclared and objects.low > len(objects.required) + 1:
            raise Unsupported(
                "it cannot be enforced while keys that are not declared may repeat",
                pointer=origin.pointer,
                keyword="minProperties",
                hint="declare the keys and set additionalProperties to false, list them in an enum under "
                f"propertyNames, or {leave('minProperties')}",
            )
        return ShapePlan(members, anywhere, after, objects.low, objects.high, len(objects.wishes))

    def _member(self, value: Terms, met: Sequence[Met], repeats: bool) -> Ways:
        """The rules for the value of a member, by the wishes that it fulfils."""
        # The opposite of a container takes more than what it saves to follow one way at a time.
        cases = self._logic.cases(value) if met and value else ()
        simple = bool(cases) and not any(each.array or each.object for each in cases)
        exclusive = not repeats and (self._any_order or simple)
        return self._named(list(member_ways(value, met, repeats, exclusive, self._logic.possible)))

    def _array(self, arrays: Arrays, origin: Origin) -> ArrayPlan:
        """The plan for a set of arrays."""
        charge(ARRAY_STEPS)
        start = max((each.start for each in arrays.contains), default=0)
        listed = max(len(arrays.first), start)
        values = self._different(arrays, listed)
        items = []
        for index in range(listed + 1):
            ways = item_ways(arrays.item(index), values, arrays.contains, index)
            items.append(self._named(ways))
        wanted = [(0, 1)] * len(values) + [(each.low, each.high) for each in arrays.contains]
        return ArrayPlan(origin, items[:-1], items[-1], arrays.low, arrays.high, wanted)

    def _different(self, arrays: Arrays, listed: int) -> list[Facts]:
        """The values of which each may occur once; none where items need not differ or there is only one."""
        possible = [arrays.item(i) for i in range(listed + 1) if self._logic.possible(arrays.item(i))]
        at_most_one = len(possible) <= 1 and not self._logic.possible(arrays.others)
        if not arrays.unique or at_most_one or (arrays.high is not None and arrays.high <= 1):
            return []
        found = [values_of(item, self._logic.cases) for item in possible]
        values = list(dict.fromkeys(value for each in found for value in each or ()))
        if None in found or _sets(len(values), arrays.high) > DIFFERENT:
            raise arrays.unique[0].error
        return values

    def _named(self, ways: Sequence[tuple[Terms, Way]]) -> list[tuple[Names, Way]]:
        """The rules for ways to write one value, without those that are impossible."""
        names = self._ways_of(tuple(terms for terms, _ in ways))
        return [(each, way) for each, (_, way) in zip(names, ways, strict=True) if each]

    def _unsatisfiable(self, root: Terms) -> GrammarError:
        """The error for a root without values: it points to the innermost thing that nothing can fulfil."""
        current, seen, origin = root, {root}, Origin.of(root)
        while True:
            here = Origin.of(current)
            origin = here if here.keyword else origin
            needed = [
                inner
                for facts in self._logic.cases(current)
                for inner in self._logic.needed(facts)
                if inner not in seen and not self._logic.possible(inner)
            ]
            if not needed:
                return crossed(current) or origin.error(Unsatisfiable, NO_VALUE)
            current = needed[0]
            seen.add(current)


def _sets(values: int, high: int | None) -> int:
    """How many sets there are of so many values, with up to so many in each; of too many, some of them."""
    if values > DIFFERENT:
        return values
    return sum(comb(values, size) for size in range(1 + (values if high is None else min(values, high))))


def _parts(facts: Facts) -> Iterator[Part]:
    """What facts allow, type by type."""
    if facts.null:
        yield "null"
    if facts.true:
        yield "true"
    if facts.false:
        yield "false"
    for part in (facts.number, facts.string, facts.array, facts.object):
        if part is not None:
            yield part
