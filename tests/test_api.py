"""The public names and their signatures, held against a committed text."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import sortition

COMMITTED = Path(__file__).parent / "cases" / "api.txt"


def described(name: str) -> str:
    """A public name on one line: a function's parameters, a class's public members."""
    value = getattr(sortition, name)
    if inspect.isclass(value):
        if issubclass(value, Exception):
            return f"{name}: {' < '.join(kind.__name__ for kind in value.__mro__[:-3])}"
        members = sorted(member for member in dir(value) if not member.startswith("_"))
        return f"{name}: {' '.join(members)}"
    if callable(value):
        signature = inspect.signature(value)
        bare = [
            parameter.replace(annotation=inspect.Parameter.empty)
            for parameter in signature.parameters.values()
        ]
        return f"{name}{signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)}"
    return f"{name}: {type(value).__name__}"


def test_the_public_names_are_those_that_were_agreed() -> None:
    """A change here is a change for users: the changelog has to tell it."""
    now = "".join(f"{described(name)}\n" for name in sorted(sortition.__all__))
    assert now == COMMITTED.read_text()


def test_names_are_listed_and_kept() -> None:
    assert set(sortition.__all__) <= set(dir(sortition))
    assert sortition.json_schema is sortition.json_schema
    with pytest.raises(AttributeError, match="no attribute 'json_shema'"):
        _ = sortition.json_shema


def test_the_version_is_that_of_the_package() -> None:
    assert (
        f'version = "{sortition.__version__}"'
        in (Path(__file__).parent.parent / "pyproject.toml").read_text()
    )


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import sortition", "torch numba transformers tokenizers numpy typer rich"),
        ("import sortition; sortition.GrammarError", "torch numba transformers tokenizers numpy"),
        ("import sortition; sortition.json_schema; sortition.Matcher", "torch numba transformers tokenizers"),
        ("import sortition; sortition.extract", "torch numba transformers tokenizers jsonschema"),
        ("import sortition; sortition.Parameters", "torch numba transformers tokenizers"),
        ("import sortition.cli", "torch numba transformers tokenizers numpy"),
    ],
)
def test_importing_loads_nothing_heavy(statement: str, absent: str) -> None:
    script = f"{statement}; import sys; print(*sorted(set({absent.split()!r}) & set(sys.modules)))"
    source = Path(__file__).parent.parent / "src"
    found = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == []
