"""The output of a job: one record a line, appended, so that a killed run goes on where it stopped.

Beside ``out.jsonl`` stands ``out.jsonl.run``, which says what the records were made from. A run with other
settings, or over other documents, does not continue them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any, Literal, Self, TypeAlias

from sortition.integrations.documents import Document
from sortition.integrations.errors import InputError

try:
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]  # Windows: two runs into one file are not noticed there.

Status: TypeAlias = Literal["ok", "truncated", "invalid", "error"]


@dataclass(frozen=True, slots=True)
class Record:
    """What became of one document.

    Attributes:
        id: the document's id.
        index: its place in the input, from 0.
        value: the extracted value where `status` is ``"ok"``, else None.
        text: what the model wrote where that is not a valid value, else None.
        status: ``"ok"`` (valid by the schema), ``"truncated"`` (the token limit came first), ``"invalid"`` or
            ``"error"`` (nothing was generated).
        error: why it is not ok, else None.
        prompt_tokens: tokens of the prompt.
        completion_tokens: tokens that the model wrote, its end token included.
        seconds: this document's share of the time of its batch.
    """

    id: str | int
    index: int
    value: Any
    text: str | None
    status: Status
    error: str | None
    prompt_tokens: int
    completion_tokens: int
    seconds: float

    def line(self) -> bytes:
        """The record as one line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Self:
        """The record of a line; raises ValueError for anything else."""
        value = json.loads(line)
        if not isinstance(value, dict) or set(value) != {field.name for field in fields(cls)}:
            raise ValueError("not a record")
        return cls(**value)


class Journal:
    """The records of one job in a file; use it in a ``with`` statement.

    Attributes:
        done: the records that were there already, those of the first documents.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        documents: Sequence[Document],
        *,
        overwrite: bool = False,
    ) -> None:
        """Open or create the file, and cut off a last line that a killed run left unfinished.

        Args:
            path: the output file. Its folder has to exist.
            settings: everything that decides what the records say, as JSON values.
            documents: the documents of the job, in order.
            overwrite: drop what the file holds instead of continuing it.

        Raises:
            InputError: the file holds something else, was begun with other settings or documents, or is
                being written by another run.
        """
        self.path = path
        self.done: list[Record] = []
        try:
            if path.exists() and not path.is_file():
                raise InputError(f"cannot write {path}: it is not a regular file")
            # Created where missing, never truncated: what is there may be a run to go on with.
            self._file: IO[bytes] = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        except OSError as problem:
            raise InputError(f"cannot write {path}: {problem.strerror}") from None
        try:
            self._lock()
            if overwrite:
                self._file.truncate(0)
            self._resume(settings, documents)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # What could not be flushed was reported by `append`; closing would try it again.
        with suppress(OSError):
            self._file.close()

    def append(self, record: Record) -> None:
        """Add a record. Once this returns it outlives the process."""
        try:
            self._file.write(record.line())
            self._file.flush()
        except OSError as problem:
            raise InputError(f"cannot write {self.path}: {problem.strerror}") from None

    def _lock(self) -> None:
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(f"another run is writing {self.path}") from None

    def _resume(self, settings: Mapping[str, Any], documents: Sequence[Document]) -> None:
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]
        sidecar = self.path.with_name(self.path.name + ".run")
        # A file without a whole record in it is a new one, whatever an earlier run wanted.
        if whole or (content and not sidecar.exists()):
            self._compare(sidecar, settings, documents)
            for index, line in enumerate(whole.split(b"\n")[:-1]):
                self.done.append(self._checked(line, index, documents))
        _replace(sidecar, {"settings": settings, "documents": len(documents), "digest": _digest(documents)})
        self._file.seek(len(whole))
        self._file.truncate()

    def _compare(self, sidecar: Path, settings: Mapping[str, Any], documents: Sequence[Document]) -> None:
        way_out = "choose another output file, or overwrite this one (--overwrite)"
        try:
            begun = json.loads(sidecar.read_bytes())
            count, digest, old = int(begun["documents"]), begun["digest"], dict(begun["settings"])
        except FileNotFoundError:
            raise InputError(
                f"{self.path} holds something else than records of a run, "
                f"or {sidecar.name} is gone from beside it; {way_out}"
            ) from None
        except OSError as problem:
            raise InputError(f"cannot read {sidecar}: {problem.strerror}") from None
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{sidecar} cannot be read, so that the run cannot go on; {way_out}") from None
        changed = [
            f"{name} was {_short(old.get(name))}, now {_short(settings.get(name))}"
            for name in {**old, **settings}
            if old.get(name) != settings.get(name)
        ]
        if changed:
            raise InputError(f"{self.path} was begun with other settings ({'; '.join(changed)}); {way_out}")
        # Documents may be added at the end, but those that the run was begun with have to be the same.
        if count > len(documents) or digest != _digest(documents[:count]):
            raise InputError(f"{self.path} was begun with other documents; {way_out}")

    def _checked(self, line: bytes, index: int, documents: Sequence[Document]) -> Record:
        where = f"{self.path} line {index + 1}"
        try:
            record = Record.read(line)
        except ValueError:
            raise InputError(
                f"{where}: not a record of this run; overwrite the file (--overwrite) to start anew"
            ) from None
        if index >= len(documents) or (record.index, record.id) != (index, documents[index].id):
            raise InputError(
                f"{where}: not the record of document {index}; overwrite the file (--overwrite) to start anew"
            )
        return record


def _digest(documents: Sequence[Document]) -> str:
    digest = hashlib.sha256()
    for document in documents:
        digest.update(json.dumps([document.id, document.text]).encode())
    return digest.hexdigest()


def _replace(path: Path, value: Any) -> None:
    """Write a file whole or not at all."""
    draft = path.with_name(path.name + ".new")
    try:
        with draft.open("w") as file:
            json.dump(value, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as problem:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {problem.strerror}") from None


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    # Digests are 64 characters; their start tells them apart.
    return text if len(text) <= 48 else f"{text[:12]}..."
