"""The newest peers in an environment of their own, and a bench that runs there, in one thread on one core.

The environment stands in the user's cache folder and sees everything that is installed here, so that only the
peers and what they need anew are downloaded. What is installed here stays as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sortition.benchmarks.timing import ONE_THREAD
from sortition.integrations.errors import InputError
from sortition.integrations.smollm2 import cache_folder

INSTALLED: Final = "installed"
NEWEST: Final = "newest"
PEERS: Final = (NEWEST, INSTALLED)

ENOUGH_SAID: Final = 400
"""Characters of what pip says about its own failure: the last of them have the reason."""


def run(
    module: str, options: Mapping[str, Any], peers: str, packages: Sequence[str], note: Callable[[str], None]
) -> int:
    """Run a bench in a process of its own, and give its exit code.

    Args:
        module: of the bench; it has a `main`, and calls `entered` when it is run.
        options: of its `main`; paths are written out.
        peers: `INSTALLED` for those that are installed here, `NEWEST` for the newest of the packages.
        note: told what takes long.

    Raises:
        InputError: the newest peers cannot be installed.
    """
    python = Path(sys.executable) if peers == INSTALLED else newest(packages, note)
    command = [str(python), "-m", module, json.dumps(options, default=str)]
    # What `sortition` is imported from; not resolved, as the floors may be links.
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(command, env={**os.environ, **ONE_THREAD, "PYTHONPATH": path}) as bench:
        while True:
            try:
                return bench.wait()
            except KeyboardInterrupt:
                # The bench has been interrupted, too, and shows what it has found so far.
                continue


def newest(packages: Sequence[str], note: Callable[[str], None], folder: Path | None = None) -> Path:
    """The Python of an environment that has the newest of these packages.

    Raises:
        InputError: they cannot be installed.
    """
    kept = (folder or cache_folder()) / "peers"
    environment = kept / hashlib.sha256(f"{sys.prefix} {sys.version}".encode()).hexdigest()[:16]
    python = environment / ("Scripts" if os.name == "nt" else "bin") / "python"
    made = environment / "made"
    note(f"looking for the newest {', '.join(packages)}, for {environment}")
    try:
        # One that was interrupted while it was made has a Python, too, but only half of pip.
        if not made.exists():
            venv.EnvBuilder(with_pip=True, clear=True).create(environment)
            made.touch()
        _see_what_is_here(environment)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--upgrade", *packages]
        # That other packages here want older peers is no trouble: they do not see the new ones.
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
    except (OSError, subprocess.CalledProcessError) as problem:
        raise InputError(f"no environment for the peers in {environment}: {problem}") from None
    if done.returncode:
        said = " ".join(done.stderr.split())[-ENOUGH_SAID:]
        raise InputError(
            f"the newest peers cannot be installed; --peers {INSTALLED} takes those here: {said}"
        )
    return python


def entered(main: Callable[..., int]) -> None:
    """Run a bench by the one argument of its module, its options, and exit with its code."""
    sys.exit(main(**json.loads(sys.argv[1])))


def _see_what_is_here(environment: Path) -> None:
    """Let the environment find, after its own packages, those of this process."""
    own = next(environment.glob("[Ll]ib/**/site-packages"))
    here = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    lines = [f"import site; site.addsitedir({path!r})\n" for path in here if Path(path) != own]
    (own / "here.pth").write_text("".join(lines), encoding="utf-8")
