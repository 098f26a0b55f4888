"""Scopes: what the keywords of a schema resource mean, and where references within it lead.

Everything here is iterative, so that no depth of nesting can exhaust the stack.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import referencing
import referencing.jsonschema

from sortition.grammars.errors import Invalid, Unsupported
from sortition.grammars.schema_keywords import ANNOTATIONS, DIALECTS, LATEST, Draft, pointer_to

Route: TypeAlias = tuple[int, ...]
"""The resources with dynamic anchors on the way to somewhere, outermost first, by identity."""

ADDRESSES: Final = frozenset(["$id", "id", "$anchor", "$dynamicAnchor"])
"""Keywords that give a schema an address, or a name within one."""

DYNAMIC_REFERENCES: Final = frozenset(["$dynamicRef", "$recursiveRef"])
"""References whose target depends on the way that led to them."""

_INDEX: Final = re.compile("0|[1-9][0-9]*")


_LATEST: Final = referencing.jsonschema.DRAFT202012


def _inside(contents: Any) -> Iterator[Any]:
    """The schemas in a schema, lists of them under `items` as before 2020-12 included."""
    for each in _LATEST.subresources_of(contents):
        yield from each if isinstance(each, list) else (each,)


_SPECIFICATIONS: Final = {
    Draft.D4: referencing.jsonschema.DRAFT4,
    Draft.D6: referencing.jsonschema.DRAFT6,
    Draft.D7: referencing.jsonschema.DRAFT7,
    Draft.D2019: referencing.jsonschema.DRAFT201909,
    Draft.D2020: referencing.Specification(  # type: ignore[call-arg]
        name=_LATEST.name,
        id_of=_LATEST.id_of,
        subresources_of=_inside,
        anchors_in=lambda _, contents: _LATEST.anchors_in(contents),
        maybe_in_subresource=_LATEST.maybe_in_subresource,
    ),
}


@dataclass(frozen=True, eq=False)
class Scope:
    """What the keywords of a schema resource mean: its draft, and where its references lead.

    Attributes:
        draft: the edition of the specification.
        stated: whether the schema names its draft; if not, older spellings are understood, too.
        contents: the schema at the root of the resource.
        parent: the resource around this one, or the resolver at which it was found.
        pointer: where the root of the resource stands in the document.
        route: the resources with dynamic anchors on the way here, outermost first, by identity.
        addressed: whether parts may have addresses of their own, so that all are looked for at once.
    """

    draft: Draft
    stated: bool
    contents: Any
    parent: Any = None
    pointer: str = ""
    route: Route = ()
    addressed: bool = False

    @cached_property
    def resolver(self) -> Any:
        """Follows references from here; only made if there are any."""
        resource = _SPECIFICATIONS[self.draft].create_resource(self.contents)
        if isinstance(self.parent, Scope):
            return self.parent.resolver.in_subresource(resource)
        if self.parent is not None:
            return self.parent
        address = resource.id() or ""
        registry = referencing.Registry().with_resource(address, resource)
        return (registry.crawl() if self.addressed else registry).resolver(address)


def identifier(raw: dict[str, Any], draft: Draft) -> str | None:
    """The address with which a schema begins a resource of its own."""
    if is_plain_reference(raw, draft):
        return None
    address = _address(raw, draft)
    return address if isinstance(address, str) and not address.startswith("#") else None


def _address(raw: dict[str, Any], draft: Draft) -> object:
    return raw.get("id" if draft == Draft.D4 else "$id")


def follow(scope: Scope, pointer: str) -> tuple[Any, str, Scope]:
    """What a JSON pointer leads to from the root of a resource, its place, and the resource it belongs to.

    Raises:
        LookupError: it leads nowhere.
    """
    current, place = scope.contents, scope.pointer
    for token in pointer.split("/")[1:]:
        token = token.replace("~1", "/").replace("~0", "~")
        if isinstance(current, list) and _INDEX.fullmatch(token):
            current = current[int(token)]
        elif isinstance(current, dict):
            current = current[token]
        else:
            raise LookupError(pointer)
        place = pointer_to(place, token)
        if isinstance(current, dict) and identifier(current, scope.draft) is not None:
            scope = Scope(scope.draft, scope.stated, current, scope, place)
    return current, place, scope


def is_dynamic_anchor(raw: Any, name: str) -> bool:
    """Whether dynamic references to this name are looked for on the way; the empty name is the root's."""
    if not isinstance(raw, dict):
        return False
    return raw.get("$dynamicAnchor") == name if name else raw.get("$recursiveAnchor") is True


def named_places(scope: Scope) -> Iterator[tuple[str, tuple[Any, str]]]:
    """The anchors of a resource, and its root under the empty name."""
    yield "", (scope.contents, scope.pointer)
    waiting = [(scope.contents, scope.pointer)]
    while waiting:
        raw, pointer = waiting.pop()
        if isinstance(raw, list):
            waiting.extend((child, pointer_to(pointer, index)) for index, child in enumerate(raw))
        elif isinstance(raw, dict) and (raw is scope.contents or identifier(raw, scope.draft) is None):
            # Before there were anchors, an address could be one.
            names = [raw.get("$anchor"), raw.get("$dynamicAnchor")]
            old = _address(raw, scope.draft)
            if isinstance(old, str) and old.startswith("#") and (scope.draft <= Draft.D7 or not scope.stated):
                names.append(old[1:])
            yield from ((name, (raw, pointer)) for name in names if name and isinstance(name, str))
            waiting.extend(
                (child, pointer_to(pointer, name))
                for name, child in raw.items()
                if name not in ("enum", "const", *ANNOTATIONS)
            )


def is_plain_reference(raw: dict[str, Any], draft: Draft) -> bool:
    """Whether everything beside `$ref` is ignored."""
    return "$ref" in raw and draft <= Draft.D7


def dialect(address: object, pointer: str) -> tuple[Draft, bool]:
    """The draft that `$schema` stands for, and whether it names it."""
    if not isinstance(address, str):
        raise Invalid("must be a string", pointer=pointer, keyword="$schema")
    name = address.partition("://")[2].removesuffix("#")
    if name == LATEST:
        return Draft.D2020, False
    draft = DIALECTS.get(name)
    if draft is None:
        raise Unsupported(
            f"{address!r} is not a dialect that is understood",
            pointer=pointer,
            keyword="$schema",
            hint="use draft 4, 6, 7, 2019-09 or 2020-12",
        )
    return draft, True
