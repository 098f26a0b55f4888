"""JSON Schema -> grammar: every value and every key calls a rule, one for each typed piece.

A schema is read as JSON (`schema_contents.py`), then as schemas that refer to each other
(`schema_document.py`), then as what these say about each type of value (`schema_logic.py`).
`json_lowering.py` makes rules of that, in which keys come in the order of `properties`.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from itertools import islice
from typing import Any, Final, Literal

from sortition.grammars.cache import Cache, content_digest
from sortition.grammars.errors import Invalid, TooLarge
from sortition.grammars.expr import concat
from sortition.grammars.grammar import Grammar, Place
from sortition.grammars.json_lowering import Lowering
from sortition.grammars.json_whitespace import Policy
from sortition.grammars.nfa import ROOT
from sortition.grammars.schema_assertions import terms
from sortition.grammars.schema_contents import checked_keys, contents_of
from sortition.grammars.schema_cures import cures
from sortition.grammars.schema_document import Document
from sortition.grammars.schema_keywords import ignored
from sortition.grammars.schema_logic import Logic
from sortition.grammars.schema_origin import Origin, too_large_at
from sortition.grammars.work import meter, metered

LOWERED_CACHE: Final = 20_000
"""Rules of the schemas that are kept lowered: a rule takes 1 to 5 KB, a typical schema has 20."""

LOWERED: Final = Cache[Grammar](LOWERED_CACHE, lambda grammar: len(grammar.rules))

SHOWN: Final = 60
"""Characters of a schema that stand for it in the `repr` of its grammar."""

_TOO_DEEP: Final = "the schema nests too deep"


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
    with metered(), too_large_at(Origin("", None)):
        policy = Policy(whitespace)
        try:
            contents = contents_of(schema)
        except RecursionError:
            raise TooLarge(_TOO_DEEP, pointer="") from None
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
    """The grammar of a document; errors of size come with a cure, if there is one."""
    lowering = Lowering(Logic(document, assert_formats), policy, any_order)
    origins = lowering.rules.origins
    origins[ROOT] = Origin.of(terms(document.root))
    try:
        with too_large_at(origins[ROOT]):
            root, rules = lowering.lower(terms(document.root))
    except RecursionError:
        raise TooLarge(_TOO_DEEP, pointer="") from None
    except TooLarge as error:
        cured = cures(document, origins.values(), any_order)
        hint = error.hint or cured.get(Origin(error.pointer or "", error.keyword))
        raise TooLarge(error.reason, pointer=error.pointer, keyword=error.keyword, hint=hint) from None
    cured = cures(document, origins.values(), any_order)
    return Grammar(
        root=concat(policy.around, root, policy.around),
        rules=rules,
        warnings=document.warnings,
        origins={name: Place(each.pointer, each.keyword, cured.get(each)) for name, each in origins.items()},
        content=content,
        steps=meter().steps,
        budget=meter().budget,
    )


def _source(schema: Any) -> str:
    """What was given, in short."""
    text = getattr(schema, "__name__", None) or (schema if isinstance(schema, str) else _beginning(schema))
    return f"json_schema({text if len(text) <= SHOWN else text[: SHOWN - 3] + '...'})"


def _beginning(contents: Any) -> str:
    """The text of a schema, or of a long one more than is shown: it is written piece by piece."""
    return "".join(islice(json.JSONEncoder().iterencode(contents), SHOWN + 1))
