"""A vLLM request's extra arguments -> which grammar and which draw it asks for, or why it is refused.

This runs in the API server for every request, before it is admitted, so it imports neither torch nor vLLM,
and what it costs is bounded: by `LARGEST`, `DEEPEST` and the steps that a grammar may take (see `work.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final, TypeVar

from sortition.grammars.choice import choice
from sortition.grammars.errors import GrammarError
from sortition.grammars.grammar import Grammar
from sortition.grammars.json_schema import json_schema
from sortition.grammars.regex import regex
from sortition.grammars.schema_keywords import ignored
from sortition.integrations.request import FIELD
from sortition.sampling.parameters import Parameters

GRAMMARS: Final = ("json_schema", "regex", "choice")
ANY_ORDER: Final = "any_order"
TEXTS: Final = ("whitespace", "formats")
IGNORE: Final = "ignore"
OPTIONS: Final = (ANY_ORDER, *TEXTS, IGNORE)
"""Fields that say how a JSON Schema is meant, by the names that `json_schema` has for them."""
DRAW: Final = "draw"
"""The field that asks for our draw and for nothing else of it."""

SAMPLER: Final = Parameters.names()
FIELDS: Final = (*GRAMMARS, *OPTIONS, DRAW, *SAMPLER)
NOT_BUILT: Final = ("grammar", "after", "xtc", "dry", "mirostat")
"""Fields that users of other engines may know, and that this version does not have."""

LARGEST: Final = 1 << 20
"""Bytes of JSON that a request may bring; the largest schema of 8,000 real ones has 0.6 MB."""

DEEPEST: Final = 128
"""Nested objects and arrays; real schemas stay below 60."""

LONGEST: Final = 2_000
"""Characters of a refusal: it repeats what was sent."""

LONGEST_ID: Final = 19
"""Digits of a token id; longer texts are none."""

MOST_TOKENS: Final = 4096
"""Token ids that one field of the sampler may name: each of them is looked at in every step."""

GREATEST: Final = 2**31 - 1
"""Whole number in a field of the sampler; no vocabulary and no text is as long."""

CHECKED: Final = 128
"""Verdicts that are kept; with each, up to `LARGEST` bytes of what it is about."""

Named = TypeVar("Named", bound=Sized)


class RequestError(ValueError):
    """A request that is refused before it is admitted."""

    def __init__(self, reason: str) -> None:
        shown = reason if len(reason) <= LONGEST else reason[:LONGEST] + "…"
        super().__init__(f"{FIELD}: {shown}")


@dataclass(frozen=True, slots=True)
class Request:
    """A grammar as a request spells it: a value, equal to every other of the same content.

    Attributes:
        kind: one of `GRAMMARS`.
        source: the grammar, as JSON text. The order of keys counts.
        options: those of `OPTIONS` that are given, false and empty ones aside.
    """

    kind: str
    source: str
    options: tuple[tuple[str, str | bool | tuple[str, ...]], ...] = ()

    def __repr__(self) -> str:
        shown = self.source if len(self.source) <= 200 else self.source[:200] + "…"
        return f"{self.kind} {shown}"

    def grammar(self) -> Grammar:
        """The grammar, not yet compiled.

        Raises:
            GrammarError: it cannot be enforced.
        """
        value = json.loads(self.source)
        if self.kind == "regex":
            return regex(value)
        if self.kind == "choice":
            return choice(value)
        options: dict[str, Any] = dict(self.options)
        return json_schema(value, **options)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks of us: a grammar, a draw or both.

    Attributes:
        grammar: None without one.
        draw: the parameters that it gives, by their names in `Parameters`; None where vLLM draws.
    """

    grammar: Request | None = None
    draw: Mapping[str, Any] | None = None


def read(extra_args: Mapping[str, Any] | None) -> Asked | None:
    """What a request asks for, None where it does not ask for us.

    Raises:
        RequestError: it asks for something that is not there, or in a way that is not understood.
    """
    if not extra_args:
        return None
    if FIELD not in extra_args:
        for name in get_close_matches(FIELD, map(str, extra_args), n=1, cutoff=0.8):
            raise RequestError(f"unknown field {name!r} in the extra arguments; did you mean {FIELD!r}?")
        return None
    return _asked(_mapping(extra_args[FIELD]))


def check(extra_args: Mapping[str, Any] | None) -> Asked | None:
    """`read`, and refuse what no grammar comes from.

    Raises:
        RequestError: with a message for the user.
    """
    asked = read(extra_args)
    refusal = None if asked is None or asked.grammar is None else _verdict(asked.grammar)
    if refusal is not None:
        raise refusal.with_traceback(None)
    return asked


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        value = _parsed(value, "the field")
    if not isinstance(value, Mapping):
        raise RequestError(f"a mapping of fields or its JSON text is needed, not {_kind(value)}")
    return value


def _asked(fields: Mapping[str, Any]) -> Asked:
    for name in fields:
        if name not in FIELDS:
            raise RequestError(_unknown(str(name)))
    asked = Asked(_grammar(fields), _draw(fields))
    if asked.grammar is None and asked.draw is None:
        raise RequestError(
            f"one of {', '.join(GRAMMARS)} is needed, not none of them, or {DRAW!r} or a field of the sampler"
        )
    return asked


def _grammar(fields: Mapping[str, Any]) -> Request | None:
    given = [name for name in GRAMMARS if fields.get(name) is not None]
    if len(given) > 1:
        raise RequestError(f"one of {', '.join(GRAMMARS)} is possible, not {' and '.join(given)}")
    options: dict[str, Any] = {name: fields[name] for name in TEXTS if fields.get(name) is not None}
    if _flag(fields, ANY_ORDER):
        options[ANY_ORDER] = True
    if unwanted := _ignored(fields):
        options[IGNORE] = unwanted
    if not given:
        for name in options:
            raise RequestError(f"{name!r} is a choice for 'json_schema', which is not there")
        return None
    kind = given[0]
    value = fields[kind]
    if kind == "json_schema" and isinstance(value, str):
        value = _parsed(value, "'json_schema'")
    if kind == "json_schema" and not isinstance(value, Mapping | bool):
        raise RequestError(f"'json_schema' is an object, true, false or JSON text, not {_kind(value)}")
    if kind == "regex" and not isinstance(value, str):
        raise RequestError(f"'regex' is a text, not {_kind(value)}")
    if kind == "choice" and not (
        isinstance(value, list | tuple) and value and all(isinstance(option, str) for option in value)
    ):
        raise RequestError("'choice' is a list of one or more texts")
    for name, option in options.items():
        if name in TEXTS and not isinstance(option, str):
            raise RequestError(f"{name!r} is a text, not {_kind(option)}")
        if kind != "json_schema":
            raise RequestError(f"{name!r} is a choice for 'json_schema', not for {kind!r}")
    return Request(kind, _spelled(value), tuple(options.items()))


def _ignored(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The keywords that are not to be enforced."""
    value = fields.get(IGNORE)
    try:
        return () if value is None else ignored(value)
    except GrammarError as error:
        raise RequestError(str(error)) from None


def _draw(fields: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The parameters that are given, within their bounds."""
    given = {name: fields[name] for name in SAMPLER if fields.get(name) is not None}
    ours = _flag(fields, DRAW)
    if not given:
        return {} if ours else None
    if fields.get(DRAW) is not None and not ours:
        raise RequestError(f"{DRAW!r} is false, and {next(iter(given))!r} is a field of our draw")
    given = {
        name: _READERS[name](name, value) if name in _READERS else value for name, value in given.items()
    }
    for name, value in given.items():
        if isinstance(value, int) and abs(value) > GREATEST:
            raise RequestError(f"{name!r} is a number up to {GREATEST:,}")
    try:
        Parameters(**given)
    except ValueError as error:
        raise RequestError(str(error)) from None
    return given


def _token(name: str, value: Any) -> int:
    # JSON spells the keys of an object as texts.
    spelled = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= LONGEST_ID
    token = int(value) if spelled else value
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= GREATEST:
        raise RequestError(f"{name!r} names tokens by their ids, not by {value!r:.40}")
    return token


def _tokens(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        raise RequestError(f"{name!r} is a list of token ids, not {_kind(value)}")
    return _limited(name, tuple(_token(name, token) for token in value))


def _phrases(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(phrase, list | tuple) for phrase in value):
        raise RequestError(f"{name!r} is a list of phrases, each a list of token ids")
    _limited(name, value)
    _limited(name, [token for phrase in value for token in phrase])
    return tuple(_tokens(name, phrase) for phrase in value)


def _bias(name: str, value: Any) -> Mapping[int, float]:
    if not isinstance(value, Mapping):
        raise RequestError(f"{name!r} is an object from token ids to numbers, not {_kind(value)}")
    if any(isinstance(bias, int) and abs(bias) > GREATEST for bias in value.values()):
        raise RequestError(f"{name!r} has numbers up to {GREATEST:,}")
    found = {_token(name, token): bias for token, bias in _limited(name, value).items()}
    if len(found) < len(value):
        raise RequestError(f"{name!r} names a token twice")
    return found


def _order(name: str, value: Any) -> str | tuple[str, ...]:
    if isinstance(value, list | tuple) and all(isinstance(stage, str) for stage in value):
        return tuple(value)
    if not isinstance(value, str):
        raise RequestError(f"{name!r} is the name of an order or a list of stages, not {_kind(value)}")
    return value


_READERS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "logit_bias": _bias,
    "allowed_tokens": _tokens,
    "bad_words": _phrases,
    "order": _order,
}
"""Fields whose values are not those that JSON has."""


def _limited(name: str, values: Named) -> Named:
    if len(values) > MOST_TOKENS:
        raise RequestError(f"{name!r} names more than {MOST_TOKENS:,} tokens")
    return values


def _unknown(name: str) -> str:
    if name == "seed":
        return "'seed' is the request's own seed; set it there and not among our fields"
    if name in NOT_BUILT:
        return f"{name!r} is not built yet; this version reads {', '.join(FIELDS)}"
    near = get_close_matches(name, (*FIELDS, *NOT_BUILT, "seed"), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(FIELDS)}"
    return f"unknown field {name[:40]!r}; {hint}"


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    # Over HTTP true and false arrive as 1 and 0.
    if value not in (None, False, True):
        raise RequestError(f"{name!r} is true or false, not {value!r:.40}")
    return bool(value)


def _parsed(text: str, name: str) -> Any:
    _check_size(text)
    try:
        return json.loads(text)
    except RecursionError:
        raise RequestError(_TOO_DEEP) from None
    except ValueError as error:
        raise RequestError(f"{name} is not JSON: {error}") from None


def _spelled(value: Any) -> str:
    """The value as JSON text, within the bounds."""
    _check_depth(value)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        _check_size(text)
    except (TypeError, ValueError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"not JSON: {error}") from None
    return text


def _check_size(text: str) -> None:
    try:
        size = len(text) if len(text) > LARGEST else len(text.encode())
    except UnicodeEncodeError:
        raise RequestError("lone surrogates are not text") from None
    if size > LARGEST:
        raise RequestError(f"more than {LARGEST:,} bytes of grammar")


_TOO_DEEP: Final = f"nested more than {DEEPEST} deep"


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, Mapping | list | tuple)
            for inner in (outer.values() if isinstance(outer, Mapping) else outer)
        ]
        if not level:
            return
    raise RequestError(_TOO_DEEP)


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__


@lru_cache(maxsize=CHECKED)
def _verdict(request: Request) -> RequestError | None:
    """Why the request is refused; kept, so that whoever repeats it is not served the work again.

    The machine is made here, too, only to see that there is one: once admitted, a request without one cannot
    be answered by an error any more.
    """
    try:
        _ = request.grammar().machine
    except GrammarError as error:
        return RequestError(f"{request.kind}: {error}")
    return None
