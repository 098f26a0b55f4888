"""What a command was given, looked at before it loads and measures anything."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import typer

from sortition.integrations.errors import InputError


def refuse_idle(command: typer.Context, idle: Mapping[str, str]) -> None:
    """Refuse options that would do nothing, which who gives them does not expect.

    Args:
        command: as it was called.
        idle: by the name of a parameter that does nothing here, where it does something.
    """
    for name, place in idle.items():
        source = command.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise InputError(f"--{name.replace('_', '-')} is {place}")


def check_choices(option: str, given: Iterable[str], choices: Collection[str]) -> None:
    """Raises InputError for what an option cannot be."""
    for each in given:
        if each not in choices:
            raise InputError(f"{option} is one of {', '.join(map(repr, choices))}, not {each!r}")


def check_writable(path: Path) -> None:
    """Raises InputError, before all the work, if a file could not be written after it."""
    try:
        if path.is_dir():
            raise InputError(f"cannot write {path}: it is a folder")
        if not path.parent.is_dir():
            raise InputError(f"cannot write {path}: there is no folder {path.parent}")
        new = not path.exists()
        path.open("a").close()
        if new:
            path.unlink()
    except OSError as problem:
        raise InputError(f"cannot write {path}: {problem.strerror}") from None


def write_report(path: Path, text: str) -> None:
    """Write what was measured; raises InputError if that does not work any more."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise InputError(f"cannot write {path}: {problem.strerror}") from None
