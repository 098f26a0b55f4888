"""Many words as one expression: a prefix tree, so that a thousand choices begin with a few dozen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sortition.grammars.expr import Class, Concat, Expr, Graph, Literal, Ranges, alternative, concat, literal

FEW: Final = 8
"""Up to this many words stay a plain alternative, which is shorter and as fast."""

_Letter = int | Ranges


class _Tree(dict[_Letter, "_Tree"]):
    """What may follow one prefix, by the next letter; and whether the prefix is a word."""

    is_word = False


def any_of(branches: Iterable[Expr]) -> Expr:
    """Any one of the branches; those that are words (of literals and classes alone) share their prefixes.

    Searching for any of 1,000 words by automaton takes 6 s from a plain alternative and 0.4 s from this.
    """
    words: dict[tuple[_Letter, ...], Expr] = {}
    others: list[Expr] = []
    for branch in branches:
        letters = _letters(branch)
        if letters is None:
            others.append(branch)
        else:
            words.setdefault(letters, branch)
    if len(words) <= FEW:
        return alternative(*words.values(), *others)
    return alternative(_prefix_tree(words), *others)


def _letters(expr: Expr) -> tuple[_Letter, ...] | None:
    """The word as a sequence of units and sets of units; None for anything else."""
    if isinstance(expr, Literal):
        return tuple(expr.units)
    if isinstance(expr, Class):
        return (expr.ranges,)
    if isinstance(expr, Concat) and all(isinstance(part, Literal | Class) for part in expr.parts):
        return tuple(letter for part in expr.parts for letter in _letters(part) or ())
    return None


def _prefix_tree(words: Iterable[tuple[_Letter, ...]]) -> Graph:
    root = _Tree()
    for word in words:
        tree = root
        for letter in word:
            tree = tree.setdefault(letter, _Tree())
        tree.is_word = True
    # State 0 is the root and state 1 the end of every word that no longer word begins with.
    edges: list[tuple[int, Expr, int]] = []
    finals = {1}
    waiting = [(0, root)]
    states = 2
    while waiting:
        source, tree = waiting.pop()
        if tree.is_word:
            finals.add(source)
        for letter, below in tree.items():
            run = [letter]
            while len(below) == 1 and not below.is_word:
                ((only, below),) = below.items()
                run.append(only)
            target = 1
            if below:
                target, states = states, states + 1
                waiting.append((target, below))
            edges.append((source, _word(run), target))
    return Graph(tuple(edges), 0, frozenset(finals))


def _word(letters: Iterable[_Letter]) -> Expr:
    units: list[int] = []
    parts: list[Expr] = []
    for letter in letters:
        if isinstance(letter, int):
            units.append(letter)
        else:
            parts += [literal(tuple(units)), Class(letter)]
            units = []
    return concat(*parts, literal(tuple(units)))
