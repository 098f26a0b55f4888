"""Grammar: a language as a value, to combine with `|`, `+`, `&` and `~` and to compile for a vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from sortition.grammars.automaton import BYTES, Automaton
from sortition.grammars.cache import Cache
from sortition.grammars.characters import ANY_CHARACTER, utf8
from sortition.grammars.errors import GrammarError, TooLarge, Unsatisfiable, Unsupported
from sortition.grammars.expr import Expr, alternative, concat, rename_calls, star
from sortition.grammars.machine import Machine
from sortition.grammars.nfa import ROOT
from sortition.grammars.oracle import Walk
from sortition.grammars.table import Table
from sortition.grammars.tabulation import build_table
from sortition.grammars.vocabulary import Vocabulary
from sortition.grammars.work import BUDGET, Meter, metered

TABLE_CACHE: Final = 1 << 27
"""Bytes of the tables kept for grammars of the same content: 128 MiB, some 300 tables of typical schemas."""

TABLES: Final = Cache[Table](TABLE_CACHE, lambda table: table.nbytes)
"""Tables by the content of their grammar and vocabulary."""


class Place(NamedTuple):
    """Where in a schema a rule comes from, for errors.

    Attributes:
        pointer: a JSON pointer.
        keyword: the one that is most to blame there, if any.
        cure: what is known to help if the rule is too large, or None.
    """

    pointer: str
    keyword: str | None
    cure: str | None


@dataclass(frozen=True, eq=False)
class Grammar:
    """A language of byte strings: a root expression and the rules that it calls.

    Attributes:
        root: the language, as an expression over bytes.
        rules: the expressions of the rules that are called, by name.
        source: what the grammar was made from, shortened, for `repr`.
        warnings: what the user should know, such as unknown keywords that were ignored.
        origins: where in a schema each rule and the root come from.
        content: stands for all that the language was made from, so that its tables can be shared; None if
            they are not.
        steps: that it has taken to make so far, as `work` counts them.
        budget: of steps, up to its machine.
    """

    root: Expr
    rules: Mapping[str, Expr] = field(default_factory=dict)
    source: str = ""
    warnings: tuple[str, ...] = ()
    origins: Mapping[str, Place] = field(default_factory=dict)
    content: bytes | None = None
    steps: int = 0
    budget: int = BUDGET

    def __repr__(self) -> str:
        return f"Grammar({self.source})"

    @cached_property
    def machine(self) -> Machine:
        """The deterministic machine, built at first use.

        Raises:
            Unsatisfiable: the language is empty.
            Unsupported: the text does not show where a nested part begins or ends.
            TooLarge: it takes too much work.
        """
        try:
            with metered(self.steps, self.budget):
                return Machine.of(self.rules, self.root)
        except TooLarge as error:
            raise self._placed(error, error.rules) from None
        except Unsatisfiable as error:
            raise self._placed(error, (*error.rules, ROOT)) from None

    def _placed(self, error: TooLarge | Unsatisfiable, rules: Iterable[str]) -> GrammarError:
        """The error at the place of the first of these rules that has one."""
        place = next((self.origins[rule] for rule in rules if rule in self.origins), None)
        if place is None:
            return type(error)(error.reason, hint=error.hint)
        hint = error.hint or (place.cure if isinstance(error, TooLarge) else None)
        return type(error)(error.reason, pointer=place.pointer, keyword=place.keyword, hint=hint)

    def compile(self, vocabulary: Vocabulary) -> Table:
        """The token table of this grammar for one vocabulary, shared with grammars of the same content.

        Raises:
            GrammarError: as `machine`, and Unsatisfiable where the vocabulary cannot spell the language.
            TypeError: something else than a vocabulary.
        """
        if not isinstance(vocabulary, Vocabulary):
            raise TypeError(f"a grammar is compiled for a Vocabulary, not for a {type(vocabulary).__name__}")
        if self.content is None:
            return build_table(self.machine, vocabulary)
        return TABLES.find((self.content, vocabulary.digest), lambda: build_table(self.machine, vocabulary))

    def accepts(self, text: str | bytes) -> bool:
        """Whether this whole text is in the language, decided byte by byte."""
        walk = Walk(self.machine)
        # Lone surrogates become bytes that are not UTF-8.
        data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
        return all(walk.advance(byte) for byte in data) and walk.can_end

    def __or__(self, other: Grammar) -> Grammar:
        """The texts of either language."""
        return self._join(other, "|", alternative)

    def __add__(self, other: Grammar) -> Grammar:
        """A text of this language followed by a text of the other."""
        return self._join(other, "+", concat)

    def __and__(self, other: Grammar) -> Grammar:
        """The texts in both languages, which must not nest."""
        with metered(self.steps + other.steps) as meter:
            both = self._automaton("&").intersect(other._automaton("&"))
            return _from_automaton(both, f"{self.source} & {other.source}", meter)

    def __invert__(self) -> Grammar:
        """Every other text of valid UTF-8; the language must not nest."""
        with metered(self.steps) as meter:
            others = _any_text().difference(self._automaton("~"))
            return _from_automaton(others, f"~({self.source})", meter)

    def _join(self, other: Grammar, sign: str, combine: Callable[..., Expr]) -> Grammar:
        if not isinstance(other, Grammar):
            raise TypeError(f"a grammar combines with another grammar, not with {type(other).__name__}")
        names: dict[str, str] = {}
        for name, expr in other.rules.items():
            if self.rules.get(name, expr) is not expr:
                names[name] = name
                while names[name] in self.rules or names[name] in other.rules:
                    names[name] += "'"
        done: dict[int, Expr] = {}
        theirs = {
            names.get(name, name): rename_calls(expr, names, done) for name, expr in other.rules.items()
        }
        return Grammar(
            combine(self.root, rename_calls(other.root, names, done)),
            {**theirs, **self.rules},
            f"{self.source} {sign} {other.source}",
            self.warnings + other.warnings,
            {**{names.get(name, name): origin for name, origin in other.origins.items()}, **self.origins},
            steps=self.steps + other.steps,
            budget=max(self.budget, other.budget),
        )

    def _automaton(self, sign: str) -> Automaton:
        if self.rules:
            raise Unsupported(
                f"{sign!r} works on grammars that do not nest, such as regexes",
                hint="combine schemas with anyOf or allOf inside the schema",
            )
        return Automaton.of(self.root, BYTES)


def _from_automaton(automaton: Automaton, source: str, meter: Meter) -> Grammar:
    if automaton.is_empty:
        raise Unsatisfiable(f"no text satisfies {source}")
    return Grammar(automaton.expr(), {}, source, steps=meter.steps)


def _any_text() -> Automaton:
    return Automaton.of(star(utf8(ANY_CHARACTER)), BYTES)
