"""What is kept for the next one who asks: only what is the same, and not too much of it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import sortition as so
from sortition.grammars.cache import Cache, content_digest
from sortition.grammars.errors import Invalid

VOCABULARY = so.Vocabulary.of([bytes([byte]) for byte in range(256)], end_tokens=[0])
OTHER = so.Vocabulary.of([bytes([byte]) for byte in range(256)], end_tokens=[1])


def test_the_oldest_values_are_dropped() -> None:
    cache = Cache[str](10, len)
    made: list[str] = []

    def find(key: str) -> str:
        return cache.find(key[0], lambda: made.append(key) or key)  # type: ignore[func-returns-value]

    for key in ("aaaa", "bbbb", "a", "cccc", "bbbb", "a", "dddddddddddd", "a"):
        find(key)
    # "a" was asked for after "b", so "b" made room for "c", and "a" for "b"; "d" alone is too much.
    assert made == ["aaaa", "bbbb", "cccc", "bbbb", "a", "dddddddddddd"] and len(cache) == 3
    cache.clear()
    assert not len(cache) and find("ab") == "ab"


def test_what_cannot_be_made_is_not_kept() -> None:
    cache = Cache[int](10, lambda _: 1)
    with pytest.raises(ZeroDivisionError):
        cache.find("key", lambda: 1 // 0)
    assert cache.find("key", lambda: 2) == 2


def test_threads_share_a_cache() -> None:
    cache = Cache[int](50, lambda _: 1)
    wrong: list[int] = []

    def work(seed: int) -> None:
        for step in range(2000):
            key = (step * 7919 + seed) % 100
            if cache.find(key, lambda key=key: key) != key:  # type: ignore[misc]
                wrong.append(key)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(cache) == 50


def test_different_values_have_different_digests() -> None:
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    values = [1, 1.0, True, "1", b"1", [1], (1,), {"1": 1}, {1: 1}, None, 1e400, "\ud800",
              {"a": 1, "b": 2}, {"b": 2, "a": 1}]  # fmt: skip
    digests = [content_digest(value) for value in values]
    assert None not in digests and len(set(digests)) == len(values)
    assert content_digest(["ab"] * 2) == content_digest(["".join("ab"), "ab"])
    assert content_digest(deep) is content_digest(object()) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: so.json_schema({"type": "object", "properties": {"a": {"type": "string"}}}),
        lambda: so.json_schema('{"enum": [1, 2]}'),
        lambda: so.regex("[a-f]+"),
        lambda: so.choice(["yes", "no"]),
    ],
)
def test_the_same_is_compiled_once(make: Any) -> None:
    one, two = make(), make()
    assert one is not two
    table = one.compile(VOCABULARY)
    assert two.compile(VOCABULARY) is table
    assert two.compile(OTHER) is not table
    assert two.compile(OTHER).end_tokens.tolist() == [1]


def test_what_differs_is_compiled_for_itself() -> None:
    schema = {"properties": {"a": {"format": "date"}, "b": True}, "required": ["a", "b"]}
    turned = {**schema, "properties": dict(reversed(schema["properties"].items()))}  # type: ignore[attr-defined]
    grammars = [
        so.json_schema(schema),
        so.json_schema(turned),
        so.json_schema(schema, whitespace="compact"),
        so.json_schema(schema, formats="annotate"),
        so.json_schema(schema, ignore=["required"]),
        so.json_schema({"const": 1}),
        so.json_schema({"const": "1"}),
        so.regex("ab"),
        so.choice(["ab"]),
        so.choice(["a", "b"]),
        so.regex("a") | so.regex("b"),
        so.regex("a") | so.regex("b"),
    ]
    tables = [grammar.compile(VOCABULARY) for grammar in grammars]
    assert len(set(map(id, tables))) == len(tables)


def test_what_is_not_json_is_refused_after_its_like() -> None:
    assert so.json_schema({"enum": [[1]]})
    with pytest.raises(Invalid, match="tuple is not a JSON value"):
        so.json_schema({"enum": [(1,)]})


def test_a_schema_may_change_after_its_use() -> None:
    schema: dict[str, Any] = {"enum": [1]}
    first = so.json_schema(schema)
    schema["enum"].append(2)
    assert so.json_schema(schema).accepts("2") and not first.accepts("2")
    assert not so.json_schema({"enum": [1]}).accepts("2")


def test_equal_vocabularies_share_their_trie() -> None:
    again = so.Vocabulary.of(list(VOCABULARY.tokens), end_tokens=[0])
    assert again is not VOCABULARY and again.trie is VOCABULARY.trie
    # Token 0 ends the text in one of them, and token 1 in the other.
    assert OTHER.trie is not VOCABULARY.trie and OTHER.trie.nbytes > 1000
