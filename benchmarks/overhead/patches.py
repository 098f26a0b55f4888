"""Attributes that are replaced for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def patched(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Let an attribute be what is made of it, until the end of the block.

    Args:
        owner: an object, a class or a module.
        name: of its attribute, which may be inherited.
        make: gets the attribute's value and gives the new one.
    """
    own = name in vars(owner)
    # A class keeps descriptors, which reading the attribute would unwrap.
    kept = vars(owner).get(name)
    setattr(owner, name, make(getattr(owner, name)))
    try:
        yield
    finally:
        if own:
            setattr(owner, name, kept)
        else:
            delattr(owner, name)


class Patches(ExitStack):
    """Several of them, undone together."""

    def patch(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """See `patched`."""
        self.enter_context(patched(owner, name, make))
