"""The compiled loops of `compose_jit.py`, as soon as they can be had without anybody waiting for them.

The first table of a process is always built by numpy, and importing numba or compiling takes longer than most
tables. So after it a thread imports numba; if the loops are not in its cache on disk yet, a process of its
own compiles them into it, which happens once per installation; later tables use them. They find the same
maps about twice as fast, which makes a whole table 1.4 times as fast. ``SORTITION_NUMBA=0`` in the
environment turns all this off.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import subprocess
import sys
import threading
from typing import Final

from sortition.grammars.compose import Composer

SWITCH: Final = "SORTITION_NUMBA"
"""Environment variable; ``0`` turns acceleration off."""

PATIENCE: Final = 1.0
"""Seconds after the first table: a process that is over by then never pays for importing numba."""

_leaving = threading.Event()
_loaded: list[type[Composer]] = []
_thread: threading.Thread | None = None


def composer() -> type[Composer]:
    """The fastest kind of composer at hand."""
    return _loaded[0] if _loaded else Composer


def start() -> None:
    """Begin to get the compiled loops, once per process; returns at once."""
    global _thread
    # A frozen application is its own interpreter: starting that would start the application again.
    if _thread is None and os.environ.get(SWITCH) != "0" and not getattr(sys, "frozen", False):
        _thread = threading.Thread(target=_load, name="sortition-numba", daemon=True)
        _thread.start()
        atexit.register(_leave)


def _load() -> None:
    if _leaving.wait(PATIENCE):
        return
    try:
        loops = importlib.import_module("sortition.grammars.compose_jit")
        if loops.cached() or _compiled_elsewhere():
            loops.load()
            _loaded.append(loops.FastComposer)
    except Exception:  # numba may be missing, too old for this Python or without a place for its cache
        logging.getLogger(__name__).debug("composing goes on without numba", exc_info=True)


def _compiled_elsewhere() -> bool:
    """Whether another process has compiled the loops; should this one end first, that one goes on."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sortition.grammars.compose_jit"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while process.poll() is None:
        if _leaving.wait(0.2):
            # Popen objects warn when they are dropped before their process has ended. This one may be.
            process.returncode = 0
    return process.returncode == 0 and not _leaving.is_set()


def _leave() -> None:
    """Let the thread come to its next question before the interpreter goes away under it."""
    _leaving.set()
    if _thread is not None:
        _thread.join(timeout=5.0)
