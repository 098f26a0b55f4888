"""A JSON Schema document: checking its schemas, naming equal ones once, and following references.

Everything here is iterative, so that no depth of nesting can exhaust the stack.
"""

from __future__ import annotations

import json
from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import referencing.exceptions

from sortition.grammars.errors import GrammarError, Invalid, TooLarge, Unsupported
from sortition.grammars.formats import FORMATS
from sortition.grammars.schema_keywords import ANNOTATIONS, KEYWORDS, Draft, check, children, pointer_to
from sortition.grammars.schema_scope import (
    ADDRESSES,
    DYNAMIC_REFERENCES,
    Route,
    Scope,
    dialect,
    follow,
    identifier,
    is_dynamic_anchor,
    is_plain_reference,
    named_places,
)
from sortition.grammars.schema_warnings import Ignored
from sortition.grammars.work import charge

ADDRESS_STEPS: Final = 150
"""Steps that it takes to find the resource at an address."""

ROUTE_STEPS: Final = 40
"""Steps that each schema takes to be read on a route that dynamic references tell apart: where there is none,
its object has been charged for."""

_Inner: TypeAlias = list[tuple[tuple[str | int, ...], Any]]
"""The schemas inside a schema, as written, each with its path."""

_WRAPPINGS: Final = (
    *("schema", "json_schema", "response_schema", "responseSchema", "response_format"),
    *("parameters", "inputSchema", "input_schema"),
)
"""Where requests and tools of common interfaces hold a schema."""

NO_VALUES: Final[list[Any]] = []
"""The `enum` that stands for the schema false, told by identity from one that was written."""


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
        self._ignored = Ignored(ignored)
        self._is_dynamic = not DYNAMIC_REFERENCES.isdisjoint(keys)
        self._schemas: dict[tuple[int, Route], Schema] = {}
        self._by_content: dict[object, Schema] = {}
        self._targets: dict[tuple[int, str, str], Schema] = {}
        self._scopes: dict[tuple[int, Route], Scope] = {}
        self._resources: dict[int, Scope] = {}
        self._anchored: dict[int, dict[str, tuple[Any, str]]] = {}
        scope = Scope(Draft.D2020, False, contents, addressed=not ADDRESSES.isdisjoint(keys))
        if isinstance(contents, dict) and "$schema" in contents:
            draft, stated = dialect(contents["$schema"], "")
            scope = replace(scope, draft=draft, stated=stated)
        self.root = self._read(contents, "", self._entered(scope, ()))

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence for each keyword and format that is ignored: unknown, or not wanted."""
        return self._ignored.warnings()

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
                contents, pointer, scope = follow(scope, name)
            else:
                contents, pointer = self._anchors(scope)[name]
                if keyword != "$ref" and is_dynamic_anchor(contents, name):
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
        charge(ADDRESS_STEPS)
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

    def _entered(self, scope: Scope, route: Route) -> Scope:
        """The same resource, entered on a route."""
        self._resources.setdefault(id(scope.contents), scope)
        if self._is_dynamic and id(scope.contents) not in route and self._dynamic_anchors(scope):
            route = (*route, id(scope.contents))
        return self._scopes.setdefault((id(scope.contents), route), replace(scope, route=route))

    def _anchors(self, scope: Scope) -> dict[str, tuple[Any, str]]:
        """The named places of a resource with their pointers; its root has the empty name."""
        found = self._anchored.get(id(scope.contents))
        if found is None:
            found = self._anchored[id(scope.contents)] = dict(named_places(scope))
        return found

    def _dynamic_anchors(self, scope: Scope) -> set[str]:
        return {name for name, (raw, _) in self._anchors(scope).items() if is_dynamic_anchor(raw, name)}

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
        if scope.route:
            charge(ROUTE_STEPS)
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
        if scope.contents is not raw and identifier(raw, scope.draft) is not None:
            draft, stated = scope.draft, scope.stated
            if "$schema" in raw:
                draft, stated = dialect(raw["$schema"], pointer)
            scope = self._entered(Scope(draft, stated, raw, scope, pointer), scope.route)
        for keyword, value in raw.items():
            if self._counts(keyword, raw, scope.draft):
                try:
                    check(keyword, value, scope.draft, scope.stated, pointer)
                except (TooLarge, Unsupported) as error:
                    raise type(error)(error.reason, pointer=pointer, keyword=keyword) from None
                if keyword == "format" and value not in FORMATS:
                    self._ignored.format(value, pointer)
            elif not (keyword in ANNOTATIONS or keyword == "$defs" or is_plain_reference(raw, scope.draft)):
                self._ignored.keyword(keyword, pointer)
        return scope

    def _counts(self, keyword: str, raw: dict[str, Any], draft: Draft) -> bool:
        """Whether a keyword of a schema counts."""
        return keyword not in self._unwanted and _applies(keyword, raw, draft)


def _applies(keyword: str, raw: dict[str, Any], draft: Draft) -> bool:
    """Whether a keyword of a schema is one that this draft has."""
    known = KEYWORDS.get(keyword)
    if known is None:
        return False
    if is_plain_reference(raw, draft):
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
