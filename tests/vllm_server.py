"""vLLM's OpenAI server as a process of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from vllm_reports import LONGEST, environment
from vllm_scenarios import PROCESSOR


@contextmanager
def serve(model: Path, folder: Path, **options: str) -> Iterator[str]:
    """The URL of a server with the processor, while it runs; its log is in the folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    defaults = {
        "model": str(model),
        "host": "127.0.0.1",
        "port": str(port),
        "max_num_seqs": "4",
        "dtype": "float32",
        "logits_processors": PROCESSOR,
    }
    for name, value in {**defaults, **options}.items():
        # An option without a value is a flag.
        words += ["--" + name.replace("_", "-"), *([value] if value else [])]
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            words,
            env={**environment(), "VLLM_USE_V2_MODEL_RUNNER": "0"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _await_health(url, process, log)
            yield url
        finally:
            process.terminate()
            process.wait(30)


def _await_health(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + LONGEST
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()[-5000:]
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    pytest.fail("the server did not start")
