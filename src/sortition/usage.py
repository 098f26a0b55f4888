"""What the commands have in common: exit codes, and errors in one line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import typer
from rich.console import Console

from sortition.grammars.errors import GrammarError
from sortition.integrations.errors import InputError

NOT_ALL: Final = 1
"""The work is done, but some of it did not succeed."""
UNUSABLE: Final = 2
"""Something that was given cannot be used."""
FAULT: Final = 3
"""A fault of the program."""
INTERRUPTED: Final = 130
"""What shells expect after Ctrl-C."""


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """While entered, what the user gave and cannot be used is said in one line, and ends the program."""
    try:
        yield
    except (GrammarError, InputError) as problem:
        typer.echo(f"error: {problem}", err=True)
        raise typer.Exit(UNUSABLE) from None


def notes(quiet: bool = False) -> Callable[[str], None]:
    """What shows notes on the way, on standard error; if `quiet`, it shows none."""
    console = Console(stderr=True, quiet=quiet)

    def show(note: str) -> None:
        console.print(note, style="dim")

    return show


def quiet_transformers() -> None:
    """Keep the library's notes and bars off the screen, unless the user wants them."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
