"""The trie in depth-first order, and what words do inside strings, against the words one by one."""

from __future__ import annotations

import json
import random

import models
import numpy as np
import pytest

from sortition.grammars.descent import CLOSED, OUTSIDE, Descent, bodies
from sortition.grammars.trie import Trie


def words_of(descent: Descent) -> list[bytes]:
    """The words, spelled out from their nodes."""

    def spelled(node: int) -> bytes:
        letters = bytearray()
        while node >= 0:
            letters.append(descent.byte[node])
            node = int(descent.parent[node])
        return bytes(letters[::-1])

    return [spelled(node) for node in descent.node_of_word.tolist()]


def after(kind: int, text: bytes) -> tuple[int, bytes]:
    """Where a text leads in a string that it is inside of, and what follows the quote that closes that."""
    place = 0
    for index, byte in enumerate(text):
        place = int(bodies()[kind, place, byte])
        if place < 0:
            return place, text[index + 1 :] if place == CLOSED else b""
    return place, b""


@pytest.mark.parametrize("seed", range(20))
def test_depth_first(seed: int) -> None:
    draw = random.Random(seed)
    tokens = [bytes(draw.choices(b'ab"\\u\xc3\xa9', k=draw.randrange(7))) for _ in range(80)]
    descent = Descent.of(Trie.of(tokens))
    words = words_of(descent)
    assert words == sorted({token for token in tokens if token})
    assert [words[number] if number >= 0 else b"" for number in descent.word_of_token.tolist()] == tokens
    assert descent.longest == max(map(len, tokens))
    for node in range(len(descent.byte)):
        below = words[descent.first_word[node] : descent.first_word[descent.after[node]]]
        assert below and all(node <= at < descent.after[node] for at in range(node, descent.after[node]))
        nodes = {int(descent.node_of_word[words.index(word)]) for word in below}
        assert nodes == {n for n in descent.node_of_word.tolist() if node <= n < descent.after[node]}
        assert descent.parent[node] < node
    for word, end in enumerate(descent.run.tolist()):
        assert len(set(descent.outcome[word:end].tolist())) == 1
        assert end == len(words) or descent.outcome[end] != descent.outcome[word]


def test_words_of_one_outcome_do_the_same_in_strings() -> None:
    descent = Descent.of(models.vocabulary("smollm2").trie)
    does: dict[int, list[tuple[int, bytes]]] = {}
    for word, outcome in zip(words_of(descent), descent.outcome.tolist(), strict=True):
        found = [after(kind, word) for kind in range(len(bodies()))]
        assert does.setdefault(outcome, found) == found, word
    assert len(does) == descent.outcomes == len(set(map(tuple, does.values())))
    places = descent.place[:, descent.node_of_word]
    assert np.array_equal(places.T, [[after(kind, word)[0] for kind in (0, 1)] for word in words_of(descent)])


@pytest.mark.parametrize("text", ["", "abc", 'quote " inside', "é日𝄞", "back\\slash/", "\x00\x1f\x7f\n"])
def test_strings_of_json_close_where_they_end(text: str) -> None:
    for spelled in (json.dumps(text), json.dumps(text, ensure_ascii=False)):
        for kind in range(len(bodies())):
            assert after(kind, spelled.encode()[1:] + b",1") == (CLOSED, b",1")


def test_what_is_no_string() -> None:
    for text in (b"\n", b"\\x", b"\xff", b"\xed\xa0\x80", b"\\ud800a"):
        assert all(after(kind, text)[0] == OUTSIDE for kind in range(len(bodies())))
    # Keys are spelled in one way only.
    assert [after(kind, b"\\/")[0] for kind in (0, 1)] == [0, OUTSIDE]


def test_a_trie_has_one_descent() -> None:
    trie = Trie.of([b"a", b"ab"])
    assert Descent.of(trie) is Descent.of(trie)
