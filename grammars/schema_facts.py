"""What a schema says about each type of value, closed under "and".

`Facts` are one conjunction: for every type, what a value of that type must fulfil, or None if there can be
none. "Or" is a list of facts. Where a fact speaks of values inside the value it names *terms*: a tuple of
schemas, negated schemas and facts which must all hold; the empty tuple means that anything will do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Final, TypeAlias, TypeVar

from sortition.grammars.errors import GrammarError
from sortition.grammars.schema_document import Schema
from sortition.grammars.work import charge


@dataclass(frozen=True, slots=True)
class Negation:
    """Everything that a schema refuses."""

    of: Schema


NUMBER_STEPS: Final = 8
"""Steps that a number of a schema takes to be read as a fraction."""

CONTAINER_STEPS: Final = 40
"""Steps that an array or object of an `enum` takes to be read as facts, and to be told from others."""

BITS_PER_STEP: Final = 16
"""Bits of a fraction that are read in one step."""

VALUE_STEPS: Final = 1
"""Steps that a string of an `enum` takes to be compared with other assertions."""

COMPARISON_STEPS: Final = 6
"""Steps that a number of an `enum` takes to be compared with bounds."""

DIVISION_STEPS: Final = 4
"""Steps that it takes to be divided."""

SIGN_STEPS: Final = 1
"""Steps that each sign of a wish takes wherever it is looked at."""

FEW: Final = 4
"""Up to this many things are compared with others one by one."""

Term: TypeAlias = "Schema | Negation | Facts"
Terms: TypeAlias = "tuple[Term, ...]"

Held = TypeVar("Held")


def hashed_once(cls: type[Held]) -> type[Held]:
    """The same class, with hashes kept and compared first: facts hold facts, and values by the thousand."""
    take: Callable[[Any], int] = cls.__hash__
    compare: Callable[[Any, object], bool] = cls.__eq__

    def kept(self: Any) -> int:
        found: int | None = self._hash
        if found is None:
            found = self.__dict__["_hash"] = take(self)
        return found

    def equal(self: Any, other: object) -> bool:
        return self is other or (type(other) is cls and kept(self) == kept(other) and compare(self, other))

    # Of the class until it is asked for.
    cls._hash = None  # type: ignore[attr-defined]
    cls.__hash__ = kept  # type: ignore[method-assign]
    cls.__eq__ = equal  # type: ignore[method-assign]
    return cls


@dataclass(frozen=True, slots=True)
class Source:
    """The text of a keyword that names a set of strings or numbers, wanted or unwanted.

    Attributes:
        text: the pattern, the name of the format.
        wanted: whether the value must be in the set, or must not.
        schema: where it stands, for errors; two sources from different places are equal.
    """

    text: str
    wanted: bool
    schema: Schema = field(compare=False)

    @property
    def keyword(self) -> str:
        """The keyword that it is the text of, of a pattern maybe without its bounds."""
        keywords = self.schema.keywords
        if keywords.get("format") == self.text:
            return "format"
        listed = self.text in keywords.get("patternProperties", ())
        return "patternProperties" if listed and keywords.get("pattern") != self.text else "pattern"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A keyword that cannot be enforced; raised only if a value of its type can occur."""

    error: GrammarError = field(compare=False)
    keyword: str = ""


@hashed_once
@dataclass(frozen=True)
class Numbers:
    """A set of numbers; `integral` is True for integers only, False for the others only."""

    low: Fraction | None = None
    above_low: bool = False
    high: Fraction | None = None
    below_high: bool = False
    integral: bool | None = None
    divisors: tuple[Fraction, ...] = ()
    not_divisors: tuple[Fraction, ...] = ()
    values: tuple[Fraction, ...] | None = None
    excluded: frozenset[Fraction] = frozenset()

    def __and__(self, other: Numbers) -> Numbers | None:
        if other == _ANY_NUMBER:
            return self
        low, above_low = _tighter((self.low, self.above_low), (other.low, other.above_low), 1)
        high, below_high = _tighter((self.high, self.below_high), (other.high, other.below_high), -1)
        if (
            low is not None
            and high is not None
            and (low > high or (low == high and (above_low or below_high)))
        ):
            return None
        if None not in (self.integral, other.integral) and self.integral != other.integral:
            return None
        both = Numbers(
            low,
            above_low,
            high,
            below_high,
            other.integral if self.integral is None else self.integral,
            joined(self.divisors, other.divisors),
            joined(self.not_divisors, other.not_divisors),
            _common(self.values, other.values),
            self.excluded | other.excluded,
        )
        if both.values is not None:
            conditions = len(both.divisors) + len(both.not_divisors)
            charge(len(both.values) * (COMPARISON_STEPS + DIVISION_STEPS * conditions))
            values = tuple(value for value in both.values if both.holds(value))
            return replace(both, values=values) if values else None
        return both

    def holds(self, value: Fraction) -> bool:
        """Whether everything but `values` allows this number."""
        return (
            (self.low is None or value > self.low or (value == self.low and not self.above_low))
            and (self.high is None or value < self.high or (value == self.high and not self.below_high))
            and (self.integral is None or (value.denominator == 1) == self.integral)
            and not (self.divisors and any((value / each).denominator != 1 for each in self.divisors))
            and not (self.not_divisors and any((value / each).denominator == 1 for each in self.not_divisors))
            and not (self.excluded and value in self.excluded)
        )


@hashed_once
@dataclass(frozen=True)
class Strings:
    """A set of strings; lengths count code points."""

    low: int = 0
    high: int | None = None
    patterns: tuple[Source, ...] = ()
    formats: tuple[Source, ...] = ()
    values: tuple[str, ...] | None = None
    excluded: frozenset[str] = frozenset()

    @property
    def conditions(self) -> int:
        """How many languages a string must be in."""
        return len(self.patterns) + len(self.formats) + bool(self.excluded)

    def __and__(self, other: Strings) -> Strings | None:
        if other == _ANY_STRING:
            return self
        low, high = max(self.low, other.low), _least(self.high, other.high)
        excluded = self.excluded | other.excluded
        values = _common(self.values, other.values)
        if values is not None:
            charge(VALUE_STEPS * len(values))
            values = tuple(
                value
                for value in values
                if low <= len(value) and (high is None or len(value) <= high) and value not in excluded
            )
        if values == () or (high is not None and low > high):
            return None
        return Strings(
            low,
            high,
            joined(self.patterns, other.patterns),
            joined(self.formats, other.formats),
            values,
            excluded,
        )


@dataclass(frozen=True, slots=True)
class Containing:
    """At least `low` and at most `high` of the items from index `start` on fulfil the terms."""

    terms: Terms
    low: int
    high: int | None
    schema: Schema = field(compare=False)
    start: int = 0


@hashed_once
@dataclass(frozen=True)
class Arrays:
    """A set of arrays: terms for the first items one by one, terms for all the others.

    `unique` is the refusal that becomes due if there may be more than one item.
    """

    first: tuple[Terms, ...] = ()
    others: Terms = ()
    low: int = 0
    high: int | None = None
    contains: tuple[Containing, ...] = ()
    unique: tuple[Refusal, ...] = ()
    refused: tuple[Refusal, ...] = ()

    def __and__(self, other: Arrays) -> Arrays | None:
        if other == _ANY_ARRAY:
            return self
        low, high = max(self.low, other.low), _least(self.high, other.high)
        if high is not None and low > high:
            return None
        longest = max(len(self.first), len(other.first))
        return Arrays(
            tuple(joined(self.item(i), other.item(i)) for i in range(longest)),
            joined(self.others, other.others),
            low,
            high,
            joined(self.contains, other.contains),
            joined(self.unique, other.unique),
            joined(self.refused, other.refused),
        )

    def item(self, index: int) -> Terms:
        """The terms for the item at an index."""
        return self.first[index] if index < len(self.first) else self.others


@hashed_once
@dataclass(frozen=True)
class Members:
    """What `properties`, `patternProperties` and `additionalProperties` of one schema say together."""

    properties: tuple[tuple[str, Terms], ...] = ()
    patterns: tuple[tuple[Source, Terms], ...] = ()
    additional: Terms = ()

    @cached_property
    def by_name(self) -> dict[str, Terms]:
        """The terms for the value of each declared key."""
        return dict(self.properties)


@dataclass(frozen=True, slots=True)
class Sign:
    """A member with this key, or whose key as a string fulfils terms, and of which the value fulfils others.

    Attributes:
        key: the key, or the terms for it.
        value: the one or no term for the value; None for a key, by name, that is not there.
    """

    key: str | Terms
    value: Terms | None


@hashed_once
@dataclass(frozen=True)
class Wish:
    """An object must show at least one of these signs."""

    signs: tuple[Sign, ...]


@hashed_once
@dataclass(frozen=True)
class Objects:
    """A set of objects; `absent` keys must not be there, `names` are terms for every key as a string.

    Of keys that are not declared, those that are `later` come after all that are, group by group.

    A wish with one sign that names a key is none: `of_wish` and "and" turn it into what it says.
    """

    members: tuple[Members, ...] = ()
    required: tuple[str, ...] = ()
    absent: frozenset[str] = frozenset()
    names: Terms = ()
    low: int = 0
    high: int | None = None
    wishes: tuple[Wish, ...] = ()
    later: tuple[frozenset[str], ...] = ()

    def __and__(self, other: Objects) -> Objects | None:
        if other is _ANY_OBJECT or other == _ANY_OBJECT:
            return self
        low, high = max(self.low, other.low), _least(self.high, other.high)
        required, absent = joined(self.required, other.required), self.absent | other.absent
        if (high is not None and max(low, len(required)) > high) or not absent.isdisjoint(required):
            return None
        both = Objects(
            joined(self.members, other.members),
            required,
            absent,
            joined(self.names, other.names),
            low,
            high,
        )
        wishes = joined(self.wishes, other.wishes)
        return both._wishing(wishes) if wishes else both

    @staticmethod
    def of_wish(wish: Wish) -> Objects | None:
        """The objects that fulfil a wish."""
        return _ANY_OBJECT._wishing((wish,))

    def _wishing(self, wishes: Sequence[Wish]) -> Objects | None:
        """These objects, which have no wishes, where they fulfil these."""
        objects, waiting = self, wishes
        while True:
            left: list[Wish] = []
            narrowed = False
            for wish in waiting:
                signs = objects._signs_of(wish)
                if signs is None:
                    continue
                if not signs:
                    return None
                said = _said_by(signs)
                if said is None:
                    left.append(wish if len(signs) == len(wish.signs) else Wish(signs))
                    continue
                narrower = objects & said
                if narrower is None:
                    return None
                objects, narrowed = narrower, True
            if not narrowed:
                return replace(objects, wishes=tuple(dict.fromkeys(left))) if left else objects
            waiting = left

    def _signs_of(self, wish: Wish) -> tuple[Sign, ...] | None:
        """The signs of a wish that are possible here, None if one is there in any case."""
        charge(SIGN_STEPS * len(wish.signs))
        signs = []
        for sign in wish.signs:
            if sign.value is None and sign.key in self.absent:
                return None
            if sign.key not in (self.required if sign.value is None else self.absent):
                signs.append(sign)
        return tuple(signs)


def _said_by(signs: Sequence[Sign]) -> Objects | None:
    """What it says that these are the signs, if that can be said without a wish."""
    if len(signs) > 1 or not isinstance(signs[0].key, str):
        return None
    key, value = signs[0].key, signs[0].value
    if value is None:
        return Objects(absent=frozenset([key]))
    return Objects((Members(((key, value),)),), (key,))


@hashed_once
@dataclass(frozen=True)
class Facts:
    """One conjunction; a type that cannot occur is False or None."""

    null: bool = False
    true: bool = False
    false: bool = False
    number: Numbers | None = None
    string: Strings | None = None
    array: Arrays | None = None
    object: Objects | None = None

    def __and__(self, other: Facts) -> Facts:
        if other is ANYTHING:
            return self
        if self is ANYTHING:
            return other
        return Facts(
            self.null and other.null,
            self.true and other.true,
            self.false and other.false,
            self.number and other.number and self.number & other.number,
            self.string and other.string and self.string & other.string,
            self.array and other.array and self.array & other.array,
            self.object and other.object and self.object & other.object,
        )

    @property
    def has_one_type(self) -> bool:
        """Whether all values are of one type."""
        parts = self.null, self.true or self.false, self.number, self.string, self.array, self.object
        return sum(map(bool, parts)) == 1

    def __bool__(self) -> bool:
        """Whether any type is left."""
        return bool(
            self.null or self.true or self.false or self.number or self.string or self.array or self.object
        )


_ANY_NUMBER = Numbers()
_ANY_STRING = Strings()
_ANY_ARRAY = Arrays()
_ANY_OBJECT = Objects()
ANYTHING = Facts(True, True, True, _ANY_NUMBER, _ANY_STRING, _ANY_ARRAY, _ANY_OBJECT)
IMPOSSIBLE = Facts()


def of_types(names: list[str]) -> Facts:
    """The values of any of these types."""
    number = None
    if "number" in names:
        number = _ANY_NUMBER
    elif "integer" in names:
        number = Numbers(integral=True)
    return Facts(
        "null" in names,
        "boolean" in names,
        "boolean" in names,
        number,
        _ANY_STRING if "string" in names else None,
        _ANY_ARRAY if "array" in names else None,
        _ANY_OBJECT if "object" in names else None,
    )


def exact(number: int | float) -> Fraction:
    """A number of a schema as the decimal that it was written as."""
    # Not the `repr` of the number itself: numpy's floats are Python's, too, and write their type.
    found = Fraction(number) if isinstance(number, int) else Fraction(repr(float(number)))
    charge(NUMBER_STEPS + (found.numerator.bit_length() + found.denominator.bit_length()) // BITS_PER_STEP)
    return found


def of_value(value: Any) -> Facts:
    """This one JSON value."""
    match value:
        case None:
            return Facts(null=True)
        case bool():
            return Facts(true=value, false=not value)
        case int() | float():
            return Facts(number=Numbers(values=(exact(value),)))
        case str():
            return Facts(string=Strings(values=(value,)))
        case list():
            charge(CONTAINER_STEPS)
            first = tuple((of_value(each),) for each in value)
            return Facts(array=Arrays(first, (IMPOSSIBLE,), len(value), len(value)))
        case _:
            charge(CONTAINER_STEPS)
            properties = tuple((name, (of_value(each),)) for name, each in value.items())
            members = Members(properties, (), (IMPOSSIBLE,))
            return Facts(object=Objects((members,), tuple(value)))


def of_values(values: list[Any]) -> list[Facts]:
    """Any of these JSON values: one conjunction for the simple ones and one for each container."""
    simple = [value for value in values if not isinstance(value, list | dict)]
    numbers = [
        exact(value) for value in simple if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    strings = [value for value in simple if isinstance(value, str)]
    facts = Facts(
        any(value is None for value in simple),
        any(value is True for value in simple),
        any(value is False for value in simple),
        Numbers(values=tuple(dict.fromkeys(numbers))) if numbers else None,
        Strings(values=tuple(dict.fromkeys(strings))) if strings else None,
    )
    containers = [of_value(value) for value in values if isinstance(value, list | dict)]
    return [facts, *containers] if facts else containers


def joined(left: tuple[Any, ...], right: tuple[Any, ...]) -> tuple[Any, ...]:
    """Both, without repetitions, in order."""
    if not left or not right:
        return left or right
    if len(right) <= FEW:
        # Comparing is faster than hashing, which goes down to the bottom of every fact.
        return left + tuple(each for each in right if each not in left)
    return tuple(dict.fromkeys(left + right))


def _common(left: tuple[Any, ...] | None, right: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    if left is None or right is None:
        return right if left is None else left
    allowed = set(right)
    return tuple(value for value in left if value in allowed)


def _least(left: int | None, right: int | None) -> int | None:
    if left is None or right is None:
        return right if left is None else left
    return min(left, right)


def _tighter(
    left: tuple[Fraction | None, bool], right: tuple[Fraction | None, bool], sign: int
) -> tuple[Fraction | None, bool]:
    """The bound that leaves less; `sign` is 1 for lower bounds, -1 for upper ones."""
    if left[0] is None or right[0] is None:
        return right if left[0] is None else left
    if left[0] == right[0]:
        return left[0], left[1] or right[1]
    return left if (left[0] - right[0]) * sign > 0 else right
