"""Any JSON value: the rules for values of which a schema says nothing, made once for all schemas."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final

from sortition.grammars.expr import Call, Expr, alternative, literal
from sortition.grammars.json_arrays import array_of
from sortition.grammars.json_numbers import NUMBER
from sortition.grammars.json_objects import Shape, object_of
from sortition.grammars.json_strings import other_words, string
from sortition.grammars.json_unordered_objects import unordered_object_of
from sortition.grammars.json_whitespace import ALL_DEPTHS, CACHED_POLICIES, Policy
from sortition.grammars.schema_facts import Arrays, Numbers, Objects, Strings
from sortition.grammars.schema_ways import Marks
from sortition.grammars.work import kept

ANY_OF_TYPE: Final[dict[Numbers | Strings | Arrays | Objects, str]] = {
    Numbers(): "any number",
    Strings(): "any string",
    Arrays(): "any array",
    Objects(): "any object",
}
"""The sets of all values of a type, with the names of their rules."""

_ANY_VALUE: Final = ("null", "true", "false", *ANY_OF_TYPE.values())


@kept(CACHED_POLICIES)
def any_value_rules(policy: Policy, called: bool, any_order: bool) -> Mapping[str, Expr]:
    """The rules for any JSON value, by name.

    Args:
        policy: the whitespace between tokens.
        called: whether characters and line breaks are calls.
        any_order: whether keys of objects may come in any order.
    """
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
