"""Lookaround: what must or must not follow or precede a place, followed by automata that read along.

What is looked for ahead becomes an automaton over the rest of the text that starts at the place and must
accept at the end; what is looked for behind is one over the text so far, which reads from the beginning. A
negated condition is the complement. So the language stays regular, and exact. Where a condition inside asks
for what is at the other side of the place, as a word boundary may, there is an automaton for each answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from sortition.grammars.automaton import Automaton
from sortition.grammars.characters import ANY_CHARACTER
from sortition.grammars.expr import Call, Expr, Ranges


@dataclass(frozen=True, slots=True)
class Side:
    """What may stand at one side of a place.

    Attributes:
        characters: these characters.
        edge: or the edge of the text.
        last_newline: or a newline that ends the text (only after a place).
    """

    characters: Ranges
    edge: bool = False
    last_newline: bool = False


Variants: TypeAlias = list[tuple[Side, Automaton]]
"""Automata of a look, by what stands at the other side of the place: every thing is in one of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Look(Call):
    """The empty word, where a word of the body does, or negated does not, begin (or end: not `ahead`)."""

    body: Expr
    ahead: bool
    negated: bool


@dataclass(frozen=True, slots=True)
class Watch:
    """What is to be remembered between two characters.

    Attributes:
        ahead: the automata that must accept the rest of the text, each with its state.
        behind: the states of those that read from the beginning, -1 where nothing can be accepted any more.
    """

    ahead: frozenset[tuple[int, int]]
    behind: tuple[int, ...]


class Lookaround:
    """The automata of the lookaround in one pattern.

    Args:
        looks: by rule.
        variants: makes the automata of a look: the texts that may follow, by what stands before the place, or
            the texts that may precede, by what stands after it.

    Attributes:
        ahead: the numbers of automata, with their sides, of each rule that looks ahead.
        behind: likewise of each that looks behind.
    """

    def __init__(self, looks: Mapping[str, Look], variants: Callable[[Look], Variants]) -> None:
        self.ahead: dict[str, list[tuple[Side, int]]] = {}
        self.behind: dict[str, list[tuple[Side, int]]] = {}
        self._automata: list[Automaton] = []
        for rule, look in looks.items():
            if look.ahead:
                self.ahead[rule] = self._numbered(variants(look))
        self._first_behind = len(self._automata)
        for rule, look in looks.items():
            if not look.ahead:
                self.behind[rule] = self._numbered(variants(look))
        self._satisfied = [_accepting_for_ever(each) for each in self._automata]
        behind = self._automata[self._first_behind :]
        self.start = Watch(frozenset(), tuple(-1 if each.is_empty else 0 for each in behind))

    def _numbered(self, variants: Variants) -> list[tuple[Side, int]]:
        first = len(self._automata)
        self._automata += [automaton for _, automaton in variants]
        return [(side, number) for number, (side, _) in enumerate(variants, first)]

    def sets(self) -> Iterator[Ranges]:
        """Sets of characters: all characters that are in the same of them are treated in the same way."""
        for automaton in self._automata:
            yield from (ranges for _, ranges, _ in automaton.edges())
        for variants in (*self.ahead.values(), *self.behind.values()):
            yield from (side.characters for side, _ in variants)

    def passing(self, number: int, watch: Watch) -> Watch | None:
        """What is remembered after a look ahead by this automaton, None if it fails."""
        if self._automata[number].is_empty:
            return None
        if self._satisfied[number] == 0:
            return watch
        return Watch(watch.ahead | {(number, 0)}, watch.behind)

    def has_passed(self, number: int, watch: Watch) -> bool:
        """Whether the text so far is what this automaton looks for behind."""
        state = watch.behind[number - self._first_behind]
        return state >= 0 and bool(self._automata[number].accepting[state])

    def read(self, watch: Watch, character: int) -> Watch | None:
        """What is remembered after a character, None if what must follow cannot follow any more."""
        ahead = set()
        for number, state in watch.ahead:
            target = self._move(number, state, character)
            if target < 0:
                return None
            if target != self._satisfied[number]:
                ahead.add((number, target))
        behind = enumerate(watch.behind, self._first_behind)
        return Watch(
            frozenset(ahead), tuple(self._move(number, state, character) for number, state in behind)
        )

    def may_end(self, watch: Watch) -> bool:
        """Whether the text may end here."""
        return all(self._automata[number].accepting[state] for number, state in watch.ahead)

    def _move(self, number: int, state: int, character: int) -> int:
        automaton = self._automata[number]
        return state if state < 0 else int(automaton.move[state, automaton.class_of(character)])


def _accepting_for_ever(automaton: Automaton) -> int:
    """The state from which every text is accepted, -1 if there is none."""
    loops = (s for s, ranges, target in automaton.edges() if s == target and ranges == ANY_CHARACTER)
    return next((state for state in loops if automaton.accepting[state]), -1)
