"""The engines that `masks.py` compares, each behind the same four calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from sortition.grammars import accelerate
from sortition.grammars.grammar import TABLES
from sortition.grammars.json_schema import LOWERED, json_schema
from sortition.grammars.matcher import Matcher
from sortition.grammars.vocabulary import Vocabulary


class Session(Protocol):
    """One text under one compiled schema."""

    def mask(self) -> object:
        """Fill the token mask of the next step."""

    def advance(self, token: int) -> bool:
        """Commit a token; False if it is refused."""

    def can_end(self) -> bool:
        """Whether the text may end here."""


class Engine(Protocol):
    """An engine with one vocabulary; `compile` raises where it refuses a schema.

    Attributes:
        name: and version.
        on_heap: whether what it keeps is got from malloc, so that it can be measured.
    """

    name: str
    on_heap: bool

    def compile(self, schema: object) -> Any:
        """A compiled schema."""

    def forget(self) -> None:
        """Whatever it keeps of whole schemas, so that the next one is compiled as if it were the first."""

    def session(self, compiled: Any) -> Session:
        """A new text under it."""

    def size(self, compiled: Any) -> int | None:
        """Its bytes, as the engine counts them; None if it does not."""


class Sortition:
    """This package, with its compiled loops loaded, as in a process that has run for some seconds."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        accelerate.LOOPS.load()
        self.name, self.on_heap = "sortition", True
        self._vocabulary = vocabulary

    def compile(self, schema: object) -> Any:
        return json_schema(schema).compile(self._vocabulary)

    def forget(self) -> None:
        LOWERED.clear()
        TABLES.clear()

    def session(self, compiled: Any) -> Session:
        return _OurSession(Matcher(compiled))

    def size(self, compiled: Any) -> int | None:
        return int(compiled.nbytes)


class _OurSession:
    def __init__(self, matcher: Matcher) -> None:
        self.mask = matcher.allowed
        self.advance = matcher.advance
        self._matcher = matcher

    def can_end(self) -> bool:
        return self._matcher.can_end


class LLGuidance:
    """llguidance, with its own default slices."""

    def __init__(self, encoding: Any, end_token: int) -> None:
        import llguidance
        import llguidance.tiktoken

        self.name, self.on_heap = f"llguidance {version('llguidance')}", True
        self._module = llguidance
        self._tokenizer = llguidance.tiktoken.lltokenizer_from_encoding(encoding, eos_token=end_token)
        self._mask = np.zeros((self._tokenizer.vocab_size + 31) // 32, dtype=np.int32)

    def compile(self, schema: object) -> Any:
        matcher_class = self._module.LLMatcher
        grammar = matcher_class.grammar_from_json_schema(schema)
        matcher = matcher_class(self._tokenizer, grammar)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def forget(self) -> None:
        """It keeps nothing."""

    def session(self, compiled: Any) -> Session:
        return _LLGuidanceSession(compiled.deep_copy(), self._mask)

    def size(self, compiled: Any) -> int | None:
        return None


class _LLGuidanceSession:
    def __init__(self, matcher: Any, mask: np.ndarray) -> None:
        self._matcher, self._mask = matcher, mask

    def mask(self) -> object:
        return self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)

    def advance(self, token: int) -> bool:
        return bool(self._matcher.try_consume_tokens([token]) == 1)

    def can_end(self) -> bool:
        return bool(self._matcher.is_accepting())


class XGrammar:
    """xgrammar on one thread with its cache off, so that every schema is compiled anew."""

    def __init__(self, tokens: Sequence[bytes], end_token: int) -> None:
        import xgrammar

        self.name, self.on_heap = f"xgrammar {version('xgrammar')}", True
        self._module = xgrammar
        self._end_token = end_token
        info = xgrammar.TokenizerInfo(
            list(tokens), xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=[end_token]
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._mask = xgrammar.allocate_token_bitmask(1, len(tokens))

    def compile(self, schema: object) -> Any:
        return self._compiler.compile_json_schema(json.dumps(schema), strict_mode=False)

    def forget(self) -> None:
        """Its cache is off."""

    def session(self, compiled: Any) -> Session:
        return _XGrammarSession(self._module.GrammarMatcher(compiled), self._mask, self._end_token)

    def size(self, compiled: Any) -> int | None:
        return int(compiled.memory_size_bytes)


class _XGrammarSession:
    def __init__(self, matcher: Any, mask: Any, end_token: int) -> None:
        self._matcher, self._mask, self._end_token = matcher, mask, end_token

    def mask(self) -> object:
        return self._matcher.fill_next_token_bitmask(self._mask)

    def advance(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def can_end(self) -> bool:
        return bool(self._matcher.accept_token(self._end_token))


class GLRMask:
    """GLRMask with its default strategy: it builds an automaton of masks unless that is too large."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        import glrmask

        # It has an allocator of its own.
        self.name, self.on_heap = f"glrmask {version('glrmask')}", False
        self._grammar = glrmask.Grammar
        # A token without bytes is none, as the end token.
        self._vocabulary = glrmask.Vocab.from_id_to_bytes(
            {number: token for number, token in enumerate(tokens) if token}
        )
        self._mask = np.zeros((len(tokens) + 31) // 32, dtype=np.int32)

    def compile(self, schema: object) -> Any:
        return self._grammar.from_json_schema(schema).compile(self._vocabulary)

    def forget(self) -> None:
        """It keeps nothing."""

    def session(self, compiled: Any) -> Session:
        return _GLRMaskSession(compiled.start(), self._mask)

    def size(self, compiled: Any) -> int | None:
        return len(compiled.save())


class _GLRMaskSession:
    def __init__(self, state: Any, mask: np.ndarray) -> None:
        self._mask = mask
        self._state = state
        self.advance = state.commit_token
        self.can_end = state.is_accepting

    def mask(self) -> object:
        return self._state.fill_mask(self._mask)


def installed_engines(vocabulary: Vocabulary, encoding: Any) -> list[Engine]:
    """Ours first, then every peer that can be imported."""
    end_token = vocabulary.end_tokens[0]
    engines: list[Engine] = [Sortition(vocabulary)]
    if _installed("llguidance"):
        engines.append(LLGuidance(encoding, end_token))
    if _installed("xgrammar"):
        engines.append(XGrammar(vocabulary.tokens, end_token))
    if _installed("glrmask"):
        engines.append(GLRMask(vocabulary.tokens))
    return engines


def _installed(module: str) -> bool:
    return find_spec(module) is not None
