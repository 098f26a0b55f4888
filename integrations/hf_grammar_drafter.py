"""transformers: the grammar as a drafter: what a text must go on with, spelled as the tokenizer spells it."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from sortition.grammars.matcher import Matcher
from sortition.grammars.reader import Mask
from sortition.grammars.table import Table
from sortition.grammars.vocabulary import Vocabulary
from sortition.integrations.hf_drafters import Drafts, Text
from sortition.sampling.state import State

LONGEST_SPAN: Final = 256
"""Bytes that are followed at most: a grammar may force the same one for ever."""

CONTEXT: Final = 16
"""Tokens before a span that its spelling may depend on; tokenizers look at a word or two."""


class GrammarDrafter:
    """Says what the grammar leaves no choice about.

    A grammar rules over bytes, and the model has many ways to spell those that are forced. The one it takes
    is nearly always the one it was trained on, its tokenizer's, so that one is drafted. Its last token is,
    too, though a longer one may reach beyond the span: over the demo's gold values, spelled by the
    tokenizer, 5 of 377 drafts are refused for it, and 1,033 tokens take 661 forward passes; without, 780.

    Args:
        tables: of the rows' grammars, None for a row without.
        prompts: how many tokens of each text come before its grammar begins.
        tokenizer: of the model, from transformers.
    """

    def __init__(self, tables: Sequence[Table | None], prompts: Sequence[int], tokenizer: Any) -> None:
        self._matchers = [None if table is None else Matcher(table) for table in tables]
        self._read = list(prompts)
        self._spelling = spelling_of(tokenizer)

    def draft(self, texts: Sequence[Text], state: State, rooms: Sequence[int]) -> list[Drafts]:
        """See `Drafter`."""
        return [
            self._draft(row, text, room) for row, (text, room) in enumerate(zip(texts, rooms, strict=True))
        ]

    def _draft(self, row: int, text: Text, room: int) -> Drafts:
        matcher = self._matchers[row]
        if matcher is None or not room:
            return Drafts()
        if not all(matcher.advance(token) for token in text[self._read[row] :]):
            # The text has left the grammar, so nobody holds it to it.
            self._matchers[row] = None
            return Drafts()
        self._read[row] = len(text)
        return Drafts(self._spelling.spelled(text, self._spelling.forced(matcher))[:room])


class Spelling:
    """The bytes of a tokenizer's tokens, and how it spells bytes.

    Args:
        tokenizer: from transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens = Vocabulary.of(tokenizer, end_tokens=[]).tokens
        self._first = np.array([text[0] if text else -1 for text in self._tokens], np.int16)
        self._byte = {text[0]: token for token, text in enumerate(self._tokens) if len(text) == 1}

    def forced(self, matcher: Matcher) -> bytes:
        """What every text of the grammar goes on with; the matcher does not move."""
        span = bytearray()
        while len(span) < LONGEST_SPAN and not matcher.can_end:
            byte = self._only(matcher.allowed())
            token = self._byte.get(byte)
            if token is None or not matcher.advance(token):
                break
            span.append(byte)
        matcher.rollback(len(span))
        return bytes(span)

    def spelled(self, text: Text, span: bytes) -> list[int]:
        """The tokens for a span that follows a text; none if no token begins where the text ends."""
        before = b"".join(self._tokens[token] for token in text[-CONTEXT:])
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        whole = decoder.decode(before + span)
        # A span may end inside a character, which is for the model to finish.
        size = len(span) - len(decoder.getstate()[0])
        for context in (whole, span[:size].decode("utf-8", "replace")) if size > 0 else ():
            tokens = self._tokenizer.encode(context, add_special_tokens=False)
            lengths = np.cumsum([len(self._tokens[token]) for token in reversed(tokens)])
            # Counted from the end: tokenizers may put a space in front.
            if size in lengths:
                return list(tokens[len(tokens) - 1 - int(np.searchsorted(lengths, size)) :])
        return []

    def _only(self, mask: Mask) -> int:
        """The byte with which all eligible tokens begin, -1 if there are several."""
        eligible = np.unpackbits(mask.view(np.uint8), bitorder="little", count=len(self._first)).view(
            np.bool_
        )
        firsts = self._first[eligible]
        return int(firsts[0]) if len(firsts) and (firsts == firsts[0]).all() else -1


_spellings: Final[WeakKeyDictionary[Any, Spelling]] = WeakKeyDictionary()


def spelling_of(tokenizer: Any) -> Spelling:
    """The one spelling of a tokenizer; it takes a moment to read."""
    if tokenizer not in _spellings:
        _spellings[tokenizer] = Spelling(tokenizer)
    return _spellings[tokenizer]
