"""A JSON Schema document: reading, checking, naming equal schemas once, and following references.

Everything here is iterative, so that no depth of nesting can exhaust the stack.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import referencing
import referencing.exceptions
import referencing.jsonschema

from sortition.grammars import work
from sortition.grammars.errors import GrammarError, Invalid, TooLarge, Unsupported
from sortition.grammars.formats import FORMATS
from sortition.grammars.schema_keywords import (
    ANNOTATIONS,
    DIALECTS,
    ELSEWHERE,
    KEYWORDS,
    LATEST,
    Draft,
    blamed,
    check,
    children,
    nearest,
    pointer_to,
)

DEPTH_BUDGET: Final = 400
"""Levels of nesting in a schema; the deepest of 6,798 public schemas has 48."""

VALUE_STEPS: Final = 4
"""Steps that each value of a schema takes to be read."""

CHARACTERS_PER_STEP: Final = 16
"""Characters of a schema that are read in one step."""

BITS: Final = 14_000
"""Bits of an integer anywhere in a schema: Python writes no longer ones."""

OBJECT_STEPS: Final = 26
"""Steps that each object of a schema takes to be read, as it may be a schema: 49,206 small ones, in 70,000
objects, took some 1.1 s. Charged before any is read, so that what is too long is refused soon."""

_Inner: TypeAlias = list[tuple[tuple[str | int, ...], Any]]
"""The schemas inside a schema, as written, each with its path."""

_Route: TypeAlias = tuple[int, ...]

_FORMAT: Final = "format "
"""Before the name of a format among the things that are ignored."""

_ADDRESSES: Final = frozenset(["$id", "id", "$anchor", "$dynamicAnchor"])
_DYNAMIC: Final = frozenset(["$dynamicRef", "$recursiveRef"])
"""References whose target depends on the way that led to them."""

_SPECIFICATIONS: Final = {
    Draft.D4: referencing.jsonschema.DRAFT4,
    Draft.D6: referencing.jsonschema.DRAFT6,
    Draft.D7: referencing.jsonschema.DRAFT7,
    Draft.D2019: referencing.jsonschema.DRAFT201909,
    Draft.D2020: referencing.jsonschema.DRAFT202012,
}


_WRAPPINGS: Final = (
    *("schema", "json_schema", "response_schema", "responseSchema", "response_format"),
    *("parameters", "inputSchema", "input_schema"),
)
"""Where requests and tools of common interfaces hold a schema."""

NO_VALUES: Final[list[Any]] = []
"""The `enum` that stands for the schema false, told by identity from one that was written."""


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
    route: _Route = ()
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


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """One schema of a document. Schemas of equal content in the same scope are the same object.

    Attributes:
        keywords: the keywords that exist in its draft, without annotations, as written.
        pointer: where it stands (the first of its places).
        scope: the resource that it belongs to.
        children: every schema in the value of one of its keywords, by path.
    """

    keywords: dict[str, Any]
    pointer: str
    scope: Scope
    children: dict[tuple[str | int, ...], Schema]

    def child(self, *path: str | int) -> Schema:
        """The schema at a path such as ``("properties", "name")``."""
        return self.children[path]

    def error(
        self, kind: type[GrammarError], keyword: str | None, reason: str, hint: str | None = None
    ) -> GrammarError:
        """An error at one of its keywords."""
        return kind(reason, pointer=self.pointer, keyword=keyword, hint=hint)


class Document:
    """All schemas that a root schema reaches.

    Args:
        contents: JSON that has been checked.
        keys: those of all objects in it.
        ignored: keywords that are read as if they were not there.

    Attributes:
        root: the root schema.
    """

    def __init__(self, contents: object, keys: Set[str], ignored: Set[str]) -> None:
        if not isinstance(contents, bool | dict):
            raise Invalid("a schema is an object, true or false", pointer="")
        _refuse_wrapping(contents)
        self._unwanted = ignored
        self._is_dynamic = not _DYNAMIC.isdisjoint(keys)
        self._schemas: dict[tuple[int, _Route], Schema] = {}
        self._by_content: dict[object, Schema] = {}
        self._targets: dict[tuple[int, str, str], Schema] = {}
        self._scopes: dict[tuple[int, _Route], Scope] = {}
        self._resources: dict[int, Scope] = {}
        self._anchored: dict[int, dict[str, tuple[Any, str]]] = {}
        self._ignored: Counter[str] = Counter()
        self._ignored_at: dict[str, str] = {}
        scope = Scope(Draft.D2020, False, contents, addressed=not _ADDRESSES.isdisjoint(keys))
        if isinstance(contents, dict) and "$schema" in contents:
            draft, stated = _dialect(contents["$schema"], "")
            scope = replace(scope, draft=draft, stated=stated)
        self.root = self._read(contents, "", self._entered(scope, ()))

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence for each keyword and format that is ignored: unknown, or not wanted."""
        return tuple(self._warn(what, count) for what, count in self._ignored.items())

    def target(self, schema: Schema, keyword: str) -> Schema:
        """The schema that a reference of a schema leads to.

        A dynamic reference leads to the outermost resource on the way here that has its anchor.

        Raises:
            Unsupported: the reference leaves the document.
            Invalid: it leads nowhere.
        """
        key = self._key(schema, keyword)
        found = self._targets.get(key)
        if found is None:
            found = self._targets[key] = self._resolve(schema, keyword)
        return found

    @staticmethod
    def _key(schema: Schema, keyword: str) -> tuple[int, str, str]:
        return id(schema.scope), keyword, schema.keywords[keyword]

    def reached(self, schema: Schema) -> Schema:
        """The schema that the `$ref` of a schema leads to if it has been followed, else itself."""
        if "$ref" not in schema.keywords:
            return schema
        return self._targets.get(self._key(schema, "$ref"), schema)

    def _resolve(self, schema: Schema, keyword: str) -> Schema:
        reference = schema.keywords[keyword]
        address, _, fragment = reference.partition("#")
        scope, name = self._resource(schema, keyword, address), unquote(fragment)
        try:
            if name.startswith("/"):
                contents, pointer, scope = _follow(scope, name)
            else:
                contents, pointer = self._anchors(scope)[name]
                if keyword != "$ref" and _is_dynamic_anchor(contents, name):
                    outer = (self._resources[each] for each in schema.scope.route)
                    scope = next((each for each in outer if name in self._dynamic_anchors(each)), scope)
                    contents, pointer = self._anchors(scope)[name]
        except (LookupError, ValueError):
            raise schema.error(Invalid, keyword, f"{reference!r} leads nowhere") from None
        if not isinstance(contents, bool | dict):
            raise schema.error(Invalid, keyword, f"{reference!r} leads to something that is no schema")
        return self._read(contents, pointer, self._entered(scope, schema.scope.route))

    def _resource(self, schema: Schema, keyword: str, address: str) -> Scope:
        """The resource at an address, as seen from a schema."""
        if not address:
            return schema.scope
        try:
            found = schema.scope.resolver.lookup(address)
        except referencing.exceptions.Unresolvable:
            raise schema.error(
                Unsupported,
                keyword,
                f"{address!r} is not in this document",
                "references are never fetched: put the schema under $defs",
            ) from None
        except Exception as error:
            # On its way the reference may pass through anything, also through what was not checked here.
            raise schema.error(Invalid, keyword, f"{address!r} cannot be followed ({error})") from None
        known = self._resources.get(id(found.contents))
        return known or Scope(schema.scope.draft, schema.scope.stated, found.contents, found.resolver)

    def _entered(self, scope: Scope, route: _Route) -> Scope:
        """The same resource, entered on a route."""
        self._resources.setdefault(id(scope.contents), scope)
        if self._is_dynamic and id(scope.contents) not in route and self._dynamic_anchors(scope):
            route = (*route, id(scope.contents))
        return self._scopes.setdefault((id(scope.contents), route), replace(scope, route=route))

    def _anchors(self, scope: Scope) -> dict[str, tuple[Any, str]]:
        """The named places of a resource with their pointers; its root has the empty name."""
        found = self._anchored.get(id(scope.contents))
        if found is None:
            found = self._anchored[id(scope.contents)] = dict(_named_places(scope))
        return found

    def _dynamic_anchors(self, scope: Scope) -> set[str]:
        return {name for name, (raw, _) in self._anchors(scope).items() if _is_dynamic_anchor(raw, name)}

    def _read(self, contents: Any, pointer: str, scope: Scope) -> Schema:
        """Read a schema and all those inside it, the innermost first."""
        waiting: list[tuple[Any, str, Scope, Scope, _Inner | None]] = [
            (contents, pointer, scope, scope, None)
        ]
        while waiting:
            raw, place, outside, within, inner = waiting.pop()
            if isinstance(raw, bool) or (id(raw), outside.route) in self._schemas:
                continue
            if inner is not None:
                schema = self._schema(raw, place, within, inner)
                self._schemas[id(raw), outside.route] = self._schemas[id(raw), within.route] = schema
                continue
            within = self._check(raw, place, outside)
            inner = [
                each
                for keyword, value in raw.items()
                if self._counts(keyword, raw, within.draft)
                for each in children(keyword, value)
            ]
            waiting.append((raw, place, outside, within, inner))
            waiting.extend((child, pointer_to(place, *path), within, within, None) for path, child in inner)
        return self._of(contents, pointer, scope)

    def _of(self, raw: Any, pointer: str, scope: Scope) -> Schema:
        if isinstance(raw, bool):
            keywords: dict[str, Any] = {} if raw else {"enum": NO_VALUES}
            return self._by_content.setdefault((raw, id(scope)), Schema(keywords, pointer, scope, {}))
        return self._schemas[id(raw), scope.route]

    def _schema(self, raw: dict[str, Any], pointer: str, scope: Scope, inner: _Inner) -> Schema:
        """The schema of this content; the content of a schema inside is known by its identity."""
        schemas = {path: self._of(child, pointer_to(pointer, *path), scope) for path, child in inner}
        keywords = {
            keyword: value for keyword, value in raw.items() if self._counts(keyword, raw, scope.draft)
        }
        below: dict[str, list[object]] = {}
        for path, schema in schemas.items():
            below.setdefault(str(path[0]), []).append((path, id(schema)))
        content = (
            (
                keyword,
                tuple(below.get(keyword, ())),
                # What is not a schema counts as it is written; dependencies may be both.
                json.dumps(value) if keyword not in below or keyword == "dependencies" else "",
            )
            for keyword, value in keywords.items()
        )
        return self._by_content.setdefault((id(scope), *content), Schema(keywords, pointer, scope, schemas))

    def _check(self, raw: dict[str, Any], pointer: str, scope: Scope) -> Scope:
        """Check every keyword of one schema; the scope that it and what is inside it belong to."""
        if scope.contents is not raw and _identifier(raw, scope.draft) is not None:
            draft, stated = scope.draft, scope.stated
            if "$schema" in raw:
                draft, stated = _dialect(raw["$schema"], pointer)
            scope = self._entered(Scope(draft, stated, raw, scope, pointer), scope.route)
        for keyword, value in raw.items():
            if self._counts(keyword, raw, scope.draft):
                try:
                    check(keyword, value, scope.draft, scope.stated, pointer)
                except (TooLarge, Unsupported) as error:
                    raise type(error)(error.reason, pointer=pointer, keyword=keyword) from None
                if keyword == "format" and value not in FORMATS:
                    self._ignore(_FORMAT + value, pointer)
            elif not (keyword in ANNOTATIONS or keyword == "$defs" or _is_plain_reference(raw, scope.draft)):
                self._ignore(keyword, pointer)
        return scope

    def _counts(self, keyword: str, raw: dict[str, Any], draft: Draft) -> bool:
        """Whether a keyword of a schema counts."""
        return keyword not in self._unwanted and _applies(keyword, raw, draft)

    def _ignore(self, what: str, pointer: str) -> None:
        self._ignored[what] += 1
        self._ignored_at.setdefault(what, pointer)

    def _warn(self, what: str, count: int) -> str:
        place = f"at {self._ignored_at[what] or 'the root'}" + (f" and {count - 1} more" if count > 1 else "")
        if what.startswith(_FORMAT):
            return f"{what.removeprefix(_FORMAT)!r} ({place}) is not a format of JSON Schema; it is ignored"
        if what in self._unwanted:
            return f"{what!r} ({place}) is ignored, as `ignore` says"
        if what in KEYWORDS:
            return f"{what!r} ({place}) is not a keyword of the draft that the schema names; it is ignored"
        if what in ELSEWHERE:
            return f"{what!r} ({place}) is not a keyword; it is ignored: it is {ELSEWHERE[what]}"
        meant = nearest(what)
        guess = f"; did you mean {meant!r}?" if meant else ""
        return f"{what!r} ({place}) is not a keyword; it is ignored{guess}"


def _identifier(raw: dict[str, Any], draft: Draft) -> str | None:
    """The address with which a schema begins a resource of its own."""
    if _is_plain_reference(raw, draft):
        return None
    identifier = raw.get("id" if draft == Draft.D4 else "$id")
    return identifier if isinstance(identifier, str) and not identifier.startswith("#") else None


def _follow(scope: Scope, pointer: str) -> tuple[Any, str, Scope]:
    """What a JSON pointer leads to from the root of a resource, its place, and the resource it belongs to."""
    current, place = scope.contents, scope.pointer
    for token in pointer.split("/")[1:]:
        token = token.replace("~1", "/").replace("~0", "~")
        current = current[int(token) if isinstance(current, list) else token]
        place = pointer_to(place, token)
        if isinstance(current, dict) and _identifier(current, scope.draft) is not None:
            scope = Scope(scope.draft, scope.stated, current, scope, place)
    return current, place, scope


def _is_dynamic_anchor(raw: Any, name: str) -> bool:
    """Whether dynamic references to this name are looked for on the way; the empty name is the root's."""
    if not isinstance(raw, dict):
        return False
    return raw.get("$dynamicAnchor") == name if name else raw.get("$recursiveAnchor") is True


def _named_places(scope: Scope) -> Iterator[tuple[str, tuple[Any, str]]]:
    """The anchors of a resource, and its root under the empty name."""
    yield "", (scope.contents, scope.pointer)
    waiting = [(scope.contents, scope.pointer)]
    while waiting:
        raw, pointer = waiting.pop()
        if isinstance(raw, list):
            waiting.extend((child, pointer_to(pointer, index)) for index, child in enumerate(raw))
        elif isinstance(raw, dict) and (raw is scope.contents or _identifier(raw, scope.draft) is None):
            # Before there were anchors, an address could be one.
            names = [raw.get("$anchor"), raw.get("$dynamicAnchor")]
            old = raw.get("id" if scope.draft == Draft.D4 else "$id")
            if isinstance(old, str) and old.startswith("#") and (scope.draft <= Draft.D7 or not scope.stated):
                names.append(old[1:])
            yield from ((name, (raw, pointer)) for name in names if name and isinstance(name, str))
            waiting.extend(
                (child, pointer_to(pointer, name))
                for name, child in raw.items()
                if name not in ("enum", "const", *ANNOTATIONS)
            )


def _is_plain_reference(raw: dict[str, Any], draft: Draft) -> bool:
    """Whether everything beside `$ref` is ignored."""
    return "$ref" in raw and draft <= Draft.D7


def _applies(keyword: str, raw: dict[str, Any], draft: Draft) -> bool:
    """Whether a keyword of a schema is one that this draft has."""
    known = KEYWORDS.get(keyword)
    if known is None:
        return False
    if _is_plain_reference(raw, draft):
        return keyword in ("$ref", "definitions")
    if keyword == "additionalItems" and isinstance(raw.get("items"), list):
        return True
    return known.first <= draft <= known.last


def _refuse_wrapping(contents: bool | dict[str, Any]) -> None:
    """Refuse what holds a schema and has no keyword itself: it would allow everything."""
    if isinstance(contents, bool) or not KEYWORDS.keys().isdisjoint(contents):
        return
    for key in _WRAPPINGS:
        if isinstance(contents.get(key), dict):
            raise Invalid(
                "none of the keys is a keyword, so that everything would be allowed",
                pointer="",
                hint=f"the schema itself seems to be what is under {key!r}",
            )


def _dialect(address: object, pointer: str) -> tuple[Draft, bool]:
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


def checked_keys(contents: object) -> Set[str]:
    """The keys of all objects in a JSON value.

    A container that stands at several places costs as much as if it were written there: every later stage
    may go through it again.

    Raises:
        Invalid: it is not JSON, or contains itself.
        TooLarge: it is too deep or too large.
    """
    at = _Place()
    try:
        return _checked_keys(contents, at)
    except (Invalid, TooLarge) as error:
        pointer, keyword = at.origin()
        raise type(error)(error.reason, pointer=pointer, keyword=keyword, hint=error.hint) from None


@dataclass(slots=True)
class _Place:
    """Where reading has come to: the keys and indices on the way, the last one first."""

    tokens: tuple[str | int, Any] | None = None

    def origin(self) -> tuple[str, str | None]:
        """The pointer of the innermost schema there, and the keyword in it."""
        way: list[str | int] = []
        tokens = self.tokens
        while tokens is not None:
            way.insert(0, tokens[0])
            tokens = tokens[1]
        return blamed(way)


def _checked_keys(contents: object, at: _Place) -> Set[str]:
    meter = work.meter()
    keys: set[str] = set()
    # The steps for each container, and where those that are open began.
    finished: dict[int, int] = {}
    open_containers: set[int] = set()
    waiting: list[tuple[Any, int, int | None, Any]] = [(contents, 0, None, None)]
    while waiting:
        value, depth, before, at.tokens = waiting.pop()
        if before is not None:
            open_containers.discard(id(value))
            finished[id(value)] = meter.steps - before
        elif isinstance(value, dict | list):
            if id(value) in open_containers:
                raise Invalid("the schema contains itself", hint="use $ref")
            if id(value) in finished:
                meter.charge(finished[id(value)])
                continue
            if depth > DEPTH_BUDGET:
                raise TooLarge(f"the schema nests more than {DEPTH_BUDGET} levels deep")
            open_containers.add(id(value))
            waiting.append((value, depth, meter.steps, at.tokens))
            meter.charge(VALUE_STEPS * (1 + len(value)))
            if isinstance(value, dict):
                meter.charge(OBJECT_STEPS)
                if not all(isinstance(key, str) for key in value):
                    raise Invalid("the keys of a schema are strings")
                keys.update(value)
                meter.charge(sum(map(len, value)) // CHARACTERS_PER_STEP)
            inner = value.items() if isinstance(value, dict) else enumerate(value)
            waiting.extend([(each, depth + 1, None, (token, at.tokens)) for token, each in inner])
        elif isinstance(value, str):
            meter.charge(len(value) // CHARACTERS_PER_STEP)
        elif isinstance(value, int):
            if value.bit_length() > BITS:
                raise TooLarge(f"the schema has a number of more than {BITS:,} bits")
        elif not (value is None or isinstance(value, float)):
            raise Invalid(f"a {type(value).__name__} is not a JSON value")
    return keys
