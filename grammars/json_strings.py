"""Sets of strings -> their JSON spellings, quotes included.

What is free may be spelled in any way that JSON allows; what the schema spells out (keys, `enum`, `const`) is
written as `json.dumps` writes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, reduce
from typing import Final, TypeAlias

from sortition.grammars.automaton import Automaton
from sortition.grammars.characters import ANY_CHARACTER, difference
from sortition.grammars.errors import GrammarError, TooLarge, Unsupported
from sortition.grammars.expr import (
    EMPTY,
    NOTHING,
    Expr,
    Graph,
    Ranges,
    alternative,
    concat,
    literal,
    merge,
    one_of,
    repeat,
    star,
)
from sortition.grammars.formats import NOT_ENFORCED, format_automaton, others_automaton
from sortition.grammars.json_characters import PLAIN, QUOTE, SPECIAL, Characters, Spelling
from sortition.grammars.json_lengths import Lengths
from sortition.grammars.regex import parse
from sortition.grammars.schema_facts import Source, Strings
from sortition.grammars.schema_keywords import leave
from sortition.grammars.work import charge, kept

CACHED_SETS: Final = 512
"""String sets, patterns and key sets that are kept; one takes 20 KiB in the mean."""

CHARACTER_STEPS: Final = 12
"""Steps that each character of a word takes."""

_Named: TypeAlias = tuple[tuple[str, bool], ...]


def string(strings: Strings, called: bool) -> Spelling:
    """The spellings of the strings of a set; `called` as in `Characters`.

    Raises:
        Invalid, Unsupported: a pattern that is none or uses what is not regular.
        TooLarge: too many states.
    """
    patterns, formats = _checked(strings)
    with _placed(strings):
        return _string(replace(strings, patterns=(), formats=()), patterns, formats, called)


def exists(strings: Strings) -> bool:
    """Whether there is such a string."""
    if strings.values is not None:
        return bool(_kept(strings, *_checked(strings)))
    if not _has_conditions(strings):
        return True
    lengths = counts(strings)
    return not (language(strings) if lengths is None else lengths).is_empty


def positions(strings: Strings) -> int:
    """How many places in a string have to be told apart."""
    if strings.values is not None:
        return 0
    lengths = counts(strings)
    if lengths is not None:
        return len(lengths.automaton)
    if _has_conditions(strings):
        return len(language(strings))
    return strings.low if strings.high is None else strings.high


def counts(strings: Strings) -> Lengths | None:
    """The strings of a set as an automaton that counts, None if it should not or cannot."""
    patterns, formats = _checked(strings)
    with _placed(strings):
        return (
            None
            if strings.values is not None
            else _counts(patterns, formats, strings.excluded, strings.low, strings.high)
        )


def language(strings: Strings) -> Automaton:
    """The decoded strings of a set, as an automaton over code points."""
    patterns, formats = _checked(strings)
    with _placed(strings):
        automaton = _language(patterns, formats, strings.excluded, strings.low, strings.high)
    return automaton if strings.values is None else automaton.intersect(_finite(strings.values))


def languages_of_any(sets: Iterable[Strings]) -> Iterator[tuple[int, int | None, Automaton]]:
    """The decoded strings of any of the sets, by lengths that are to be counted."""
    by_lengths: dict[tuple[int, int | None], list[Automaton]] = {}
    for strings in sets:
        lengths = counts(strings)
        if lengths is None:
            by_lengths.setdefault((0, None), []).append(language(strings))
        else:
            by_lengths.setdefault((strings.low, strings.high), []).append(lengths.automaton)
    for (low, high), automata in by_lengths.items():
        automaton = reduce(Automaton.union, automata)
        if (low, high) == (0, None) or Lengths.of(automaton, low, high) is not None:
            yield low, high, automaton
        else:
            yield 0, None, _of_lengths(automaton, low, high)


def matches(source: Source, text: str) -> bool:
    """Whether a pattern is found in a text."""
    return pattern(source).accepts(map(ord, text))


def pattern(source: Source) -> Automaton:
    """The strings in which a pattern is found; an error says where the pattern stands."""
    try:
        return _pattern(source.text)
    except GrammarError as error:
        hint = error.hint
        if hint is None and isinstance(error, Unsupported) and source.keyword == "pattern":
            hint = leave("pattern")
        raise source.schema.error(type(error), source.keyword, error.reason, hint) from None


@kept(CACHED_SETS)
def word(text: str, called: bool) -> Spelling:
    """One string, in canonical spelling."""
    characters = Characters(True, called)
    return characters.quoted(characters.text(text))


def words(texts: Iterable[str], called: bool) -> Spelling:
    """Any of these strings, in canonical spelling: a tree that shares what they begin with."""
    texts = [text for text in texts if not _has_surrogates(text)]
    if not texts:
        return Spelling(NOTHING, {})
    characters = Characters(True, called)
    tree = _tree(texts)
    end = len(tree)
    edges: list[tuple[int, Expr, int]] = []
    for node, (children, is_word) in enumerate(tree):
        edges.extend((node, characters.text(character), child) for character, child in children.items())
        if is_word:
            edges.append((node, EMPTY, end))
    return characters.quoted(Graph(tuple(edges), 0, frozenset({end})))


@kept(CACHED_SETS)
def other_words(texts: frozenset[str], called: bool) -> Spelling:
    """Every string but these, in canonical spelling.

    Where a text leaves the tree of the words it may go on freely: all such ways share the nodes `free` and
    `special`, which stands before a character that is not written as itself.
    """
    characters = Characters(True, called)
    tree = _tree(sorted(texts))
    free, special = len(tree), len(tree) + 1
    finals = {free}
    edges: list[tuple[int, Expr, int]] = [
        (free, one_of(PLAIN), free),
        (free, EMPTY, special),
        (special, characters.any_of(SPECIAL), free),
    ]
    for node, (children, is_word) in enumerate(tree):
        if not is_word:
            finals.add(node)
        edges.extend((node, characters.text(character), child) for character, child in children.items())
        plain, others = _others(frozenset(children))
        edges.append((node, plain, free))
        if others == SPECIAL:
            edges.append((node, EMPTY, special))
        else:
            edges.append((node, characters.any_of(others), free))
    return characters.quoted(Graph(tuple(edges), 0, frozenset(finals)))


@lru_cache(maxsize=CACHED_SETS)
def _others(characters: frozenset[str]) -> tuple[Expr, Ranges]:
    """All characters but these: the plain ones, and the set of the special ones."""
    here = merge((ord(character), ord(character)) for character in characters)
    return one_of(difference(PLAIN, here)), difference(SPECIAL, here)


def of_language(automaton: Automaton, canonical: bool, called: bool) -> Spelling:
    """The strings whose decoded value an automaton over code points accepts."""
    if automaton.is_empty:
        return Spelling(NOTHING, {})
    characters = Characters(canonical, called)
    return characters.quoted(automaton.expr(characters.any_of))


def of_lengths(automaton: Automaton, low: int, high: int | None, called: bool) -> Spelling:
    """As `of_language`, for strings that have from `low` to `high` characters, which are counted."""
    lengths = Lengths.of(automaton, low, high)
    return of_language(automaton, False, called) if lengths is None else _counted(lengths, called)


def finite(texts: Iterable[str]) -> Automaton:
    """The automaton of these strings."""
    # In order: what is kept, and so charged for once, is known by its texts.
    return _finite(tuple(sorted(texts)))


@kept(CACHED_SETS)
def _string(strings: Strings, patterns: _Named, formats: _Named, called: bool) -> Spelling:
    if strings.values is not None:
        return words(_kept(strings, patterns, formats), called)
    lengths = _counts(patterns, formats, strings.excluded, strings.low, strings.high)
    if lengths is not None:
        return _counted(lengths, called)
    if patterns or formats or strings.excluded:
        automaton = _language(patterns, formats, strings.excluded, strings.low, strings.high)
        return of_language(automaton, False, called)
    characters = Characters(False, called)
    return characters.quoted(repeat(characters.any_of(ANY_CHARACTER), strings.low, strings.high))


def _counted(lengths: Lengths, called: bool) -> Spelling:
    if lengths.is_empty:
        return Spelling(NOTHING, {})
    characters = Characters(False, called)
    return Spelling(concat(QUOTE, lengths.expr(characters.any_of, QUOTE)), characters.rules)


def _has_conditions(strings: Strings) -> bool:
    return bool(strings.patterns or strings.formats or strings.excluded)


def _kept(strings: Strings, patterns: _Named, formats: _Named) -> list[str]:
    """The values of an enumerated set that fulfil everything else."""
    values = strings.values or ()
    charge(CHARACTER_STEPS * sum(map(len, values)) * (len(patterns) + len(formats)))
    return [
        value
        for value in values
        if strings.low <= len(value)
        and (strings.high is None or len(value) <= strings.high)
        and value not in strings.excluded
        and all(_pattern(text).accepts(map(ord, value)) == wanted for text, wanted in patterns)
        and all(_format(text, wanted).accepts(map(ord, value)) for text, wanted in formats)
    ]


@kept(CACHED_SETS)
def _language(
    patterns: _Named, formats: _Named, excluded: frozenset[str], low: int, high: int | None
) -> Automaton:
    return _of_lengths(_conditions(patterns, formats, excluded), low, high)


@kept(CACHED_SETS)
def _counts(
    patterns: _Named, formats: _Named, excluded: frozenset[str], low: int, high: int | None
) -> Lengths | None:
    return Lengths.of(_conditions(patterns, formats, excluded), low, high)


@kept(CACHED_SETS)
def _conditions(patterns: _Named, formats: _Named, excluded: frozenset[str]) -> Automaton:
    """The strings that fulfil all patterns and formats."""
    unwanted = [_pattern(text) for text, wanted in patterns if not wanted]
    # What narrows most comes first.
    parts = [_pattern(text) for text, wanted in patterns if wanted]
    parts += [_format(text, wanted) for text, wanted in formats]
    automaton, *others = sorted(parts, key=len) or [any_string()]
    for each in others:
        automaton = automaton.intersect(each)
    for each in sorted(unwanted, key=len):
        automaton = automaton.difference(each)
    return automaton.difference(_finite(tuple(sorted(excluded)))) if excluded else automaton


def _of_lengths(automaton: Automaton, low: int, high: int | None) -> Automaton:
    """The strings of a language that have between `low` and `high` characters."""
    shortest, longest = _lengths(automaton)
    if shortest >= low and (high is None or (longest is not None and longest <= high)):
        return automaton
    return automaton.intersect(Automaton.of(repeat(one_of(ANY_CHARACTER), low, high)))


def _lengths(automaton: Automaton) -> tuple[int, int | None]:
    """The lengths of the shortest and the longest word, None if there is no longest."""
    followers = [{target for target in row if target >= 0} for row in automaton.move.tolist()]
    shortest = 0
    level = {0}
    while level and not any(automaton.accepting[state] for state in level):
        level = set().union(*(followers[state] for state in level))
        shortest += 1
    # Every state leads on to an accepting one, so any cycle makes words without end.
    entries = Counter(target for targets in followers for target in targets)
    longest = dict.fromkeys(range(len(followers)), 0)
    ordered = [] if entries[0] else [0]
    for state in ordered:
        for target in followers[state]:
            longest[target] = max(longest[target], longest[state] + 1)
            entries[target] -= 1
            if not entries[target]:
                ordered.append(target)
    return shortest, max(longest.values()) if len(ordered) == len(followers) else None


@kept(CACHED_SETS)
def _pattern(text: str) -> Automaton:
    return any_string().intersect(Automaton.of(parse(text, "ecma")))


def _format(name: str, wanted: bool) -> Automaton:
    if name in NOT_ENFORCED:
        raise Unsupported(f"the format {name!r} is not enforced", hint='formats="annotate" ignores formats')
    if wanted:
        return format_automaton(name)
    others = others_automaton(name)
    if others is None:
        raise Unsupported(f"the strings that are not of format {name!r} cannot be told exactly")
    return others


@kept(1)
def any_string() -> Automaton:
    return Automaton.of(star(one_of(ANY_CHARACTER)))


@kept(CACHED_SETS)
def _finite(texts: tuple[str, ...]) -> Automaton:
    return Automaton.of(alternative(*(literal(tuple(map(ord, text))) for text in texts)))


def _tree(texts: list[str]) -> list[tuple[dict[str, int], bool]]:
    """The tree of all prefixes: for each node its children by character, and whether a text ends there."""
    charge(CHARACTER_STEPS * sum(map(len, texts)))
    children: list[dict[str, int]] = [{}]
    ends = set()
    for text in texts:
        node = 0
        for character in text:
            if character not in children[node]:
                children[node][character] = len(children)
                children.append({})
            node = children[node][character]
        ends.add(node)
    return [(below, node in ends) for node, below in enumerate(children)]


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _checked(strings: Strings) -> tuple[_Named, _Named]:
    """The patterns and formats without their places, after a check in which errors still have a place."""
    for source in strings.patterns:
        pattern(source)
    for source in strings.formats:
        try:
            _format(source.text, source.wanted)
        except GrammarError as error:
            raise source.schema.error(type(error), "format", error.reason, error.hint) from None
    return (
        tuple((source.text, source.wanted) for source in strings.patterns),
        tuple((source.text, source.wanted) for source in strings.formats),
    )


@contextmanager
def _placed(strings: Strings) -> Iterator[None]:
    """What becomes too large is said to be so where the first pattern or format stands."""
    try:
        yield
    except TooLarge as error:
        for source in strings.patterns or strings.formats:
            raise source.schema.error(TooLarge, source.keyword, error.reason) from None
        raise
