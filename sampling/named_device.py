"""The devices that users name."""

from __future__ import annotations

import torch


def named_device(name: torch.device | str) -> torch.device:
    """The device of that name.

    Raises:
        ValueError: it is no name of one, or this machine (with this torch) does not have it.
    """
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise _missing(name) from None
    # "meta" is a device without numbers, for dry runs.
    if device.type in ("cpu", "meta"):
        return device
    if not any(device in (each, torch.device(each.type)) for each in _accelerators()):
        raise _missing(name)
    return device


def _accelerators() -> list[torch.device]:
    """Those that this machine has, each with its number."""
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if kind is None:
        return []
    return [torch.device(kind.type, index) for index in range(torch.accelerator.device_count())]


def _missing(name: object) -> ValueError:
    shown = repr(name) if isinstance(name, str) else str(name)
    there = ", ".join(map(str, ["cpu", *_accelerators()]))
    return ValueError(f"there is no device {shown} for torch on this machine; there is: {there}")
