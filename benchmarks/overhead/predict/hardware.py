"""What makers print about their devices: `hardware.json`, with the source of each figure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sortition.integrations.errors import InputError

FILE: Final = Path(__file__).with_name("hardware.json")


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device by its specification.

    Attributes:
        memory: bytes.
        bandwidth: bytes a second.
        operations: floating-point operations a second in dense matrix products, by dtype.
        source: where the maker prints the figures.
        url: a public page on which they were compared with them.
    """

    name: str
    memory: float
    bandwidth: float
    operations: Mapping[str, float]
    source: str
    url: str


def devices() -> list[Hardware]:
    """All that the file knows."""
    found = json.loads(FILE.read_text(encoding="utf-8"))["devices"]
    return [Hardware(**device) for device in found]


def device(name: str) -> Hardware:
    """The device whose name has these words in it.

    Raises:
        InputError: there is none, or several.
    """
    known = devices()
    words = set(name.lower().split())
    found = [each for each in known if words <= set(each.name.lower().split())]
    if len(found) != 1:
        which = ", ".join(each.name for each in found or known)
        raise InputError(f"{name!r} is {'several' if found else 'none'} of the known devices: {which}")
    return found[0]
