"""The compiled loops of the `*_jit.py` files beside this one, once they are there; see `background.py`.

The first table of a process is built without them. They build the same machine three times as fast and find
the same maps twice as fast.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from sortition.grammars.background import Background

_MODULES: Final = (
    "compose_jit", "liveness_jit", "machine_jit", "masking_jit", "partition_jit", "reader_jit", "subsets_jit",
    "table_jit",
)  # fmt: skip
"""Where the loops are: each has `LOOPS`, with the types they are compiled for, and what it `REPLACES`."""

Definition = TypeVar("Definition", bound=Callable[..., Any])

_loaded: dict[Callable[..., Any], Any] = {}


def best(definition: Definition) -> Definition:
    """What does the same as this function or class, and is the fastest at hand."""
    found: Definition = _loaded.get(definition, definition)
    return found


def _modules() -> list[Any]:
    return [importlib.import_module(f"sortition.grammars.{name}") for name in _MODULES]


def _cached() -> bool:
    """Whether numba's cache has all loops as they are in their files."""
    return all(map(_is_cached, _modules()))


def _is_cached(module: Any) -> bool:
    source = Path(module.__file__)
    written = source.stat().st_mtime
    for loop in module.LOOPS:
        name = f"{source.stem}.{loop.py_func.__name__}-*.nbi"
        if all(index.stat().st_mtime < written for index in Path(loop.stats.cache_path).glob(name)):
            return False
    return True


def _load() -> None:
    for module in _modules():
        for loop, signature in module.LOOPS.items():
            loop.compile(signature)
            loop.disable_compile()
    for module in _modules():
        _loaded.update(module.REPLACES)


LOOPS: Final = Background("sortition.grammars.accelerate", _cached, _load)
"""All of them."""

if __name__ == "__main__":
    LOOPS.compile()
