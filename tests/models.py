"""Three real vocabularies for tests of every floor: SmolLM2 (49k tokens), Llama 3 (128k) and Llama 4 (202k).

All come from PyPI packages; a test that needs one whose package is missing is skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import pytest

from sortition.grammars.vocabulary import Vocabulary
from sortition.integrations.smollm2 import embedded_model

NAMES = ("smollm2", "llama3", "llama4")


@dataclass(frozen=True, slots=True, eq=False)
class Real:
    """A real tokenizer: the object itself, its vocabulary, and how it encodes a text without specials."""

    name: str
    tokenizer: Any
    vocabulary: Vocabulary
    encode: Callable[[str], list[int]]

    def __repr__(self) -> str:
        return self.name


@cache
def real(name: str) -> Real:
    """The tokenizer of that name, loaded once per process."""
    return _smollm2() if name == "smollm2" else _llama(name)


def vocabulary(name: str) -> Vocabulary:
    return real(name).vocabulary


def _smollm2() -> Real:
    transformers = pytest.importorskip("transformers")
    try:
        folder = embedded_model()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def encode(text: str) -> list[int]:
        return list(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)

    return Real("smollm2", tokenizer, Vocabulary.of(tokenizer), encode)


def _llama(name: str) -> Real:
    pytest.importorskip("llama_models", reason="pip install llama-models")
    llama = import_module(f"llama_models.{name}.tokenizer").Tokenizer.get_instance()
    vocabulary = Vocabulary.of(llama.model, end_tokens=llama.stop_tokens)
    return Real(name, llama.model, vocabulary, llama.model.encode_ordinary)
