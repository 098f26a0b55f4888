"""A JSON Schema document: reading, checking, naming equal schemas once, and following references.

Everything here is iterative, so that no depth of nesting can exhaust the stack.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import referencing
import referencing.exceptions
import referencing.jsonschema

from sortition.grammars.errors import GrammarError, Invalid, TooLarge, Unsupported
from sortition.grammars.formats import FORMATS
from sortition.grammars.schema_keywords import (
    ANNOTATIONS,
    DIALECTS,
    KEYWORDS,
    Draft,
    check,
    children,
    nearest,
    pointer_to,
)

DEPTH_BUDGET: Final = 400
"""Levels of nesting in a schema; the deepest of 6,798 public schemas has 48."""

VALUE_BUDGET: Final = 250_000
"""JSON values in a schema document; reading that many takes about 1 s. Public schemas have up to 25,000."""

_Inner: TypeAlias = list[tuple[tuple[str | int, ...], Any]]
"""The schemas inside a schema, as written, each with its path."""

_FORMAT: Final = "format "
"""Before the name of a format among the things that are ignored."""

_SPECIFICATIONS: Final = {
    Draft.D4: referencing.jsonschema.DRAFT4,
    Draft.D6: referencing.jsonschema.DRAFT6,
    Draft.D7: referencing.jsonschema.DRAFT7,
    Draft.D2019: referencing.jsonschema.DRAFT201909,
    Draft.D2020: referencing.jsonschema.DRAFT202012,
}


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
    """

    draft: Draft
    stated: bool
    contents: Any
    parent: Any = None

    @cached_property
    def resolver(self) -> Any:
        """Follows references from here; only made if there are any."""
        resource = _SPECIFICATIONS[self.draft].create_resource(self.contents)
        if isinstance(self.parent, Scope):
            return self.parent.resolver.in_subresource(resource)
        if self.parent is not None:
            return self.parent
        address = resource.id() or ""
        return referencing.Registry().with_resource(address, resource).resolver(address)


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

    Attributes:
        root: the root schema.
    """

    def __init__(self, contents: object) -> None:
        if not isinstance(contents, bool | dict):
            raise Invalid("a schema is an object, true or false", pointer="")
        _check_values(contents)
        self._schemas: dict[int, Schema] = {}
        self._by_content: dict[object, Schema] = {}
        self._targets: dict[tuple[int, str], Schema] = {}
        self._ignored: Counter[str] = Counter()
        self._ignored_at: dict[str, str] = {}
        scope = Scope(Draft.D2020, False, contents)
        if isinstance(contents, dict) and "$schema" in contents:
            scope = Scope(_draft(contents["$schema"], ""), True, contents)
        self.root = self._read(contents, "", scope)

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence for each keyword and format that is ignored because it does not exist."""
        return tuple(self._warn(what, count) for what, count in self._ignored.items())

    def target(self, schema: Schema) -> Schema:
        """The schema that the `$ref` of a schema leads to.

        Raises:
            Unsupported: the reference leaves the document.
            Invalid: it leads nowhere.
        """
        reference = schema.keywords["$ref"]
        key = (id(schema.scope), reference)
        found = self._targets.get(key)
        if found is None:
            found = self._targets[key] = self._resolve(schema, reference)
        return found

    def _resolve(self, schema: Schema, reference: str) -> Schema:
        if reference == "#" and schema.scope.parent is None:
            return self._read(schema.scope.contents, "", schema.scope)
        try:
            resolved = schema.scope.resolver.lookup(reference)
        except (referencing.exceptions.NoSuchAnchor, referencing.exceptions.PointerToNowhere):
            raise schema.error(Invalid, "$ref", f"{reference!r} leads nowhere") from None
        except referencing.exceptions.Unresolvable:
            raise schema.error(
                Unsupported,
                "$ref",
                f"{reference!r} is not in this document",
                "references are never fetched: put the schema under $defs",
            ) from None
        except Exception as error:
            # On its way the reference may pass through anything, also through what was not checked here.
            raise schema.error(Invalid, "$ref", f"{reference!r} cannot be followed ({error})") from None
        known = self._schemas.get(id(resolved.contents)) if isinstance(resolved.contents, dict) else None
        if known is not None:
            return known
        if not isinstance(resolved.contents, bool | dict):
            raise schema.error(Invalid, "$ref", f"{reference!r} leads to something that is no schema")
        scope = Scope(schema.scope.draft, schema.scope.stated, resolved.contents, resolved.resolver)
        fragment = unquote(reference.partition("#")[2])
        return self._read(resolved.contents, fragment if fragment.startswith("/") else f"/{fragment}", scope)

    def _read(self, contents: Any, pointer: str, scope: Scope) -> Schema:
        """Read a schema and all those inside it, the innermost first."""
        waiting: list[tuple[Any, str, Scope, _Inner | None]] = [(contents, pointer, scope, None)]
        while waiting:
            raw, place, within, inner = waiting.pop()
            if isinstance(raw, bool) or id(raw) in self._schemas:
                continue
            if inner is not None:
                self._schemas[id(raw)] = self._schema(raw, place, within, inner)
                continue
            within = self._check(raw, place, within)
            inner = [
                each
                for keyword, value in raw.items()
                if _applies(keyword, raw, within.draft)
                for each in children(keyword, value)
            ]
            waiting.append((raw, place, within, inner))
            waiting.extend((child, pointer_to(place, *path), within, None) for path, child in inner)
        return self._of(contents, pointer, scope)

    def _of(self, raw: Any, pointer: str, scope: Scope) -> Schema:
        if isinstance(raw, bool):
            keywords: dict[str, Any] = {} if raw else {"enum": NO_VALUES}
            return self._by_content.setdefault((raw, id(scope)), Schema(keywords, pointer, scope, {}))
        return self._schemas[id(raw)]

    def _schema(self, raw: dict[str, Any], pointer: str, scope: Scope, inner: _Inner) -> Schema:
        """The schema of this content; the content of a schema inside is known by its identity."""
        schemas = {path: self._of(child, pointer_to(pointer, *path), scope) for path, child in inner}
        keywords = {keyword: value for keyword, value in raw.items() if _applies(keyword, raw, scope.draft)}
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
        identifier = raw.get("id" if scope.draft == Draft.D4 else "$id")
        if scope.contents is not raw and isinstance(identifier, str) and not identifier.startswith("#"):
            if "$schema" in raw:
                scope = Scope(_draft(raw["$schema"], pointer), True, raw, scope)
            else:
                scope = Scope(scope.draft, scope.stated, raw, scope)
        for keyword, value in raw.items():
            if _applies(keyword, raw, scope.draft):
                try:
                    check(keyword, value, scope.draft, scope.stated, pointer)
                except (TooLarge, Unsupported) as error:
                    raise type(error)(error.reason, pointer=pointer, keyword=keyword) from None
                if keyword == "format" and value not in FORMATS:
                    self._ignore(_FORMAT + value, pointer)
            elif not (keyword in ANNOTATIONS or keyword == "$defs" or _is_plain_reference(raw, scope.draft)):
                self._ignore(keyword, pointer)
        return scope

    def _ignore(self, what: str, pointer: str) -> None:
        self._ignored[what] += 1
        self._ignored_at.setdefault(what, pointer)

    def _warn(self, what: str, count: int) -> str:
        place = f"at {self._ignored_at[what] or 'the root'}" + (f" and {count - 1} more" if count > 1 else "")
        if what.startswith(_FORMAT):
            return f"{what.removeprefix(_FORMAT)!r} ({place}) is not a format of JSON Schema; it is ignored"
        if what in KEYWORDS:
            return f"{what!r} ({place}) is not a keyword of the draft that the schema names; it is ignored"
        meant = nearest(what)
        guess = f"; did you mean {meant!r}?" if meant else ""
        return f"{what!r} ({place}) is not a keyword; it is ignored{guess}"


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


def _draft(address: object, pointer: str) -> Draft:
    """The draft that `$schema` names."""
    if not isinstance(address, str):
        raise Invalid("must be a string", pointer=pointer, keyword="$schema")
    draft = DIALECTS.get(address.partition("://")[2].removesuffix("#"))
    if draft is None:
        raise Unsupported(
            f"{address!r} is not a dialect that is understood",
            pointer=pointer,
            keyword="$schema",
            hint="use draft 4, 6, 7, 2019-09 or 2020-12",
        )
    return draft


def _check_values(contents: object) -> None:
    """Refuse what is not JSON, what contains itself and what is too deep or too large."""
    finished: set[int] = set()
    open_containers: set[int] = set()
    waiting: list[tuple[Any, int, bool]] = [(contents, 0, False)]
    count = 0
    while waiting:
        value, depth, leaving = waiting.pop()
        if leaving:
            open_containers.discard(id(value))
            finished.add(id(value))
            continue
        count += 1
        if count > VALUE_BUDGET:
            raise TooLarge(f"the schema has more than {VALUE_BUDGET:,} values", pointer="")
        if isinstance(value, dict | list):
            if id(value) in open_containers:
                raise Invalid("the schema contains itself", pointer="", hint="use $ref")
            if id(value) in finished:
                continue
            if depth > DEPTH_BUDGET:
                raise TooLarge(f"the schema nests more than {DEPTH_BUDGET} levels deep", pointer="")
            open_containers.add(id(value))
            waiting.append((value, depth, True))
            if isinstance(value, dict):
                if not all(isinstance(key, str) for key in value):
                    raise Invalid("the keys of a schema are strings", pointer="")
                waiting.extend((each, depth + 1, False) for each in value.values())
            else:
                waiting.extend((each, depth + 1, False) for each in value)
        elif not (value is None or isinstance(value, bool | int | float | str)):
            raise Invalid(f"a {type(value).__name__} is not a JSON value", pointer="")
