"""The direction of imports: grammars <- sampling <- integrations <- benchmarks <- the door, never upward."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = ("grammars", "sampling", "integrations", "benchmarks")
DOOR = "src/sortition"

THIRD_PARTIES = {
    # What each floor may import besides itself, those below and the standard library.
    "grammars": {"numpy", "numba", "regex", "referencing"},
    "sampling": {"numpy", "torch", "triton", "numba"},
}

FRAMEWORKS = {"hf", "smollm2", "tokenizers", "vllm"}
"""Files of integrations whose names begin with one of these are about it; the others serve them all."""


def files() -> list[Path]:
    folders = [ROOT / floor for floor in FLOORS]
    return sorted(
        [*(ROOT / DOOR).glob("*.py"), *(path for folder in folders for path in folder.rglob("*.py"))]
    )


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every module that a file imports, anywhere in it, and the line."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            assert node.module is not None
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                floor_file = ROOT / Path(*module.split(".")[1:])
                is_module = module.startswith("sortition.") and (
                    floor_file.is_dir() or floor_file.with_suffix(".py").exists()
                )
                yield node.lineno, module if is_module else node.module


def floor_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


@pytest.mark.parametrize("path", files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_go_down(path: Path) -> None:
    floor = floor_of(path)
    allowed = FLOORS if floor == "src" else FLOORS[: FLOORS.index(floor) + 1]
    for line, module in imports(path):
        where = f"{path.relative_to(ROOT)}:{line}: {module}"
        package, *rest = module.split(".")
        assert package not in FLOORS, f"{where}: the floors are imported through sortition"
        if package == "sortition":
            if floor == "src":
                continue
            assert rest, f"{where}: the door is above every floor"
            assert rest[0] in allowed, f"{where}: upward"
            if floor == rest[0] == "integrations" and len(rest) > 1:
                frameworks = (path.stem.split("_")[0], rest[1].split("_")[0])
                sideways = set(frameworks) <= FRAMEWORKS and len(set(frameworks)) == 2
                assert not sideways, f"{where}: sideways"
        elif floor in THIRD_PARTIES:
            known = package in THIRD_PARTIES[floor] or is_standard(package)
            assert known, f"{where}: not for this floor"


def is_standard(package: str) -> bool:
    return package in sys.stdlib_module_names


def test_every_floor_is_linked_into_the_door() -> None:
    for floor in FLOORS:
        assert (ROOT / DOOR / floor).resolve() == ROOT / floor


@pytest.mark.parametrize("framework", sorted(FRAMEWORKS))
def test_every_framework_has_a_file_of_its_name(framework: str) -> None:
    assert (ROOT / "integrations" / f"{framework}.py").exists()
