"""What a probe has found so far, kept on disk so that one that was interrupted goes on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sortition.benchmarks.probe.findings import Tested, read
from sortition.integrations.errors import InputError


class Ledger:
    """Conditions that are done, one a line, after a line that says of what.

    Args:
        path: the file; None keeps nothing.

    Raises:
        InputError: from `open` and `put`, where the file cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._done: dict[str, Tested] = {}

    def open(self, of: Any) -> None:
        """Read what is there, if it is of the same probe; otherwise begin anew.

        Args:
            of: everything on which results depend, as plain JSON values: target, options, prompts, reference.
        """
        if self._path is None:
            return
        header = hashlib.blake2b(json.dumps(of, sort_keys=True).encode(), digest_size=16).hexdigest()
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.is_file() else []
        except UnicodeDecodeError:
            lines = []
        if lines[:1] == [header]:
            for line in lines[1:]:
                tested = _tested(line)
                if tested is not None:
                    self._done[tested.name] = tested
        text = "".join(_line(tested) for tested in self._done.values())
        self._write("w", f"{header}\n{text}")

    def get(self, name: str) -> Tested | None:
        """What came of a condition, if it is done."""
        return self._done.get(name)

    def put(self, tested: Tested) -> None:
        """A condition is done; errors are not kept, so that they are tried again."""
        if tested.status != "error":
            self._write("a", _line(tested))

    def _write(self, mode: str, text: str) -> None:
        if self._path is None:
            return
        try:
            with self._path.open(mode, encoding="utf-8") as file:
                file.write(text)
        except OSError as problem:
            raise InputError(f"cannot write {self._path}: {problem.strerror}") from None


def _line(tested: Tested) -> str:
    return json.dumps(asdict(tested), allow_nan=False) + "\n"


def _tested(line: str) -> Tested | None:
    """A line; None if it was cut off when the probe was killed."""
    try:
        tested: Tested = read(Tested, json.loads(line))
    except ValueError:
        return None
    return tested
