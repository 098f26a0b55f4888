"""Fixtures that several files use."""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest
import triton_on_cpu

# How long an example takes says more of what else the machine does than of us.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

if os.environ.get("TRITON_INTERPRET") == "1":
    triton_on_cpu.patch_once()


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """One thread: two wait for each other longer than they save wherever the machine has other work."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def compiled() -> None:
    """The sampler's compiled loops are there, so that the backend "cpu" is not the reference."""
    from sortition.sampling import cpu, verify_cpu

    for loops in (cpu.LOOPS, verify_cpu.LOOPS):
        loops.load()
        assert loops.ready
