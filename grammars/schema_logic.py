"""The logic of JSON Schema: what "all", "any", "one", "not", "if" and references make of single facts.

A schema expands into facts, further terms that hold, too, and choices of which one must hold. `Logic.cases`
multiplies that out: the list of facts of which a value must fulfil (at least) one. Everything is exact; what
cannot be enforced becomes a `Refusal` in the facts of the type that it is about, or an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from operator import is_, itemgetter
from typing import Final, TypeAlias, TypeVar

from sortition.grammars.errors import GrammarError, Invalid, TooLarge
from sortition.grammars.expr import NOTHING
from sortition.grammars.json_numbers import number
from sortition.grammars.json_strings import exists
from sortition.grammars.schema_assertions import assertions, broken, terms, without
from sortition.grammars.schema_choices import Choice, any_of, conditional, dependent, listed, only, with_key
from sortition.grammars.schema_document import Document, Schema
from sortition.grammars.schema_evaluated import Evaluation, asks_for_the_rest
from sortition.grammars.schema_facts import (
    ANYTHING,
    IMPOSSIBLE,
    Arrays,
    Facts,
    Members,
    Negation,
    Numbers,
    Objects,
    Strings,
    Term,
    Terms,
    joined,
    of_value,
    of_values,
)
from sortition.grammars.schema_keys import terms_of
from sortition.grammars.schema_origin import CHOOSING, Origin
from sortition.grammars.schema_overlap import Outline, outlines, overlapping
from sortition.grammars.schema_telling import Telling
from sortition.grammars.work import charge, meter

TERM_STEPS: Final = 80
"""Steps that it takes to expand a term."""

TAKEN_STEPS: Final = 45
"""Steps that each term takes that is taken in on one way through the choices."""

POSSIBLE_STEPS: Final = 15
"""Steps that it takes to find out whether a value for some terms exists, beside making their cases."""

ITEMS_LOOKED_AT: Final = 64
"""Items that are looked at to tell whether an array can exist; more would only find more reasons why not."""

OVERLAP_STEPS: Final = 4
"""Steps that it takes to ask whether two branches of `oneOf` overlap, beside making values."""

_EVERY: Final = True, True, True, ANYTHING.number, ANYTHING.string, ANYTHING.array
"""What facts say of types of which every value is allowed."""

_Set = TypeVar("_Set", Numbers, Strings)
Trail: TypeAlias = "tuple[Term, Trail] | None"
"""The terms that led to a term, nearest first."""
Place: TypeAlias = tuple[int, ...]
"""Where something stands in the schema: of two keys, the one whose place is less is written first."""


@dataclass(slots=True)
class _Branch:
    """One way through the choices: what it says so far, what is yet to be taken in and to be chosen."""

    facts: Facts
    todo: list[tuple[Term, Trail, Place]]
    choices: list[tuple[Choice, Trail, Place]]
    seen: set[Term]
    members: list[tuple[Place, Members]]

    def ordered(self) -> Facts:
        """The facts, with the keys of objects in the order of their places."""
        if self.facts.object is None or len(self.members) <= 1:
            return self.facts
        placed = [each for _, each in sorted(self.members, key=itemgetter(0))]
        if len(placed) == len(self.facts.object.members) and all(map(is_, placed, self.facts.object.members)):
            return self.facts
        # What came of wishes has no place.
        members = tuple(dict.fromkeys([*placed, *self.facts.object.members]))
        if members == self.facts.object.members:
            return self.facts
        return replace(self.facts, object=replace(self.facts.object, members=members))


@dataclass(frozen=True, slots=True)
class Expansion:
    """What one term says: facts, more terms that all hold, and choices of which an alternative must hold.

    Each is given with its place in the schema.
    """

    facts: Facts
    terms: tuple[tuple[Term, Place], ...] = ()
    choices: tuple[tuple[Choice, Place], ...] = ()
    place: Place = ()


class _Unfinished(Exception):
    """A schema is needed while it is being expanded."""


class Logic:
    """Expands and multiplies out the schemas of one document; `formats` says whether `format` is enforced."""

    def __init__(self, document: Document, formats: bool) -> None:
        self.document = document
        self.formats = formats
        self._expansions: dict[Term, Expansion | None] = {}
        self._cases: dict[Terms, tuple[Facts, ...]] = {}
        self._possible: dict[Terms, bool] = {}
        self._outlined: dict[Schema, list[Outline]] = {}
        self._telling = Telling(self.cases, self._said)

    def cases(self, terms: Terms) -> tuple[Facts, ...]:
        """The facts of which a value that fulfils all the terms must fulfil at least one.

        Raises:
            Invalid: a schema that refers to itself with nothing in between.
            TooLarge: it takes too much work.
        """
        found = self._cases.get(terms)
        if found is None:
            try:
                found = self._cases[terms] = tuple(dict.fromkeys(self._multiply(terms)))
            except TooLarge as error:
                origin = Origin.of(terms)
                if error.pointer is not None or origin.keyword is None:
                    raise
                raise origin.error(TooLarge, error.reason, error.hint) from None
        return found

    def possible(self, terms: Terms) -> bool:
        """Whether some value fulfils all the terms; True also where that cannot be told.

        A value exists if it can be built from values that exist: the least fixed point over everything that
        the terms require.
        """
        known = self._possible.get(terms)
        if known is not None:
            return known
        requirements: dict[Terms, list[tuple[Terms, ...]]] = {}
        certain = True
        waiting = [terms]
        while waiting:
            current = waiting.pop()
            if current in requirements or current in self._possible:
                continue
            charge(POSSIBLE_STEPS)
            try:
                requirements[current] = _until_free(self._requirements(current))
            except _Unfinished:
                requirements[current] = [()]
                certain = False
            if () not in requirements[current]:
                waiting.extend(needed for way in requirements[current] for needed in way)
        found = self._buildable(requirements)
        for current in requirements:
            if certain or current not in found:
                self._possible[current] = current in found
        return terms in found or self._possible.get(terms, False)

    def _buildable(self, requirements: dict[Terms, list[tuple[Terms, ...]]]) -> set[Terms]:
        """The terms that have a way for which everything is possible: each is looked at once it is so."""
        owner: list[Terms] = []
        missing: list[int] = []
        ways_with: dict[Terms, list[int]] = {}
        waiting: list[Terms] = []
        for current, ways in requirements.items():
            for way in ways:
                needed = {each for each in way if not self._possible.get(each)}
                for each in needed:
                    ways_with.setdefault(each, []).append(len(owner))
                owner.append(current)
                missing.append(len(needed))
                if not needed:
                    waiting.append(current)
        found: set[Terms] = set()
        while waiting:
            current = waiting.pop()
            if current not in found:
                found.add(current)
                for way_number in ways_with.get(current, ()):
                    missing[way_number] -= 1
                    if not missing[way_number]:
                        waiting.append(owner[way_number])
        return found

    def needed(self, facts: Facts) -> Iterator[Terms]:
        """The terms for which values must exist if an array or an object of these facts is to exist."""
        if facts.array:
            arrays = facts.array
            yield from dict.fromkeys(arrays.item(i) for i in range(min(arrays.low, ITEMS_LOOKED_AT)))
            for each in arrays.contains:
                if each.low:
                    # Where no items are listed, the one that is contained is like all others.
                    yield each.terms if arrays.first else joined(each.terms, arrays.others)
        if facts.object:
            objects = facts.object
            yield from (terms_of(objects, name) for name in objects.required)
            if objects.names:
                yield from ((of_value(name), *objects.names) for name in objects.required)
            if len(objects.wishes) > 1:
                # They may be fulfilled by different members, so each is looked at alone.
                yield from ((only(replace(objects, wishes=(wish,))),) for wish in objects.wishes)

    def _requirements(self, terms: Terms) -> Iterator[tuple[Terms, ...]]:
        """The ways to build a value: for each, the terms for which values must exist first."""
        for facts in self.cases(terms):
            if facts.null or facts.true or facts.false:
                yield ()
            if facts.number and _exists(lambda numbers: number(numbers) is not NOTHING, facts.number):
                yield ()
            if facts.string and _exists(exists, facts.string):
                yield ()
            if facts.array:
                yield tuple(self.needed(Facts(array=facts.array)))
            if facts.object:
                needed = tuple(self.needed(Facts(object=facts.object)))
                if len(facts.object.wishes) == 1:
                    yield from ((*needed, *each) for each in _of_signs(facts.object))
                else:
                    yield needed

    def _multiply(self, terms: Terms) -> Iterator[Facts]:
        """Multiply out the choices, depth first; equal alternatives are followed once."""
        count = 0
        loop: Schema | None = None
        todo: list[tuple[Term, Trail, Place]] = [(term, None, (i,)) for i, term in enumerate(terms)]
        waiting = [_Branch(ANYTHING, todo[::-1], [], set(), [])]
        while waiting:
            branch = waiting.pop()
            looped = self._settle(branch)
            loop = looped or loop
            if looped or not branch.facts:
                continue
            if not branch.choices:
                count += 1
                yield branch.ordered()
                continue
            choice, trail, place = branch.choices[0]
            for alternative in reversed(dict.fromkeys(choice)):
                todo = [(term, trail, (*place, i)) for i, term in enumerate(alternative)]
                others, seen, members = branch.choices[1:], set(branch.seen), branch.members.copy()
                waiting.append(_Branch(branch.facts, todo[::-1], others, seen, members))
        if loop is not None and not count:
            raise loop.error(
                Invalid,
                "$ref" if "$ref" in loop.keywords else _a_choice(loop),
                "the schema refers to itself with nothing in between",
            )

    def _settle(self, branch: _Branch) -> Schema | None:
        """`_follow`, and make the choices that are decided by what the branch says already."""
        while True:
            looped = self._follow(branch)
            if looped or not branch.facts:
                return looped
            branch.facts = self._telling.narrowed(branch.facts)
            waiting, branch.choices = branch.choices, []
            for index, (choice, trail, place) in enumerate(waiting):
                open_ones = self._open_ones(branch.facts, choice, trail, len(waiting) > 1)
                if open_ones is None:
                    continue
                if not open_ones:
                    branch.facts = IMPOSSIBLE
                    return None
                if len(open_ones) > 1:
                    branch.choices.append((open_ones, trail, place))
                    continue
                todo = [(term, trail, (*place, i)) for i, term in enumerate(open_ones[0])]
                branch.todo.extend(reversed(todo))
                if not branch.facts.has_one_type:
                    # That it leaves only objects decides most of the others.
                    branch.choices += waiting[index + 1 :]
                    break
            if not branch.todo:
                return None

    def _open_ones(self, facts: Facts, choice: Choice, trail: Trail, others: bool) -> Choice | None:
        """The alternatives of a choice that facts leave open, None if all their values fulfil it.

        Where there are no others, those that are not open are found as soon as they are followed.
        """
        if trail is not None and isinstance(trail[0], Negation):
            told = self._telling.one(facts, trail[0])
            if told is not None:
                return None if told else ()
        if not others:
            return choice
        return tuple(each for each in choice if self._telling.all_of(facts, each) is not False)

    def _follow(self, branch: _Branch) -> Schema | None:
        """Take in all terms of a branch up to its next choice; a schema that needs itself is returned.

        A value that fulfils a schema does so for a reason that does not go round in a circle, so a branch
        that comes back to a term on its own way adds nothing.
        """
        while branch.todo:
            term, trail, place = branch.todo.pop()
            if term in branch.seen:
                above = trail
                while above is not None:
                    if above[0] == term:
                        return (
                            term.of
                            if isinstance(term, Negation)
                            else term
                            if isinstance(term, Schema)
                            else None
                        )
                    above = above[1]
                continue
            branch.seen.add(term)
            # What is taken in is compared with all that was taken in before.
            charge(TAKEN_STEPS + len(branch.seen))
            expansion = self._expand(term)
            branch.facts = branch.facts & expansion.facts
            if not branch.facts:
                return None
            if expansion.facts.object is not None:
                own = (*place, *expansion.place)
                branch.members.extend((own, each) for each in expansion.facts.object.members)
            trail = (term, trail)
            branch.todo.extend((more, trail, place + inner) for more, inner in reversed(expansion.terms))
            branch.choices = branch.choices + [
                (choice, trail, place + inner) for choice, inner in expansion.choices
            ]
        return None

    def _said(self, schema: Schema) -> Expansion | None:
        """The expansion of a schema, None where that has to be found by multiplying out others."""
        if schema in self._expansions:
            return self._expansions[schema]
        if "oneOf" in schema.keywords or asks_for_the_rest(schema):
            return None
        return self._expand(schema)

    def _expand(self, term: Term) -> Expansion:
        if isinstance(term, Facts):
            return Expansion(term)
        if term in self._expansions:
            found = self._expansions[term]
            if found is None:
                raise _Unfinished
            return found
        charge(TERM_STEPS)
        self._expansions[term] = None
        try:
            if isinstance(term, Negation):
                expansion = Expansion(ANYTHING, (), ((tuple(self._negated(term.of)), ()),))
            else:
                expansion = self._expand_schema(term)
        except BaseException:
            del self._expansions[term]
            raise
        self._expansions[term] = expansion
        return expansion

    def _expand_schema(self, schema: Schema) -> Expansion:
        facts = assertions(schema, self.formats)
        more: list[tuple[Term, Place]] = []
        choices: list[tuple[Choice, Place]] = []
        for index, (keyword, value) in enumerate(schema.keywords.items()):
            place = (index,)
            match keyword:
                case "enum" | "const":
                    values = value if keyword == "enum" else [value]
                    found = of_values(values)
                    if len(found) == 1:
                        facts = facts & found[0]
                    else:
                        choices.append((tuple((each,) for each in found), place))
                case "$ref" | "$dynamicRef" | "$recursiveRef":
                    more.extend((term, place) for term in terms(self.document.target(schema, keyword)))
                case "allOf":
                    for i, child in enumerate(listed(schema, keyword)):
                        more.extend((term, (index, i)) for term in terms(child))
                case "not":
                    more.append((Negation(schema.child("not")), place))
                case _:
                    pass
        context = (facts, *(term for term, _ in more))
        if asks_for_the_rest(schema):
            ways = Evaluation(self.document.target, self._exactly_one, False).fulfilled(schema)
            choices.append((ways, (len(schema.keywords),)))
        else:
            choices.extend(self._choices(schema, context))
        places = {keyword: (index,) for index, keyword in enumerate(schema.keywords)}
        return Expansion(facts, tuple(more), tuple(choices), places.get("properties", ()))

    def _choices(self, schema: Schema, context: Terms) -> Iterator[tuple[Choice, Place]]:
        """The choices between schemas for the same value, with their places; `context` holds in any case."""
        for index, keyword in enumerate(schema.keywords):
            match keyword:
                case "anyOf":
                    yield any_of(schema), (index,)
                case "oneOf":
                    yield tuple(self._exactly_one(schema, context)), (index,)
                case "if":
                    yield tuple(conditional(schema, False)), (index,)
                case "dependentRequired" | "dependentSchemas" | "dependencies":
                    for absent, present, _ in dependent(schema, keyword):
                        yield (absent, present), (index,)
                case _:
                    pass

    def _exactly_one(self, schema: Schema, context: Terms = ()) -> Iterator[Terms]:
        """For each branch of `oneOf`: it holds, and every branch that may overlap with it does not."""
        branches = listed(schema, "oneOf")
        meeting: list[list[Schema]] = [[] for _ in branches]
        pairs = overlapping([self._outlines(branch) for branch in branches])
        # What nothing else narrows and both allow every value of a type need not be asked.
        is_open = pairs and all(term == ANYTHING for term in context)
        free = [self._free(branch) if is_open else 0 for branch in branches]
        for i, j in pairs:
            charge(OVERLAP_STEPS)
            if free[i] & free[j] or self.possible((*context, *terms(branches[i]), *terms(branches[j]))):
                meeting[i].append(branches[j])
                meeting[j].append(branches[i])
        for branch, others in zip(branches, meeting, strict=True):
            yield (*terms(branch), *(Negation(other) for other in others))

    def _free(self, schema: Schema) -> int:
        """The types, as bits, of which every value fulfils a schema that can be told so far."""
        if self._outlines(schema) is None:
            return 0
        free = 0
        for facts in self.cases(terms(schema)):
            parts = facts.null, facts.true, facts.false, facts.number, facts.string, facts.array
            for bit, (part, every) in enumerate(zip(parts, _EVERY, strict=True)):
                free |= (part == every) << bit
        return free

    def _outlines(self, schema: Schema) -> list[Outline] | None:
        if schema not in self._outlined:
            try:
                self._outlined[schema] = outlines(terms(schema), self.cases)
            except _Unfinished:
                return None
        return self._outlined[schema]

    def _negated(self, schema: Schema) -> Iterator[Terms]:
        """The ways not to fulfil a schema: each keyword may be broken."""
        yield from broken(schema, self.formats)
        if asks_for_the_rest(schema):
            yield from Evaluation(self.document.target, self._exactly_one, True).broken(schema)
        for keyword, value in schema.keywords.items():
            match keyword:
                case "enum" | "const":
                    yield from _other_values(schema, keyword)
                case "$ref" | "$dynamicRef" | "$recursiveRef":
                    yield (Negation(self.document.target(schema, keyword)),)
                case "allOf":
                    yield from ((Negation(child),) for child in listed(schema, keyword))
                case "anyOf":
                    yield tuple(Negation(child) for child in listed(schema, keyword))
                case "oneOf":
                    branches = listed(schema, keyword)
                    yield tuple(Negation(child) for child in branches)
                    for branch, other in combinations(branches, 2):
                        yield (*terms(branch), *terms(other))
                case "not":
                    yield terms(schema.child("not"))
                case "if":
                    yield from conditional(schema, True)
                case "dependentSchemas" | "dependencies":
                    for name, needed in value.items():
                        if isinstance(needed, list):
                            yield from ((with_key(name), only(without(other))) for other in needed)
                        else:
                            yield (with_key(name), Negation(schema.child(keyword, name)))
                case _:
                    pass


def _of_signs(objects: Objects) -> Iterator[tuple[Terms, ...]]:
    """For each sign of the only wish of objects, the terms for which values must exist to show it."""
    for sign in objects.wishes[0].signs:
        if sign.value is None:
            yield ()
        elif isinstance(sign.key, str):
            yield (joined(terms_of(objects, sign.key), sign.value),)
        else:
            yield (sign.value,)


def _other_values(schema: Schema, keyword: str) -> Iterator[Terms]:
    """The ways to be none of the values of `enum` or `const`."""
    values = schema.keywords[keyword] if keyword == "enum" else [schema.keywords[keyword]]
    containers = [value for value in values if isinstance(value, list | dict)]
    if len(values) > 1 or not containers:
        yield _other_simple(values), *(Negation(_constant(schema, value)) for value in containers)
        return
    (value,) = containers
    if isinstance(value, list):
        yield (replace(ANYTHING, array=None),)
        yield (Facts(array=Arrays(low=len(value) + 1)),)
        if value:
            yield (Facts(array=Arrays(high=len(value) - 1)),)
        for index, item in enumerate(value):
            first = ((),) * index + ((Negation(_constant(schema, item)),),)
            yield (Facts(array=Arrays(first, low=index + 1)),)
    else:
        yield (replace(ANYTHING, object=None),)
        yield (only(Objects(required=tuple(value), low=len(value) + 1)),)
        for name, inner in value.items():
            yield (only(without(name)),)
            differs = Members(((name, (Negation(_constant(schema, inner)),)),))
            yield (only(Objects((differs,), (name,))),)


def _other_simple(values: list[object]) -> Facts:
    """Everything but the values that are no containers."""
    given = of_values([value for value in values if not isinstance(value, list | dict)])
    numbers = (value for facts in given if facts.number for value in facts.number.values or ())
    strings = (value for facts in given if facts.string for value in facts.string.values or ())
    return replace(
        ANYTHING,
        null=not any(facts.null for facts in given),
        true=not any(facts.true for facts in given),
        false=not any(facts.false for facts in given),
        number=Numbers(excluded=frozenset(numbers)),
        string=Strings(excluded=frozenset(strings)),
    )


def _constant(schema: Schema, value: object) -> Schema:
    """A schema for one value inside a value of this schema."""
    return Schema({"const": value}, schema.pointer, schema.scope, {})


def _a_choice(schema: Schema) -> str | None:
    """A keyword of the schema that makes a choice, for errors."""
    return next((keyword for keyword in CHOOSING if keyword in schema.keywords), None)


def _until_free(ways: Iterator[tuple[Terms, ...]]) -> list[tuple[Terms, ...]]:
    """The ways to build a value, up to one that needs nothing."""
    found = []
    for way in ways:
        found.append(way)
        if not way:
            break
    return found


def _exists(exists: Callable[[_Set], bool], members: _Set) -> bool:
    """Whether a set of strings or numbers has a member; True where that cannot be told."""
    try:
        return exists(members)
    except Invalid:
        raise
    except TooLarge:
        # What is too large by itself may prove not to be needed; what is beyond the budget ends everything.
        if meter().left < 0:
            raise
        return True
    except GrammarError:
        return True
