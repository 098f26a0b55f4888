"""What must be in a folder before a library is asked to load a tokenizer or a model from it.

Libraries answer a folder without these files with what they have tried, in many lines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sortition.integrations.errors import InputError

TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tekken.json",
    "vocab.json",
)
"""One of these is in every folder with a tokenizer that transformers loads and `Vocabulary.of` reads."""


def require_tokenizer(folder: Path) -> None:
    """Raise InputError unless the folder seems to hold a tokenizer."""
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise InputError(f"there is no tokenizer in {folder}: it has none of {', '.join(TOKENIZER_FILES)}")


def require_model(folder: Path) -> None:
    """Raise InputError unless the folder seems to hold a model and its tokenizer."""
    if not (folder / "config.json").is_file():
        raise InputError(f"there is no model in {folder}: it has no config.json")
    require_tokenizer(folder)
