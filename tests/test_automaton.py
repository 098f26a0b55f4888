"""Automata: the algebra's laws, minimality, and agreement with Python's `re`."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortition.grammars import partition
from sortition.grammars.automaton import Automaton
from sortition.grammars.errors import Invalid, TooLarge
from sortition.grammars.expr import (
    EMPTY,
    NOTHING,
    Call,
    Expr,
    Graph,
    alternative,
    concat,
    literal,
    one_of,
    optional,
    repeat,
    star,
)
from sortition.grammars.partition import coarsest_partition

ALPHABET = "abc"
words = st.text(ALPHABET, max_size=7)

# Each example is an expression beside the same language in Python's syntax.
leaves = st.one_of(
    st.sampled_from(ALPHABET).map(lambda c: (literal((ord(c),)), c)),
    st.just((one_of([(97, 98)]), "[ab]")),
    st.just((EMPTY, "(?:)")),
    st.just((NOTHING, "(?!)")),
)


def _larger(inner: st.SearchStrategy[tuple[Expr, str]]) -> st.SearchStrategy[tuple[Expr, str]]:
    bounds = st.tuples(st.integers(0, 3), st.integers(0, 3)).map(sorted)
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(
            lambda parts: (concat(*(e for e, _ in parts)), "".join(p for _, p in parts))
        ),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda parts: (alternative(*(e for e, _ in parts)), f"(?:{'|'.join(p for _, p in parts)})")
        ),
        inner.map(lambda part: (star(part[0]), f"(?:{part[1]})*")),
        inner.map(lambda part: (optional(part[0]), f"(?:{part[1]})?")),
        st.tuples(inner, bounds).map(
            lambda part: (repeat(part[0][0], *part[1]), f"(?:{part[0][1]}){{{part[1][0]},{part[1][1]}}}")
        ),
    )


languages = st.recursive(leaves, _larger, max_leaves=8)


def _accepts(automaton: Automaton, word: str) -> bool:
    return automaton.accepts(map(ord, word))


@given(languages, words)
def test_language_is_that_of_re(language: tuple[Expr, str], word: str) -> None:
    expr, pattern = language
    assert _accepts(Automaton.of(expr), word) == (re.fullmatch(pattern, word) is not None)


@given(languages, languages, words)
def test_boolean_operations(one: tuple[Expr, str], two: tuple[Expr, str], word: str) -> None:
    left, right = Automaton.of(one[0]), Automaton.of(two[0])
    ours, theirs = _accepts(left, word), _accepts(right, word)
    assert _accepts(left.intersect(right), word) == (ours and theirs)
    assert _accepts(left.union(right), word) == (ours or theirs)
    assert _accepts(left.difference(right), word) == (ours and not theirs)
    assert _accepts(left.complement(), word) == (not ours)


@given(languages, languages)
def test_equivalent_automata_are_equal(one: tuple[Expr, str], two: tuple[Expr, str]) -> None:
    """Minimal automata of one language are the same up to the names of states; ours are numbered alike."""
    left, right = Automaton.of(one[0]), Automaton.of(two[0])
    again = left.union(right).intersect(left)
    assert again.difference(left).is_empty and left.difference(again).is_empty
    assert len(again) == len(left)
    assert np.array_equal(again.move, left.move)


@given(languages)
def test_states_are_pairwise_distinguishable(language: tuple[Expr, str]) -> None:
    automaton = Automaton.of(language[0])
    labels = automaton.accepting.astype(int)
    for _ in range(len(automaton)):  # Moore's refinement, the slow way
        rows = [
            (label, *(labels[t] if t >= 0 else -1 for t in row))
            for label, row in zip(labels, automaton.move, strict=True)
        ]
        labels = np.array([sorted(set(rows)).index(row) for row in rows])
    assert len(set(labels.tolist())) == len(automaton)


@given(languages, words)
def test_the_graph_of_an_automaton_is_its_language(language: tuple[Expr, str], word: str) -> None:
    automaton = Automaton.of(language[0])
    assert _accepts(Automaton.of(automaton.expr()), word) == _accepts(automaton, word)


def test_an_automaton_used_twice_in_one_expression() -> None:
    """Its states stand once for each place, though the object is one."""
    graph = Automaton.of(star(literal((97,)))).expr()
    assert isinstance(graph, Graph)
    both = Automaton.of(concat(graph, literal((98,)), graph))
    assert _accepts(both, "aaba") and not _accepts(both, "aabab")


def test_calls_are_refused() -> None:
    with pytest.raises(Invalid):
        Automaton.of(Call("x"))


@pytest.mark.parametrize(
    "expr",
    [
        repeat(repeat(literal((97,)), 1, 1000), 1, 1000),
        concat(star(one_of([(97, 98)])), literal((97,)), repeat(one_of([(97, 98)]), 30, 30)),
    ],
)
def test_hostile_expressions_are_refused(expr: Expr) -> None:
    with pytest.raises(TooLarge):
        Automaton.of(expr)


@given(
    st.integers(1, 12).flatmap(
        lambda n: st.tuples(
            st.lists(st.lists(st.integers(-1, n - 1), min_size=2, max_size=2), min_size=n, max_size=n),
            st.lists(st.integers(0, 1), min_size=n, max_size=n),
        )
    )
)
def test_partition_equals_the_slow_one(case: tuple[list[list[int]], list[int]]) -> None:
    rows, first = case
    arguments = np.array(first), [np.array(rows, dtype=np.int64)]
    fast = coarsest_partition(*arguments)
    with pytest.MonkeyPatch.context() as patched:
        # All that are affected at once, as where they are many, and then one by one.
        patched.setattr(partition, "FEW_AFFECTED", 0)
        assert np.array_equal(coarsest_partition(*arguments), fast)
        patched.setattr(partition, "FEW_AFFECTED", len(rows) // 2)
        assert np.array_equal(coarsest_partition(*arguments), fast)
    labels = list(first)
    for _ in rows:
        keys = [(labels[i], *(labels[t] if t >= 0 else -1 for t in row)) for i, row in enumerate(rows)]
        labels = [keys.index(key) for key in keys]
    assert all(
        (fast[i] == fast[j]) == (labels[i] == labels[j]) for i in range(len(rows)) for j in range(len(rows))
    )
