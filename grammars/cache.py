"""Results that are kept for whoever asks for the same again: bounded, and shared by all threads."""

from __future__ import annotations

import hashlib
import marshal
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, Final, Generic, TypeVar

Value = TypeVar("Value")

_WITHOUT_REFERENCES: Final = 2
"""The last version of `marshal` in which equal values are equal bytes, whoever else holds parts of them."""


def content_digest(*parts: Any) -> bytes | None:
    """What stands for plain values as keys of a cache; None for what is not plain, or too deep.

    Values of different types are told apart (1, 1.0 and True; lists and tuples), and so are orders of keys.
    """
    try:
        return hashlib.sha256(marshal.dumps(parts, _WITHOUT_REFERENCES)).digest()
    except ValueError:
        return None


class Cache(Generic[Value]):
    """Values by key. Those that nobody asked for the longest are dropped first. Safe to share by threads.

    Args:
        limit: what all values together may weigh.
        weigh: the weight of a value.
    """

    def __init__(self, limit: int, weigh: Callable[[Value], int]) -> None:
        self._limit = limit
        self._weigh = weigh
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._weight = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._values)

    def find(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of a key, made if it is not there; what `make` raises is raised.

        Two threads that miss the same key at once both make it, and neither waits for the other.
        """
        with self._lock:
            known = self._values.get(key)
            if known is not None:
                self._values.move_to_end(key)
                return known[0]
        value = make()
        weight = self._weigh(value)
        with self._lock:
            if key not in self._values and weight <= self._limit:
                self._values[key] = value, weight
                self._weight += weight
                while self._weight > self._limit:
                    _, (_, dropped) = self._values.popitem(last=False)
                    self._weight -= dropped
        return value

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._values.clear()
            self._weight = 0
