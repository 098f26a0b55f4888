"""What a model can emit, as plain values: the bytes of every token, and which tokens end a text.

This floor knows no tokenizer library. `Vocabulary.of` reads lists of bytes itself; `tokenizer_folder` and
`tokenizers` of `sortition.integrations` read the rest.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, Final, Self, cast

import numpy as np

from sortition.grammars.cache import Cache
from sortition.grammars.trie import Trie

TRIE_CACHE: Final = 1 << 24
"""Bytes of the tries that are kept: 16 MiB, those of some six large vocabularies."""

_TRIES: Final = Cache[Trie](TRIE_CACHE, lambda trie: trie.nbytes)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Vocabulary:
    """The bytes of every token, exactly as the token decodes in the middle of a text, and the end tokens.

    Two vocabularies are equal if their tokens and end tokens are. Tokens of equal bytes are all kept.

    Attributes:
        tokens: bytes by token id. ``b""`` stands for a token that is never part of a text: a special token,
            an end token, or an id beyond the tokenizer's that only pads the logits.
        end_tokens: ids of the tokens that end a text, ascending.
        digest: SHA-256 of the content, in hexadecimal.
    """

    tokens: tuple[bytes, ...]
    end_tokens: tuple[int, ...] = ()
    digest: str = field(init=False)
    _trie: Trie | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        tokens = list(self.tokens)
        ends = tuple(sorted({index(end) for end in self.end_tokens}))
        for token, text in enumerate(tokens):
            if not isinstance(text, bytes):
                raise TypeError(
                    f"token {token} is {text!r} of type {type(text).__name__}; every token has to be bytes, "
                    "those that it decodes to in the middle of a text"
                )
        for end in ends:
            if not 0 <= end < len(tokens):
                raise ValueError(f"end token {end} is not one of the {len(tokens)} tokens")
            tokens[end] = b""
        if not any(tokens):
            raise ValueError(f"none of the {len(tokens)} tokens of this vocabulary stands for any text")
        object.__setattr__(self, "tokens", tuple(tokens))
        object.__setattr__(self, "end_tokens", ends)
        object.__setattr__(self, "digest", _digest(tokens, ends))

    @classmethod
    def of(
        cls,
        source: Any,
        *,
        end_tokens: Iterable[int] | None = None,
        size: int | None = None,
        generation_config: Any = None,
    ) -> Self:
        """Read the vocabulary of a tokenizer, of a folder with one, or take it from a list of bytes.

        Args:
            source: the path of a tokenizer's folder, of which also the generation config is read (nothing is
                downloaded); a tokenizer of transformers, a `tokenizers.Tokenizer`, a `tiktoken.Encoding`, a
                SentencePiece processor, a mistral-common tokenizer; or a sequence of bytes by token id.
            end_tokens: ids that end a text, instead of those that the tokenizer names.
            size: width of the model's logits, where it differs from the number of tokens. Ids beyond the
                tokenizer's are never eligible.
            generation_config: a transformers `GenerationConfig` (or a mapping) whose end tokens are added.

        Raises:
            TypeError: nothing is known about objects like `source`, or a token is not bytes.
            InputError: there is no such folder, or no tokenizer in it that can be loaded.
            ValueError: an end token is out of range, no end token is known, no token has any text, or
                the tokenizer decodes in a way that tokens of fixed bytes cannot follow.
        """
        if isinstance(source, list | tuple):
            tokens: Sequence[bytes] = source
            named: Iterable[int] = ()
        else:
            tokens, named = _read(source)
        ends = set(named if end_tokens is None else end_tokens) | set(_configured(generation_config))
        if not ends and end_tokens is None and tokens is not source:
            name = source if isinstance(source, str | os.PathLike) else type(source).__name__
            raise ValueError(
                f"{name} names no end token, so that no text could end; "
                "pass end_tokens=[...] or generation_config=..."
            )
        return cls(_resized(tokens, size), tuple(ends))

    @property
    def size(self) -> int:
        """Number of token ids, padding included."""
        return len(self.tokens)

    @property
    def trie(self) -> Trie:
        """The tokens as a byte trie, built on first use and kept, also for equal vocabularies."""
        trie = self._trie or _TRIES.find(self.digest, lambda: Trie.of(self.tokens))
        object.__setattr__(self, "_trie", trie)
        return trie

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, Vocabulary) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        ends = ", ".join(map(str, self.end_tokens)) or "none"
        return f"Vocabulary({self.size:,} tokens, end {ends}, {self.digest[:8]})"


def _read(source: Any) -> tuple[Sequence[bytes], Iterable[int]]:
    """The tokens and end tokens of a folder or a tokenizer."""
    # By name, because this floor must import nothing from a floor above it.
    if isinstance(source, str | os.PathLike):
        reading = importlib.import_module("sortition.integrations.tokenizer_folder").read_folder(source)
    else:
        reading = importlib.import_module("sortition.integrations.tokenizers").read(source)
    return cast(tuple[Sequence[bytes], Iterable[int]], reading)


def _configured(generation_config: Any) -> list[int]:
    """The end tokens that a generation config names."""
    if generation_config is None:
        return []
    if isinstance(generation_config, dict):
        ends = generation_config.get("eos_token_id")
    else:
        ends = generation_config.eos_token_id
    if ends is None:
        return []
    return [ends] if isinstance(ends, int) else list(ends)


def _resized(tokens: Sequence[bytes], size: int | None) -> tuple[bytes, ...]:
    """`tokens` padded to `size`; cut only where nothing but tokens without text is lost."""
    if size is None:
        return tuple(tokens)
    for token in range(size, len(tokens)):
        if tokens[token]:
            raise ValueError(f"size {size} leaves out token {token}, which stands for {tokens[token]!r}")
    return (*tokens[:size], *[b""] * (size - len(tokens)))


def _digest(tokens: Sequence[bytes], ends: tuple[int, ...]) -> str:
    lengths = np.fromiter(map(len, tokens), "<i8", len(tokens))
    content = hashlib.sha256()
    content.update(np.array([len(tokens), len(ends), *ends], "<i8").tobytes())
    content.update(lengths.tobytes())
    content.update(b"".join(tokens))
    return content.hexdigest()
