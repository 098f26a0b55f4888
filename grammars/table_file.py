"""The file of a table: its arrays and numbers with a checksum over both; no code is ever read from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

FORMAT: Final = 2
"""Version of the format."""

Header: TypeAlias = Mapping[str, int | bool | str]
Arrays: TypeAlias = Mapping[str, NDArray[Any]]


def write(path: Path, header: Header, arrays: Arrays) -> None:
    """Write numbers and texts, and arrays, all by their names; the file is there whole or not at all."""
    text = json.dumps({"format": FORMAT, "digest": _digest(header, arrays), **header})
    packed = {**arrays, "header": np.frombuffer(text.encode(), np.uint8)}
    draft = path.with_name(path.name + ".new")
    try:
        with draft.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **packed)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def read(path: Path) -> dict[str, Any]:
    """What was written, header and arrays alike by their names.

    Raises:
        ValueError: not such a file, one of another version, or damaged.
    """
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(arrays.pop("header").tobytes())
        version, digest = header.pop("format"), header.pop("digest")
    except FileNotFoundError:
        raise
    except Exception as error:  # np.load and zipfile raise a dozen kinds for damaged files
        raise ValueError(f"{path} is not a saved table, or is damaged") from error
    if version != FORMAT:
        raise ValueError(
            f"{path} was saved in format {version}, this version reads format {FORMAT}; compile it again"
        )
    if digest != _digest(header, arrays):
        raise ValueError(f"{path} is damaged: its content does not match its checksum")
    return {**header, **arrays}


def _digest(header: Header, arrays: Arrays) -> str:
    content = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        array = arrays[name]
        content.update(f"{name} {array.dtype.str} {array.shape}".encode())
        content.update(np.ascontiguousarray(array).tobytes())
    return content.hexdigest()
