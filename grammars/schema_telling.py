"""What facts tell about terms: that all their values fulfil them, that none does, or neither.

Choices that are made already need not be made again. Of ``if type is A then ...`` a dozen times over, the
first choice that says what `type` is decides all others; without that, there are thousands of ways through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, TypeAlias

from sortition.grammars.schema_document import Schema
from sortition.grammars.schema_facts import ANYTHING, Facts, Negation, Objects, Sign, Term, Terms, Wish
from sortition.grammars.schema_keys import Cases
from sortition.grammars.work import charge

TOLD_STEPS: Final = 12
"""Steps that it takes to look at a term."""

MEMBER_STEPS: Final = 4
"""Steps that it takes to look at the value of a member or of a sign."""

KNOWN_STEPS: Final = 2
"""Steps more for each schema that may say something of it."""

KEY_STEPS: Final = 1
"""Steps that it takes to see whether a key must be there."""

DEEPEST: Final = 6
"""Schemas for the same value, one in another, that are looked into."""

_PLAIN: Final = frozenset(
    [
        *("type", "enum", "const", "not", "anyOf", "allOf", "minLength", "maxLength"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    ]
)
"""Keywords of plain schemas, if what is in them is plain, too."""

Told: TypeAlias = "bool | None"
"""Whether all values of some facts fulfil something, or none of them; None if neither is seen."""


class Expanded(Protocol):
    """What a schema says: an `Expansion`."""

    @property
    def facts(self) -> Facts: ...

    @property
    def terms(self) -> Iterable[tuple[Term, object]]: ...

    @property
    def choices(self) -> Iterable[tuple[Sequence[Terms], object]]: ...


class Telling:
    """Tells what is seen without multiplying anything out but the values of plain members, such as tags.

    Args:
        cases: as `Logic.cases`.
        expand: what a schema says, None where that is not to be looked at.
    """

    def __init__(self, cases: Cases, expand: Callable[[Schema], Expanded | None]) -> None:
        self._cases = cases
        self._expand = expand
        self._plain: dict[Schema, bool] = {}

    def all_of(self, facts: Facts, terms: Terms, deepest: int = DEEPEST) -> Told:
        """Whether the values of the facts fulfil all the terms."""
        return _all(self.one(facts, term, deepest) for term in terms)

    def one(self, facts: Facts, term: Term, deepest: int = DEEPEST) -> Told:
        """Whether the values of the facts fulfil a term."""
        charge(TOLD_STEPS)
        if isinstance(term, Facts):
            return self._facts(facts, term)
        if isinstance(term, Negation):
            told = self.one(facts, term.of, deepest)
            return None if told is None else not told
        expansion = self._expand(term) if deepest else None
        if expansion is None:
            return None
        told = self._facts(facts, expansion.facts)
        if told is False:
            return False
        more = _all(self.one(facts, each, deepest - 1) for each, _ in expansion.terms)
        if more is False:
            return False
        chosen = _all(
            _any(self.all_of(facts, alternative, deepest - 1) for alternative in choice)
            for choice, _ in expansion.choices
        )
        return _all((told, more, chosen))

    def narrowed(self, facts: Facts) -> Facts:
        """The same facts, without objects if a plain member that must be there can have no value."""
        objects = facts.object
        if objects is None or len(objects.members) < 2:
            return facts
        charge(KEY_STEPS * len(objects.required))
        for name in objects.required:
            value = self._known(objects, name)
            if len(value) > 1 and not self._cases(value):
                return Facts(facts.null, facts.true, facts.false, facts.number, facts.string, facts.array)
        return facts

    def _facts(self, ours: Facts, theirs: Facts) -> Told:
        if theirs is ANYTHING:
            return True
        of_types: list[Told] = []
        if ours.null:
            of_types.append(theirs.null)
        if ours.true:
            of_types.append(theirs.true)
        if ours.false:
            of_types.append(theirs.false)
        for mine, yours in (
            (ours.number, theirs.number),
            (ours.string, theirs.string),
            (ours.array, theirs.array),
        ):
            if mine is not None:
                both = yours and mine & yours  # type: ignore[operator]
                of_types.append(False if both is None else True if both == mine else None)
        if ours.object is not None:
            of_types.append(False if theirs.object is None else self._objects(ours.object, theirs.object))
        return _agreed(of_types)

    def _objects(self, ours: Objects, theirs: Objects) -> Told:
        charge(KEY_STEPS * (len(theirs.required) + len(theirs.absent)))
        if not theirs.absent.isdisjoint(ours.required) or not ours.absent.isdisjoint(theirs.required):
            return False
        told = self._named(ours, theirs)
        for members in theirs.members:
            if members in ours.members:
                continue
            charge(KEY_STEPS * len(members.properties))
            if members.patterns or members.additional:
                told = None
            for name, terms in members.properties:
                is_there = name in ours.required or name in theirs.required
                # That one of the others is not fulfilled means nothing, as it need not be there.
                if is_there or told:
                    fulfilled = self._value(ours, name, terms)
                    if fulfilled is False and is_there:
                        return False
                    told = (told and fulfilled) or None
        return _all([told, *(self._wish(ours, wish) for wish in theirs.wishes)])

    @staticmethod
    def _named(ours: Objects, theirs: Objects) -> Told:
        """Whether our objects have the keys and the sizes that theirs have; None if not."""
        least = max(ours.low, len(ours.required))
        fits = (
            theirs.low <= least
            and (theirs.high is None or (ours.high is not None and ours.high <= theirs.high))
            and theirs.absent <= ours.absent
            and set(theirs.required) <= set(ours.required)
            and set(theirs.names) <= set(ours.names)
        )
        return True if fits else None

    def _wish(self, objects: Objects, wish: Wish) -> Told:
        if wish in objects.wishes:
            return True
        charge(KEY_STEPS * len(wish.signs))
        told: Told = False
        for sign in wish.signs:
            # Other keys need not be there.
            if told is False or sign.key in objects.required or sign.key in objects.absent:
                shown = self._sign(objects, sign)
                if shown:
                    return True
                told = told if shown is False else None
        return told

    def _sign(self, objects: Objects, sign: Sign) -> Told:
        if not isinstance(sign.key, str):
            return None
        is_there = sign.key in objects.required
        if sign.key in objects.absent:
            return sign.value is None
        if sign.value is None:
            return False if is_there else None
        told = self._value(objects, sign.key, sign.value)
        return told if is_there or told is False else None

    def _value(self, objects: Objects, name: str, terms: Terms) -> Told:
        """Whether the value of a key fulfils terms, if the key is there."""
        charge(MEMBER_STEPS)
        if not terms or name in objects.absent:
            return True
        if not all(map(self._is_plain, terms)):
            return True if self._is_said(objects, name, terms) else None
        cases = self._cases(self._known(objects, name))
        return _agreed([self.all_of(facts, terms) for facts in cases]) if cases else True

    @staticmethod
    def _is_said(objects: Objects, name: str, terms: Terms) -> bool:
        """Whether these terms are said of the value of a key."""
        said = {term for members in objects.members for term in members.by_name.get(name, ())}
        return said.issuperset(terms)

    def _known(self, objects: Objects, name: str) -> Terms:
        """The plain terms for the value of a key."""
        charge(KNOWN_STEPS * len(objects.members))
        known: dict[Term, None] = {}
        for members in objects.members:
            if members.patterns:
                return ()
            for term in members.by_name.get(name, members.additional):
                if self._is_plain(term):
                    known[term] = None
        return tuple(known)

    def _is_plain(self, term: Term) -> bool:
        """Whether a term speaks of no values inside the value."""
        if isinstance(term, Facts):
            return term.array in (None, ANYTHING.array) and term.object in (None, ANYTHING.object)
        schema = term.of if isinstance(term, Negation) else term
        plain = self._plain.get(schema)
        if plain is None:
            keywords = schema.keywords
            values = [*keywords.get("enum", ()), keywords.get("const")]
            plain = self._plain[schema] = (
                keywords.keys() <= _PLAIN
                and not any(isinstance(value, list | dict) for value in values)
                and all(map(self._is_plain, schema.children.values()))
            )
        return plain


def _all(told: Iterable[Told]) -> Told:
    """Of several things that must all hold, whether they do."""
    found: Told = True
    for each in told:
        if each is False:
            return False
        if each is None:
            found = None
    return found


def _agreed(told: Sequence[Told]) -> Told:
    """What is told of all of several sets of values, if it is the same for each."""
    return told[0] if told and all(each is told[0] for each in told) else None


def _any(told: Iterable[Told]) -> Told:
    """Of several things of which one must hold, whether one does."""
    found: Told = False
    for each in told:
        if each:
            return True
        if each is None:
            found = None
    return found
