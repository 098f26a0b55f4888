"""Compiled loops that take over as soon as they can be had without anybody waiting for them.

Importing numba takes about a second and compiling takes from ten seconds to a minute, while there is always a
slower way to the same result. So when loops are first wanted, a thread imports them; if they are not in
numba's cache on disk yet, a process of its own compiles them into it, which happens once per installation.
``SORTITION_NUMBA=0`` in the environment turns all this off.
"""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

if sys.platform != "win32":
    import fcntl

SWITCH: Final = "SORTITION_NUMBA"
"""Environment variable; ``0`` turns acceleration off."""

PATIENCE: Final = 1.0
"""Seconds after the first wish: a process that is over by then never pays for importing numba."""

_leaving = threading.Event()


class Background:
    """Loops of one kind.

    Args:
        module: what to run (``python -m``) to have them compiled into numba's cache.
        cached: whether that cache has them as they are in their files; imports numba.
        load: takes them from the cache; after that nothing ever compiles.

    Attributes:
        ready: whether they may be used.
    """

    def __init__(self, module: str, cached: Callable[[], bool], load: Callable[[], None]) -> None:
        self._module = module
        self._cached = cached
        self._load = load
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.ready = False

    def start(self) -> None:
        """Begin to get them, once per process; returns at once."""
        # A frozen application is its own interpreter: starting that would start the application again.
        if self._thread or os.environ.get(SWITCH) == "0" or getattr(sys, "frozen", False):
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._module, daemon=True)
                self._thread.start()
                atexit.register(self._leave)

    def load(self) -> None:
        """Have them now, compiled here if need be."""
        self._load()
        self.ready = True

    def compile(self) -> None:
        """Have them in numba's cache; of several processes that want this at once, one does it.

        For a process that does nothing else: whoever waits for it has better things to do with the cores.
        """
        if hasattr(os, "nice"):
            os.nice(10)
        with _alone(self._module):
            if not self._cached():
                self._load()

    def _run(self) -> None:
        if _leaving.wait(PATIENCE):
            return
        try:
            if self._cached() or self._compiled_elsewhere():
                self.load()
        except Exception:  # numba may be missing, too old for this Python or without a place for its cache
            logging.getLogger(__name__).debug("going on without %s", self._module, exc_info=True)

    def _compiled_elsewhere(self) -> bool:
        """Whether another process has compiled the loops; should this one end first, that one goes on."""
        process = subprocess.Popen(
            [sys.executable, "-m", self._module],
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

    def _leave(self) -> None:
        """Let the thread come to its next question before the interpreter goes away under it."""
        _leaving.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Wait until no other process of this user is in here by this name, where files can be locked."""
    if sys.platform == "win32":
        yield
    else:
        with Path(tempfile.gettempdir(), f"{name}.{os.getuid()}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
