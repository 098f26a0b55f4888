"""The trie in arrays against the plain set of all prefixes."""

from __future__ import annotations

import models
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortition.grammars.trie import Trie


def prefixes_by_node(trie: Trie) -> list[bytes]:
    prefixes: list[bytes] = []
    for parent, byte in zip(trie.parent.tolist(), trie.byte.tolist(), strict=True):
        prefixes.append((b"" if parent < 0 else prefixes[parent]) + bytes([byte]))
    return prefixes


def check(trie: Trie, tokens: list[bytes]) -> None:
    prefixes = prefixes_by_node(trie)
    naive = {token[:end] for token in tokens for end in range(1, len(token) + 1)}
    # Breadth first, and within a depth by (parent, byte), is the order by (length, bytes).
    assert prefixes == sorted(naive, key=lambda prefix: (len(prefix), prefix))
    assert len(trie) == len(naive)
    for depth, level in enumerate(trie.levels(), 1):
        assert {len(prefix) for prefix in prefixes[level]} == {depth}
    assert sum(level.stop - level.start for level in trie.levels()) == len(naive)
    node_of = {prefix: node for node, prefix in enumerate(prefixes)}
    assert trie.node_of_token.tolist() == [node_of[token] if token else -1 for token in tokens]


@given(st.lists(st.binary(max_size=5)))
def test_random_tokens(tokens: list[bytes]) -> None:
    check(Trie.of(tokens), tokens)


@given(st.lists(st.text("ab", max_size=6).map(str.encode)))
def test_tokens_that_share_prefixes(tokens: list[bytes]) -> None:
    check(Trie.of(tokens), tokens)


@pytest.mark.parametrize("name", models.NAMES)
def test_real_vocabulary(name: str) -> None:
    vocabulary = models.vocabulary(name)
    check(vocabulary.trie, list(vocabulary.tokens))
    assert vocabulary.trie is vocabulary.trie


def test_arrays() -> None:
    trie = Trie.of([b"ab", b"", b"b", b"ab", b"abc"])
    assert (trie.parent.dtype, trie.parent.tolist()) == (np.int32, [-1, -1, 0, 2])
    assert (trie.byte.dtype, bytes(trie.byte)) == (np.uint8, b"abbc")
    assert (trie.level_start.dtype, trie.level_start.tolist()) == (np.int64, [0, 2, 3, 4])
    assert (trie.node_of_token.dtype, trie.node_of_token.tolist()) == (np.int32, [2, -1, 1, 2, 3])
    assert not trie.parent.flags.writeable
    assert repr(trie) == "Trie(4 nodes, 3 levels)"
