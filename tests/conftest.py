"""Fixtures that several files use."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def compiled() -> None:
    """The sampler's compiled loops are there, so that the backend "cpu" is not the reference."""
    from sortition.sampling import cpu, verify_cpu

    for loops in (cpu.LOOPS, verify_cpu.LOOPS):
        loops.load()
        assert loops.ready
