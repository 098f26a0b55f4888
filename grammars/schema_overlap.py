"""Cheap reasons why two schemas share no value: other types, other constants, other tags.

They settle the usual `oneOf` without multiplying anything out; where they do not, `Logic.possible` is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from sortition.grammars.schema_facts import Facts, Terms
from sortition.grammars.schema_keys import terms_of

Constant: TypeAlias = tuple[str, str | Fraction | None]
"""A value that is no container: its type, and which one."""
Cases: TypeAlias = Callable[[Terms], tuple[Facts, ...]]


@dataclass(frozen=True, slots=True)
class Outline:
    """What one case allows, roughly.

    Attributes:
        constants: the values of the types of which only finitely many are allowed.
        open_types: the types of which more are allowed.
        tags: for required keys of its objects that allow only finitely many values, these values.
    """

    constants: frozenset[Constant]
    open_types: frozenset[str]
    tags: Mapping[str, frozenset[Constant]]

    def meets(self, other: Outline) -> bool:
        """Whether a common value cannot be ruled out."""
        if self.constants & other.constants:
            return True
        if any(kind in other.open_types for kind, _ in self.constants):
            return True
        if any(kind in self.open_types for kind, _ in other.constants):
            return True
        shared = self.open_types & other.open_types
        if shared == {"object"}:
            return all(values & other.tags[key] for key, values in self.tags.items() if key in other.tags)
        return bool(shared)


def outlines(terms: Terms, cases: Cases) -> list[Outline]:
    """The outlines of all cases of the terms."""
    return [_outline(facts, cases) for facts in cases(terms)]


def constants_of(terms: Terms, cases: Cases) -> frozenset[Constant] | None:
    """The values that fulfil terms, None if more than finitely many or containers do."""
    values: set[Constant] = set()
    for facts in cases(terms):
        constants, types = _simple(facts)
        if types or facts.array is not None or facts.object is not None:
            return None
        values |= constants
    return frozenset(values)


def _outline(facts: Facts, cases: Cases) -> Outline:
    constants, open_types = _simple(facts)
    tags: dict[str, frozenset[Constant]] = {}
    if facts.array is not None:
        open_types.add("array")
    if facts.object is not None:
        open_types.add("object")
        for name in facts.object.required:
            values = constants_of(terms_of(facts.object, name), cases)
            if values is not None:
                tags[name] = values
    return Outline(frozenset(constants), frozenset(open_types), tags)


def _simple(facts: Facts) -> tuple[set[Constant], set[str]]:
    """The constants among the values that are no containers, and the types of the others."""
    constants: set[Constant] = set()
    open_types: set[str] = set()
    for allowed, name in ((facts.null, "null"), (facts.true, "true"), (facts.false, "false")):
        if allowed:
            constants.add((name, None))
    for part, name in ((facts.number, "number"), (facts.string, "string")):
        if part is not None and part.values is not None:
            constants.update((name, value) for value in part.values)
        elif part is not None:
            open_types.add(name)
    return constants, open_types
