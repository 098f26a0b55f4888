"""Which folder a model or a tokenizer is in, and what must be there before a library is asked to load it.

Libraries answer a folder without these files with what they have tried, in many lines.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from sortition.integrations.documents import is_folder
from sortition.integrations.errors import InputError

TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tekken.json",
    "vocab.json",
)
"""One of these is in every folder with a tokenizer that transformers loads and `Vocabulary.of` reads."""


HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
"""How models are named on the Hugging Face Hub: by an owner and a name, or long ago by a name alone."""

SNAPSHOTS: Final = "snapshots"
OF_MODELS: Final = "models--"
"""What folders are called in which the Hub's cache keeps models."""


def local_folder(given: str | Path) -> Path:
    """The folder of a model or tokenizer: the one that is given, or that of a name in the Hub's cache.

    Raises:
        InputError: there is neither; nothing is downloaded.
    """
    folder = Path(given)
    if is_folder(folder):
        return folder
    if folder.is_file():
        raise InputError(f"{folder} is a file; give the folder that it is in")
    name = folder.as_posix()
    if HUB_NAME.fullmatch(name) is None:
        raise InputError(f"there is no folder {folder}")
    cached = _in_cache(name)
    if cached is None:
        raise InputError(
            f"there is no folder {folder}; if that is a model on the Hugging Face Hub, fetch it first: "
            f"hf download {name}"
        )
    return cached


def _in_cache(name: str) -> Path | None:
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError:
        return None
    try:
        return Path(snapshot_download(name, local_files_only=True))
    # The library's own errors are of these kinds.
    except (OSError, ValueError):
        return None


def called(model: str | Path) -> str:
    """What people call a model: its name on the Hub, if it is in the cache, or the name of its folder."""
    folder = Path(model)
    kept = folder.parent.parent.name
    if folder.parent.name == SNAPSHOTS and kept.startswith(OF_MODELS):
        return kept.removeprefix(OF_MODELS).replace("--", "/")
    return folder.absolute().name if folder.is_dir() else str(model)


def require_tokenizer(folder: Path) -> None:
    """Raise InputError unless the folder seems to hold a tokenizer."""
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise InputError(f"there is no tokenizer in {folder}: it has none of {', '.join(TOKENIZER_FILES)}")


def require_model(folder: Path) -> None:
    """Raise InputError unless the folder seems to hold a model and its tokenizer."""
    if not (folder / "config.json").is_file():
        raise InputError(f"there is no model in {folder}: it has no config.json")
    require_tokenizer(folder)
