"""Read the documents of a job: JSON lines, a text file, a folder of text files, or values in memory."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sortition.integrations.errors import InputError

JSON_LINES = (".jsonl", ".ndjson")
"""Suffixes of files that hold one JSON object a line. Any other file is one text."""


@dataclass(frozen=True, slots=True)
class Document:
    """One text to read.

    Attributes:
        id: the user's own name for it: the `id` of its line, its file's name, or its number (from 0).
        text: all of it.
    """

    id: str | int
    text: str


def read_documents(
    source: str | Path | Iterable[str | Mapping[str, Any] | Document],
    *,
    text_field: str = "text",
    id_field: str = "id",
) -> list[Document]:
    """Every document of the source, in order; files of a folder (and of its folders) by their path.

    Args:
        source: the path of a JSON lines file (``.jsonl``, ``.ndjson``), of a text file or of a folder of text
            files; or texts, mappings with a text field, or `Document`s.
        text_field: the field of each JSON line or mapping that holds the text.
        id_field: the field that holds its id, which may be missing.

    Raises:
        InputError: a file or folder is missing, unreadable or empty of documents, a line is not an object
            with a text (the message names the line), or two documents have the same id.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        if is_folder(path):
            named = _from_folder(path)
        elif path.suffix.lower() in JSON_LINES:
            named = _from_lines(path, text_field, id_field)
        else:
            named = [(str(path), Document(path.name, read_text(path)))]
        if not named:
            raise InputError(f"{path} holds no document")
    else:
        if not isinstance(source, Iterable):
            raise InputError(f"documents are a path, or texts or mappings, not {type(source).__name__}")
        named = _from_values(source, text_field, id_field)
        if not named:
            raise InputError("there is no document to read")
    _refuse_twins(named)
    return [document for _, document in named]


def is_folder(path: Path) -> bool:
    """Whether the path is that of a folder; raises InputError where that cannot be known."""
    try:
        return path.is_dir()
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror}") from None


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, without a byte order mark; raises InputError where it cannot be read."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise InputError(f"{path} is not UTF-8 text (byte {problem.start})") from None
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror}") from None


def _from_folder(folder: Path) -> list[tuple[str, Document]]:
    """The files of a folder, hidden ones left out, as (where, document)."""
    relative = sorted(path.relative_to(folder) for path in _files(folder, ()))
    return [(str(folder / path), Document(path.as_posix(), read_text(folder / path))) for path in relative]


def _files(folder: Path, around: tuple[Path, ...]) -> Iterator[Path]:
    """The files of a folder and of its folders, those that links lead to among them.

    A document that is left out in silence is not missed by anybody, so what cannot be looked at is an error.
    """
    try:
        whole = folder.resolve(strict=True)
        if whole in around:
            raise InputError(f"cannot read {folder}: it leads back to {whole}, which it lies in")
        for path in folder.iterdir():
            if path.name.startswith("."):
                continue
            mode = path.stat().st_mode
            if stat.S_ISDIR(mode):
                yield from _files(path, (*around, whole))
            elif stat.S_ISREG(mode):
                yield path
    except OSError as problem:
        raise InputError(f"cannot read {problem.filename or folder}: {problem.strerror}") from None


def _from_lines(path: Path, text_field: str, id_field: str) -> list[tuple[str, Document]]:
    named: list[tuple[str, Document]] = []
    # Not `splitlines`, which also splits at characters that may stand in a JSON string.
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            where = f"{path} line {number}"
            try:
                value = json.loads(line)
            except ValueError as problem:
                raise InputError(f"{where}: not JSON: {_message(problem)}") from None
            except RecursionError:
                raise InputError(f"{where}: nested too deeply to be read") from None
            named.append((where, _document(value, len(named), where, text_field, id_field)))
    return named


def _from_values(values: Iterable[Any], text_field: str, id_field: str) -> list[tuple[str, Document]]:
    named = []
    for index, value in enumerate(values):
        where = f"document {index}"
        if isinstance(value, str):
            value = {text_field: value}
        elif isinstance(value, Document):
            value = {text_field: value.text, id_field: value.id}
        named.append((where, _document(value, index, where, text_field, id_field)))
    return named


def _document(value: Any, index: int, where: str, text_field: str, id_field: str) -> Document:
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: has to be an object with a field {text_field!r}, not {_kind(value)}")
    if text_field not in value:
        fields = ", ".join(repr(str(name)) for name in value) or "none"
        raise InputError(f"{where}: no field {text_field!r}; its fields: {fields}")
    text = value[text_field]
    if not isinstance(text, str):
        raise InputError(f"{where}: the field {text_field!r} has to be a string, not {_kind(text)}")
    name = value.get(id_field)
    if name is None:
        name = index
    if not isinstance(name, str | int) or isinstance(name, bool):
        wanted = "a string or an integer"
        raise InputError(f"{where}: the field {id_field!r} has to be {wanted}, not {_kind(name)}")
    for field, content in ((text_field, text), (id_field, str(name))):
        try:
            content.encode()
        except UnicodeEncodeError as problem:
            raise InputError(
                f"{where}: the field {field!r} holds half of a surrogate pair (character {problem.start})"
            ) from None
    return Document(name, text)


def _refuse_twins(named: Sequence[tuple[str, Document]]) -> None:
    first: dict[str | int, str] = {}
    for where, document in named:
        if document.id in first:
            raise InputError(f"{where}: the id {document.id!r} is taken by {first[document.id]}")
        first[document.id] = where


def _message(problem: ValueError) -> str:
    if isinstance(problem, json.JSONDecodeError):
        return f"{problem.msg} (column {problem.colno})"
    return str(problem)


def _kind(value: Any) -> str:
    """A value's type, as JSON calls it."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case Mapping():
            return "an object"
    return type(value).__name__
