"""A folder with a tokenizer -> the bytes of its tokens and its end tokens, as transformers would load it.

Where `tokenizer.json` and `tokenizer_config.json` say everything, the tokenizers library reads them, in a
seventh of the time and a fifth of the memory of transformers, which loads torch for it; mistral-common reads
`tekken.json` alone. All other folders are left to transformers. (One difference is left: a special token
that only a class of transformers names, and that the files do not have, is no token here and one without text
there.)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from sortition.integrations.errors import InputError, reason_of
from sortition.integrations.model_folder import local_folder, require_tokenizer
from sortition.integrations.tokenizers import Reading, ids, read, read_backend

LEGACY_FILES: Final = ("special_tokens_map.json", "added_tokens.json")
"""What transformers reads as well where `tokenizer_config.json` does not list the added tokens."""


def read_folder(source: str | Path) -> Reading:
    """Read the tokenizer in a folder, with the end tokens of the generation config beside it.

    Raises:
        InputError: there is no such folder or name in the Hub's cache, no tokenizer there, or none that can
            be loaded.
        TypeError, ValueError: as of `tokenizers.read`.
    """
    folder = local_folder(source)
    require_tokenizer(folder)
    config = _json(folder / "tokenizer_config.json")
    if _says_everything(folder, config):
        tokens, ends = _read_json(folder, config)
    elif (folder / "tekken.json").is_file() and not (folder / "tokenizer.json").is_file():
        tokens, ends = _read_tekken(folder)
    else:
        tokens, ends = _read_by_transformers(folder)
    return tokens, [*ends, *_generation_ends(folder)]


def _says_everything(folder: Path, config: dict[str, Any]) -> bool:
    """Whether neither code of the folder's own nor any other file has a say."""
    legacy = "added_tokens_decoder" not in config and any((folder / name).is_file() for name in LEGACY_FILES)
    return (
        (folder / "tokenizer.json").is_file()
        and not (folder / "tekken.json").is_file()
        and "auto_map" not in config
        and bool(config.get("eos_token"))
        and not legacy
    )


def _read_json(folder: Path, config: dict[str, Any]) -> Reading:
    try:
        from tokenizers import AddedToken, Tokenizer
    except ModuleNotFoundError as missing:
        raise _not_installed(folder, missing) from None
    try:
        backend: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    # The library raises nothing more special.
    except Exception as problem:
        raise _not_loaded(folder, problem) from problem
    listed = config.get("added_tokens_decoder", {})
    added = [AddedToken(**listed[token]) for token in sorted(listed, key=int)]
    special = _special_tokens(config)
    known = {repr(token) for token in backend.get_added_tokens_decoder().values()}
    # As transformers adds them, and in its order, on which their ids depend.
    new = [token for token in added if repr(token) not in known]
    present = {token.content for token in [*backend.get_added_tokens_decoder().values(), *new]}
    new += [AddedToken(content, special=True) for content in special if content not in present]
    backend.add_tokens(new)
    tokens = read_backend(backend, [backend.token_to_id(content) for content in special])
    return tokens, [backend.token_to_id(_content(config["eos_token"]))]


def _special_tokens(config: dict[str, Any]) -> list[str]:
    """The tokens that `tokenizer_config.json` names for a purpose, without repetitions."""
    named = [value for key, value in config.items() if key.endswith("_token")]
    more = config.get("extra_special_tokens", config.get("additional_special_tokens")) or []
    for tokens in (more, config.get("model_specific_special_tokens") or []):
        named += tokens.values() if isinstance(tokens, dict) else tokens
    # Some names that end alike are of switches, such as add_bos_token.
    return list(dict.fromkeys(_content(token) for token in named if isinstance(token, str | dict)))


def _content(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else token["content"]


def _read_tekken(folder: Path) -> Reading:
    try:
        from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
    except ModuleNotFoundError:
        return _read_by_transformers(folder)
    try:
        return read(MistralTokenizer.from_file(str(folder / "tekken.json")))
    except (LookupError, TypeError, ValueError) as problem:
        raise _not_loaded(folder, problem) from problem


def _read_by_transformers(folder: Path) -> Reading:
    try:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except ModuleNotFoundError as missing:
        raise _not_installed(folder, missing) from None
    except (OSError, ValueError) as problem:
        raise _not_loaded(folder, problem) from problem
    return read(tokenizer)


def _generation_ends(folder: Path) -> list[int]:
    """The end tokens that a model in the folder is generated with."""
    configured = folder / "generation_config.json"
    # Without one, transformers makes it from the model's.
    config = _json(configured if configured.is_file() else folder / "config.json")
    return ids(config.get("eos_token_id"))


def _json(path: Path) -> dict[str, Any]:
    """What a file holds; nothing where it is not there."""
    try:
        return json.loads(path.read_bytes()) if path.is_file() else {}
    except ValueError as problem:
        raise InputError(f"{path} is not JSON: {problem}") from problem


def _not_installed(folder: Path, missing: ModuleNotFoundError) -> InputError:
    return InputError(f"reading the tokenizer in {folder} needs {missing.name}: pip install 'sortition[hf]'")


def _not_loaded(folder: Path, problem: Exception) -> InputError:
    return InputError(f"cannot load a tokenizer from {folder}: {reason_of(problem)}")
