"""JSON Schema -> grammar: every value and every key calls a rule, one for each typed piece.

Equal pieces are one rule wherever they stand, and a rule has its name before its body, so recursion needs
nothing special. Keys come in the order of `properties`; the whitespace between tokens depends on how deep a
rule is used, which is found out once all rules are known.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from math import comb
from typing import Any, Final, Literal, TypeAlias, TypeVar

from sortition.grammars.automaton import Automaton
from sortition.grammars.cache import Cache, content_digest
from sortition.grammars.errors import GrammarError, Invalid, TooLarge, Unsatisfiable, Unsupported
from sortition.grammars.expr import NOTHING, Call, Expr, Graph, alternative, concat, literal
from sortition.grammars.grammar import Grammar, Place
from sortition.grammars.json_arrays import array_of, is_long
from sortition.grammars.json_characters import Spelling
from sortition.grammars.json_numbers import NUMBER, number
from sortition.grammars.json_objects import Member, Shape, Undeclared, object_of
from sortition.grammars.json_strings import (
    any_string,
    finite,
    languages_of_any,
    of_language,
    of_lengths,
    other_words,
    positions,
    string,
    word,
)
from sortition.grammars.json_unordered_objects import unordered_object_of
from sortition.grammars.json_whitespace import (
    ALL_DEPTHS,
    CACHED_POLICIES,
    INDENTS,
    MOST_SPACES,
    Policy,
    Whitespace,
)
from sortition.grammars.nfa import NODE_STEPS, ROOT
from sortition.grammars.schema_assertions import DIFFERENT, terms
from sortition.grammars.schema_covering import covers
from sortition.grammars.schema_cures import cures
from sortition.grammars.schema_document import Document, checked_keys
from sortition.grammars.schema_facts import (
    Arrays,
    Facts,
    Numbers,
    Objects,
    Strings,
    Terms,
)
from sortition.grammars.schema_keys import Met, Signs, classes, declared, is_key, keys_of, terms_of
from sortition.grammars.schema_keywords import ignored, leave
from sortition.grammars.schema_logic import Logic
from sortition.grammars.schema_order import placed_in_order
from sortition.grammars.schema_origin import NO_VALUE, Kind, Origin, crossed
from sortition.grammars.schema_ways import (
    Counted,
    Marks,
    item_ways,
    member_ways,
    values_of,
)
from sortition.grammars.work import charge, expect, kept, meter, metered

RULE_STEPS: Final = 60
"""Steps that each rule takes."""

OBJECT_STEPS: Final = 1_200
"""Steps that each object takes, with all that is in it."""

ARRAY_STEPS: Final = 80
"""Steps that each array takes, beside those of its items."""

FEW: Final = 4
"""Sets of strings at one place up to which each has a rule of its own; more become one automaton."""

LARGE: Final = 14_000
"""Spaces of indentation at all places together from which on line breaks become calls, too.

A Kubernetes schema of 504 rules then needs 14,500 states instead of 31,200, more than a machine may have.
Below that, calls only cost: the table of a grammar with 13,000 states takes 2.2 s instead of 1.2 s.
"""

FAR: Final = 200
"""Places in all strings together from which on characters become calls (see `json_characters`).

With two strings of up to 255 characters the machine then takes 0.1 s instead of 0.6 s, and the table for 128k
tokens 1.5 MiB instead of 2.9 MiB; but ten times as many of its moves need a look at the stack.
"""

LOWERED_CACHE: Final = 20_000
"""Rules of the schemas that are kept lowered: a rule takes 1 to 5 KB, a typical schema has 20."""

LOWERED: Final = Cache[Grammar](LOWERED_CACHE, lambda grammar: len(grammar.rules))

SHOWN: Final = 60
"""Characters of a schema that stand for it in the `repr` of its grammar."""

TOO_DEEP: Final = "the schema nests too deep"

_SCHEMAS: Final = (
    "give a dict, JSON text or a pydantic class; for other types, pydantic.TypeAdapter(...).json_schema()"
)

Part: TypeAlias = "str | Numbers | Strings | Arrays | Objects | tuple[Objects, ...]"
"""What a rule accepts: null, true or false, a set of values of one type, or several sets of objects."""
Names: TypeAlias = tuple[str, ...]
_Ways: TypeAlias = list[tuple[Names, Marks]]
_Counts: TypeAlias = list[tuple[Names, Counted]]
_Way = TypeVar("_Way", Marks, Counted)

_KINDS: Final[dict[type, Kind]] = {
    Numbers: "number",
    Strings: "string",
    Arrays: "array",
    Objects: "object",
    tuple: "object",
}
_FREE: Final[dict[Part, str]] = {
    Numbers(): "any number",
    Strings(): "any string",
    Arrays(): "any array",
    Objects(): "any object",
}
_ANY_PARTS: Final[tuple[Part, ...]] = ("null", "true", "false", *_FREE)
_ANY_VALUE: Final = ("null", "true", "false", *_FREE.values())


def json_schema(
    schema: Any,
    *,
    whitespace: Literal["default", "compact", "any"] | str = "default",
    formats: Literal["assert", "annotate"] = "assert",
    any_order: bool = False,
    ignore: Collection[str] = (),
) -> Grammar:
    """The JSON texts that are valid under a schema.

    Args:
        schema: a dict, true or false, JSON text, or a class with `model_json_schema` (pydantic).
        whitespace: "default" allows what `json.dumps` writes, compact, by default and with an indent of 2
            or 4; "compact" none, "any" all of JSON; anything else is a regular expression (syntax of `re`)
            for every place between tokens inside a container.
        formats: whether `format` is enforced or ignored.
        any_order: whether declared keys may come in any order, not only in that of `properties`. States
            double with each key that must be there, up to fourteen.
        ignore: keywords that are not enforced, such as ``["uniqueItems"]``; `warnings` says where they stand.
            The texts are those of the schema without them, which are more, or fewer where the keyword
            stands under `not`, `oneOf` or `if`.

    Raises:
        Invalid: not a JSON Schema, or `ignore` names what does not narrow values.
        Unsupported: a keyword that cannot be enforced exactly.
        Unsatisfiable: no value is valid.
        TooLarge: it takes too much work.
    """
    if formats not in ("assert", "annotate"):
        raise Invalid(f"formats must be 'assert' or 'annotate', not {formats!r}")
    unwanted = ignored(ignore)
    with metered(), _at(Origin("", None)):
        policy = Policy(whitespace)
        try:
            contents = _contents(schema)
        except RecursionError:
            raise TooLarge(TOO_DEEP, pointer="") from None
        keys = checked_keys(contents)
        content = content_digest("json_schema", contents, whitespace, formats, any_order, unwanted)

        def lowered() -> Grammar:
            document = Document(contents, keys, frozenset(unwanted))
            return _lowered(document, policy, formats == "assert", any_order, content)

        # A copy: machines are kept by those who asked for them, not by the cache.
        grammar = lowered() if content is None else LOWERED.find(content, lowered)
        return replace(grammar, source=_source(schema))


def _lowered(
    document: Document, policy: Policy, assert_formats: bool, any_order: bool, content: bytes | None
) -> Grammar:
    lowering = _Lowering(Logic(document, assert_formats), policy, any_order)
    origins = lowering.origins
    origins[ROOT] = Origin.of(terms(document.root))
    try:
        with _at(origins[ROOT]):
            root, rules = lowering.lower(terms(document.root))
    except RecursionError:
        raise TooLarge(TOO_DEEP, pointer="") from None
    except TooLarge as error:
        cured = cures(document, origins.values(), any_order)
        hint = error.hint or cured.get(Origin(error.pointer or "", error.keyword))
        raise TooLarge(error.reason, pointer=error.pointer, keyword=error.keyword, hint=hint) from None
    cured = cures(document, origins.values(), any_order)
    return Grammar(
        concat(policy.around, root, policy.around),
        rules,
        "",
        document.warnings,
        {name: Place(each.pointer, each.keyword, cured.get(each)) for name, each in origins.items()},
        content,
        meter().steps,
        meter().budget,
    )


def _contents(schema: Any) -> Any:
    if isinstance(schema, str):
        try:
            return json.loads(schema, parse_float=_read_float)
        except GrammarError:
            raise
        except ValueError as error:
            raise Invalid(
                f"not JSON: {error}", hint="a text is the schema itself, not a file's name"
            ) from None
    if isinstance(schema, type) and hasattr(schema, "model_json_schema"):
        return schema.model_json_schema()
    if schema is not None and not isinstance(schema, dict | list | bool | int | float):
        raise Invalid(f"a {type(schema).__name__} is not a JSON Schema", hint=_SCHEMAS)
    return schema


def _read_float(text: str) -> float:
    """A number as Python reads it, which must not make it infinite, or 0 of what is not."""
    value = float(text)
    if math.isinf(value) or (value == 0 and re.search("[1-9]", re.split("[eE]", text)[0])):
        raise Unsupported(
            f"the number {text} in the schema is beyond what Python's floats can hold", pointer=""
        )
    return value


def _source(schema: Any) -> str:
    text = getattr(schema, "__name__", None) or (schema if isinstance(schema, str) else _beginning(schema))
    return f"json_schema({text if len(text) <= SHOWN else text[: SHOWN - 3] + '...'})"


def _beginning(contents: Any) -> str:
    """The text of a schema, or of a long one more than is shown: it is written piece by piece."""
    return "".join(islice(json.JSONEncoder().iterencode(contents), SHOWN + 1))


@dataclass(frozen=True, slots=True, eq=False)
class _MemberPlan:
    """A `Member` before whitespace is known."""

    key: str
    value: _Ways
    required: bool
    left_out: Marks


@dataclass(frozen=True, slots=True, eq=False)
class _ShapePlan:
    """A `Shape` before whitespace is known: keys and values by the names of their rules."""

    members: list[_MemberPlan]
    anywhere: list[tuple[str, _Ways]]
    after: list[list[tuple[str, _Ways]]]
    low: int
    high: int | None
    wishes: int

    def inner(self) -> Iterator[str]:
        """The rules of all values inside."""
        undeclared = [*self.anywhere, *chain(*self.after)]
        for value in [*(member.value for member in self.members), *(value for _, value in undeclared)]:
            for names, _ in value:
                yield from names


@dataclass(frozen=True, slots=True, eq=False)
class _ObjectsPlan:
    """A rule for an object of any of these shapes."""

    origin: Origin
    shapes: list[_ShapePlan]

    @property
    def places(self) -> int:
        """The places where a line may be broken."""
        return sum(len(shape.members) + len(shape.after) + 2 for shape in self.shapes)

    def inner(self) -> Iterator[str]:
        """The rules of all values inside."""
        return chain.from_iterable(shape.inner() for shape in self.shapes)


@dataclass(frozen=True, slots=True, eq=False)
class _ArrayPlan:
    """An array rule before whitespace is known."""

    origin: Origin
    first: list[_Counts]
    others: _Counts
    low: int
    high: int | None
    wanted: list[tuple[int, int | None]]

    @property
    def places(self) -> int:
        """The places where a line may be broken."""
        if is_long(len(self.first), self.low, self.high, self.wanted):
            return len(self.first) + 3
        return max(len(self.first), self.high or self.low) + 2

    def inner(self) -> Iterator[str]:
        """The rules of all values inside."""
        for item in [*self.first, self.others]:
            for names, _ in item:
                yield from names


class _Lowering:
    """Makes the rules of one schema."""

    def __init__(self, logic: Logic, policy: Policy, any_order: bool) -> None:
        self.logic = logic
        self.policy = policy
        self.any_order = any_order
        self.rules: dict[str, Expr] = {}
        self.plans: dict[str, _ObjectsPlan | _ArrayPlan] = {}
        self.origins: dict[str, Origin] = {}
        self._names: dict[Part, str] = {}
        self._values: dict[tuple[Terms, ...], list[Names]] = {}
        self._calls: dict[Names, Expr] = {}
        self._parts: dict[Hashable, Expr] = {}
        self._strings: dict[str, tuple[Terms, Callable[[bool], Spelling]]] = {}
        self._positions = 0
        self._other_keys: dict[frozenset[str], str] = {}
        self._later_keys: dict[frozenset[str], str] = {}
        self._waiting: list[tuple[str, Arrays | tuple[Objects, ...], Origin]] = []
        self._is_free = False

    def lower(self, root: Terms) -> tuple[Expr, Mapping[str, Expr]]:
        """The root expression and all rules.

        Raises:
            GrammarError: as `json_schema`.
        """
        names = self.value(root)
        while self._waiting:
            name, part, origin = self._waiting.pop()
            # What is inside of a value has no place of its own.
            with _at(origin if origin.keyword else Origin.of(root)):
                self.plans[name] = (
                    self._array(part, origin)
                    if isinstance(part, Arrays)
                    else _ObjectsPlan(origin, [self._shape(objects, origin) for objects in part])
                )
        if not self.logic.possible(root):
            raise self._unsatisfiable(root)
        depths = self._depths(names)
        called = self._positions > FAR or self._spaces(depths) > LARGE
        for name, at in depths.items():
            whitespace = self.policy.at(at, called)
            self.rules[name] = self._container(self.plans[name], whitespace)
            self.rules.update(whitespace.rules)
        for name, (string_terms, spell) in self._strings.items():
            with _placed(string_terms):
                spelling = spell(called)
            self.rules[name] = spelling.expr
            self.rules.update(spelling.rules)
        if self._is_free:
            self.rules.update(_free_rules(self.policy, called, self.any_order))
        return self._call(names), self.rules

    def value(self, terms: Terms) -> Names:
        """The rules whose words are the values that fulfil the terms."""
        return self._ways_of((terms,))[0]

    def _ways_of(self, ways: tuple[Terms, ...]) -> list[Names]:
        """The same for each of some ways to write one value."""
        names = self._values.get(ways)
        if names is None:
            parts = [self._parts_of(terms) for terms in ways]
            cases, possible = self.logic.cases, self.logic.possible
            objects = [[part for part in each if isinstance(part, Objects)] for each in parts]
            covering = [covers(each, self.any_order, cases) for each in objects]
            placed = {} if self.any_order else placed_in_order(covering, cases, possible)
            names = self._values[ways] = []
            for terms, each, among in zip(ways, parts, covering, strict=True):
                kept = [part for part in each if not isinstance(part, Objects) or among[part] is part]
                ordered = [placed.get(part, part) if isinstance(part, Objects) else part for part in kept]
                names.append(self._names_of(ordered, terms))
        return names

    def _parts_of(self, terms: Terms) -> list[Part]:
        """The parts of the values that fulfil the terms, none beside all of their type."""
        if not terms:
            return list(_ANY_PARTS)
        parts = dict.fromkeys(part for facts in self.logic.cases(terms) for part in _parts(facts))
        free = {type(part) for part in parts if part in _FREE}
        return [part for part in parts if part in _FREE or type(part) not in free]

    def _names_of(self, parts: Sequence[Part], terms: Terms) -> Names:
        """The names of the rules for these parts; many sets of strings become one automaton."""
        strings = [part for part in parts if isinstance(part, Strings) and part.values is None]
        if len(strings) > FEW:
            parts = [part for part in parts if part not in strings]
        objects = tuple(part for part in parts if isinstance(part, Objects) and part not in _FREE)
        if len(objects) > 1 and not self.any_order:
            parts = [*(part for part in parts if not isinstance(part, Objects) or part in _FREE), objects]
        with _placed(terms, None):
            names = tuple(dict.fromkeys(self._name(part, terms) for part in parts))
        return names + self._any_of(strings, terms) if len(strings) > FEW else names

    def _any_of(self, sets: Sequence[Strings], terms: Terms) -> Names:
        """The names of rules for many sets of strings: one for each pair of lengths that is counted."""
        origin = Origin.of(terms, "string")
        names = []
        with _placed(terms):
            for low, high, automaton in languages_of_any(sets):
                self._count(len(automaton))
                name = self._fresh(f"string {origin.pointer or '/'}")
                self.origins[name] = origin
                self._string_rule(name, terms, partial(of_lengths, automaton, low, high))
                names.append(name)
        return tuple(names)

    def _name(self, part: Part, terms: Terms) -> str:
        """The name of the rule for a part, which is made if it is new."""
        if isinstance(part, str):
            self.rules[part] = literal(part.encode())
            return part
        name = self._names.get(part)
        if name is not None:
            return name
        if isinstance(part, Arrays):
            for refusal in part.refused:
                raise refusal.error
        if part in _FREE:
            name = _FREE[part]
            self._is_free = True
        else:
            origin = Origin.of(terms, _KINDS[type(part)])
            name = self._fresh(f"{_KINDS[type(part)]} {origin.pointer or '/'}")
            self.origins[name] = origin
            if isinstance(part, Numbers):
                with _placed(terms, "number"):
                    self.rules[name] = number(part)
            elif isinstance(part, Strings):
                with _placed(terms):
                    self._count(positions(part))
                self._string_rule(name, terms, partial(string, part))
            else:
                self._waiting.append((name, (part,) if isinstance(part, Objects) else part, origin))
                self.rules[name] = NOTHING
        self._names[part] = name
        return name

    def _count(self, places: int) -> None:
        """Take note of how many places there are in a string, each of which needs a node."""
        self._positions += places
        expect(NODE_STEPS * self._positions, "to count characters")

    def _string_rule(self, name: str, terms: Terms, spell: Callable[[bool], Spelling]) -> None:
        """Put off a rule for strings until it is known how all strings are to be spelled."""
        self.rules[name] = NOTHING
        self._strings[name] = (terms, spell)

    def _fresh(self, name: str) -> str:
        charge(RULE_STEPS)
        return name if name not in self.rules else f"{name} ({len(self.rules)})"

    def _shape(self, objects: Objects, origin: Origin) -> _ShapePlan:
        cases = self.logic.cases
        charge(OBJECT_STEPS)
        names, required, signs = declared(objects), frozenset(objects.required), Signs.of(objects)
        members = []
        for key in names:
            value: _Ways = []
            if is_key(key, objects.names, cases):
                value = self._member(terms_of(objects, key), signs.met_by(key, cases), False)
            left_out = Marks(signs.absent.get(key, 0))
            if value or key in required or left_out != Marks():
                rule = f"key {json.dumps(key)}"
                self.origins.setdefault(rule, origin)
                self._string_rule(rule, (), partial(word, key))
                members.append(_MemberPlan(rule, value, key in required, left_out))
        undeclared = [
            (keys.automaton, self._member(keys.value, keys.met, True))
            for keys in classes(objects, frozenset(names), signs, cases, self.logic.possible)
        ]
        undeclared = [(keys, value) for keys, value in undeclared if value]
        anywhere = [
            (self._other_key(frozenset(names), objects.later, keys, objects.names, origin), value)
            for keys, value in undeclared
        ]
        after = [
            [(self._later_key(group, keys, objects.names, origin), value) for keys, value in undeclared]
            for group in objects.later
        ]
        # Keys that are not declared may repeat, and only one of them is sure to be a member more.
        if undeclared and objects.low > len(objects.required) + 1:
            raise Unsupported(
                "it cannot be enforced while keys that are not declared may repeat",
                pointer=origin.pointer,
                keyword="minProperties",
                hint=f"declare the keys and set additionalProperties to false, or {leave('minProperties')}",
            )
        return _ShapePlan(members, anywhere, after, objects.low, objects.high, len(objects.wishes))

    def _member(self, value: Terms, met: Sequence[Met], repeats: bool) -> _Ways:
        """The rules for the value of a member, by the wishes that it fulfils."""
        # The opposite of a container takes more than what it saves to follow one way at a time.
        cases = self.logic.cases(value) if met and value else ()
        simple = bool(cases) and not any(each.array or each.object for each in cases)
        exclusive = not repeats and (self.any_order or simple)
        return self._named(list(member_ways(value, met, repeats, exclusive, self.logic.possible)))

    def _other_key(
        self,
        names: frozenset[str],
        later: Sequence[frozenset[str]],
        keys: Automaton | None,
        name_terms: Terms,
        origin: Origin,
    ) -> str:
        """The rule for keys that may stand anywhere: of an automaton, or all that are not among `names`."""
        known = names.union(*later)
        if keys is None and not name_terms:
            rule = self._other_keys.get(known)
            if rule is None:
                rule = self._other_keys[known] = self._fresh("any key" if not known else "another key")
                self._string_rule(rule, (), partial(other_words, known))
                self.origins.setdefault(rule, origin)
            return rule
        if keys is None:
            keys = any_string().difference(finite(known))
        elif later:
            keys = keys.difference(finite(frozenset().union(*later)))
        return self._key_of(keys, name_terms, origin)

    def _later_key(
        self, group: frozenset[str], keys: Automaton | None, name_terms: Terms, origin: Origin
    ) -> str:
        """The rule for the keys of a group, or those that are in an automaton, too."""
        if keys is not None or name_terms:
            among = finite(group) if keys is None else keys.intersect(finite(group))
            return self._key_of(among, name_terms, origin)
        rule = self._later_keys.get(group)
        if rule is None:
            rule = self._later_keys[group] = self._fresh("a later key")
            self._string_rule(rule, (), partial(of_language, finite(group), True))
            self.origins.setdefault(rule, origin)
        return rule

    def _key_of(self, keys: Automaton, name_terms: Terms, origin: Origin) -> str:
        """The rule for keys of an automaton that fulfil terms."""
        if name_terms:
            with _placed(name_terms):
                keys = keys.intersect(keys_of(name_terms, self.logic.cases))
        rule = self._fresh("a key of a pattern")
        self.origins[rule] = Origin.of(name_terms, "string") if name_terms else origin
        self._string_rule(rule, name_terms, partial(of_language, keys, True))
        return rule

    def _array(self, arrays: Arrays, origin: Origin) -> _ArrayPlan:
        charge(ARRAY_STEPS)
        start = max((each.start for each in arrays.contains), default=0)
        listed = max(len(arrays.first), start)
        values = self._different(arrays, listed)
        items = []
        for index in range(listed + 1):
            ways = item_ways(arrays.item(index), values, arrays.contains, index)
            items.append(self._named(ways))
        wanted = [(0, 1)] * len(values) + [(each.low, each.high) for each in arrays.contains]
        return _ArrayPlan(origin, items[:-1], items[-1], arrays.low, arrays.high, wanted)

    def _different(self, arrays: Arrays, listed: int) -> list[Facts]:
        """The values of which each may occur once; none where items need not differ or there is only one."""
        possible = [arrays.item(i) for i in range(listed + 1) if self.logic.possible(arrays.item(i))]
        at_most_one = len(possible) <= 1 and not self.logic.possible(arrays.others)
        if not arrays.unique or at_most_one or (arrays.high is not None and arrays.high <= 1):
            return []
        found = [values_of(item, self.logic.cases) for item in possible]
        values = list(dict.fromkeys(value for each in found for value in each or ()))
        if None in found or _sets(len(values), arrays.high) > DIFFERENT:
            raise arrays.unique[0].error
        return values

    def _call(self, names: Names) -> Expr:
        """Any one of the rules; the same object for the same rules."""
        expr = self._calls.get(names)
        if expr is None:
            expr = self._calls[names] = alternative(*(Call(name) for name in names))
        return expr

    def _part(self, content: Hashable, expr: Expr) -> Expr:
        """A call to a rule for a part of an object; the same for the same content."""
        call = self._parts.get(content)
        if call is None:
            name = self._fresh(f"part {len(self._parts)}")
            self.rules[name] = expr
            call = self._parts[content] = Call(name)
        return call

    def _named(self, ways: Sequence[tuple[Terms, _Way]]) -> list[tuple[Names, _Way]]:
        """The rules for ways to write one value, without those that are impossible."""
        names = self._ways_of(tuple(terms for terms, _ in ways))
        return [(each, way) for each, (_, way) in zip(names, ways, strict=True) if each]

    def _calls_of(self, ways: Sequence[tuple[Names, _Way]]) -> list[tuple[Expr, _Way]]:
        return [(self._call(names), way) for names, way in ways]

    def _depths(self, root: Names) -> dict[str, int]:
        """The depths (bits) at which each container rule is used; what accepts anything is ready for all."""
        depths: dict[str, int] = {}
        waiting = [(name, 1 << 1) for name in root]
        while waiting:
            name, fresh = waiting.pop()
            plan = self.plans.get(name)
            if plan is None:
                continue
            known = depths.get(name)
            if known is not None and not fresh & ~known:
                continue
            depths[name] = (known or 0) | fresh
            deeper = depths[name] << 1 & ALL_DEPTHS if self.policy.by_depth else 0
            waiting.extend((inner, deeper) for inner in dict.fromkeys(plan.inner()))
        return depths

    def _spaces(self, depths: Mapping[str, int]) -> int:
        """How many spaces of indentation would have to be told apart, were they not in calls."""
        if not self.policy.by_depth:
            return 0
        return sum(
            self.plans[name].places * min(at.bit_length() * max(INDENTS), MOST_SPACES)
            for name, at in depths.items()
        )

    def _container(self, plan: _ObjectsPlan | _ArrayPlan, whitespace: Whitespace) -> Expr:
        with _at(plan.origin):
            return self._graph(plan, whitespace)

    def _graph(self, plan: _ObjectsPlan | _ArrayPlan, whitespace: Whitespace) -> Graph:
        if isinstance(plan, _ObjectsPlan):
            shapes = [self._written(shape) for shape in plan.shapes]
            if self.any_order:
                return unordered_object_of(shapes[0], whitespace, self._part)
            return object_of(shapes, whitespace)
        first = [self._calls_of(item) for item in plan.first]
        others_item = self._calls_of(plan.others)
        return array_of(first, others_item, plan.low, plan.high, plan.wanted, whitespace)

    def _written(self, plan: _ShapePlan) -> Shape:
        members = [
            Member(self._call((each.key,)), self._calls_of(each.value), each.required, each.left_out)
            for each in plan.members
        ]
        after = [self._keys_of(group) for group in plan.after]
        return Shape(members, self._keys_of(plan.anywhere), after, plan.low, plan.high, plan.wishes)

    def _keys_of(self, others: Sequence[tuple[str, _Ways]]) -> Undeclared:
        return [(self._call((key,)), self._calls_of(value)) for key, value in others]

    def _unsatisfiable(self, root: Terms) -> GrammarError:
        """The error for a root without values: it points to the innermost thing that nothing can fulfil."""
        current, seen, origin = root, {root}, Origin.of(root)
        while True:
            here = Origin.of(current)
            origin = here if here.keyword else origin
            needed = [
                inner
                for facts in self.logic.cases(current)
                for inner in self.logic.needed(facts)
                if inner not in seen and not self.logic.possible(inner)
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
    if facts.null:
        yield "null"
    if facts.true:
        yield "true"
    if facts.false:
        yield "false"
    for part in (facts.number, facts.string, facts.array, facts.object):
        if part is not None:
            yield part


@contextmanager
def _placed(terms: Terms, kind: Kind | None = "string") -> Iterator[None]:
    """An error without a place is given that of the terms."""
    try:
        yield
    except GrammarError as error:
        if error.pointer is not None:
            raise
        origin = Origin.of(terms, kind)
        keyword = error.keyword or origin.keyword
        raise type(error)(error.reason, pointer=origin.pointer, keyword=keyword, hint=error.hint) from None


@contextmanager
def _at(origin: Origin) -> Iterator[None]:
    """An error of size without a place is given this one."""
    try:
        yield
    except TooLarge as error:
        if error.pointer is not None:
            raise
        keyword = error.keyword or origin.keyword
        raise TooLarge(error.reason, pointer=origin.pointer, keyword=keyword, hint=error.hint) from None


@kept(CACHED_POLICIES)
def _free_rules(policy: Policy, called: bool, any_order: bool) -> Mapping[str, Expr]:
    """The rules for any JSON value, made once for all schemas."""
    value = alternative(*(Call(name) for name in _ANY_VALUE))
    whitespace = policy.at(ALL_DEPTHS, called)
    key, text = other_words(frozenset(), called), string(Strings(), called)
    members: dict[str, Expr] = {}

    def member(_: Hashable, expr: Expr) -> Expr:
        members["any member"] = expr
        return Call("any member")

    shape = Shape([], [(Call("any key"), [(value, Marks())])], [], 0, None, 0)
    free = unordered_object_of(shape, whitespace, member) if any_order else object_of([shape], whitespace)
    return {
        "null": literal(b"null"),
        "true": literal(b"true"),
        "false": literal(b"false"),
        "any number": NUMBER,
        "any string": text.expr,
        "any key": key.expr,
        **text.rules,
        **whitespace.rules,
        **key.rules,
        "any object": free,
        "any array": array_of([], [(value, ())], 0, None, (), whitespace),
        **members,
    }
