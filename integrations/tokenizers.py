"""Tokenizers of every kind -> the bytes of their tokens, as they decode in the middle of a text.

A tokenizer decodes token by token exactly if each step of its decoder looks at one token only. The steps are
read from the decoder's own description, never guessed from names, and those that look further are refused.
What is read is then checked against the tokenizer's own decoding, all tokens of it.

No tokenizer library is imported here: an object is recognised by the names of its classes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeAlias

Reading: TypeAlias = tuple[list[bytes], list[int]]
"""The bytes of every token (``b""``: never part of a text), and the end tokens that the tokenizer names."""

WORD_START = "\u2581"
"""What SentencePiece writes for a space."""

BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""How byte fallback spells one byte."""


def read(source: Any) -> Reading:
    """Read a tokenizer's tokens and end tokens; raises TypeError for objects of an unknown kind."""
    for kind in type(source).__mro__:
        adapter = ADAPTERS.get((kind.__module__.partition(".")[0], kind.__name__))
        if adapter is not None:
            return adapter(source)
    accepted = ", ".join(sorted({f"{package}.{name}" for package, name in ADAPTERS}))
    raise TypeError(
        f"cannot read a vocabulary from {type(source).__name__}; accepted are a list of bytes by token id, "
        f"the path of a tokenizer's folder, and {accepted} (of a slow transformers tokenizer that is none of "
        "these, load the fast version)"
    )


def _read_transformers(tokenizer: Any) -> Reading:
    tokens = read_backend(tokenizer.backend_tokenizer, tokenizer.all_special_ids)
    return tokens, ids(tokenizer.eos_token_id)


def _read_tokenizers(tokenizer: Any) -> Reading:
    return read_backend(tokenizer, ()), []


def _read_transformers_sentencepiece(tokenizer: Any) -> Reading:
    """Slow tokenizers; those of fairseq heritage shift ids, so pieces are found by their text."""
    model = tokenizer.sp_model
    by_piece = {model.id_to_piece(piece): text for piece, text in enumerate(_read_pieces(model))}
    tokens = [
        by_piece.get(piece, b"") for piece in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    ]
    for token, added in tokenizer.added_tokens_decoder.items():
        tokens[token] = b"" if added.special else added.content.encode()
    for token in tokenizer.all_special_ids:
        tokens[token] = b""
    return tokens, ids(tokenizer.eos_token_id)


def _read_transformers_mistral(tokenizer: Any) -> Reading:
    return _read_mistral(tokenizer.tokenizer)


def _read_mistral(tokenizer: Any) -> Reading:
    return read(tokenizer.instruct_tokenizer.tokenizer)


def _read_mistral_sentencepiece(tokenizer: Any) -> Reading:
    return _read_sentencepiece(tokenizer._model)


def _read_tekken(tokenizer: Any) -> Reading:
    specials = tokenizer.num_special_tokens
    texts = (tokenizer.id_to_byte_piece(token) for token in range(specials, tokenizer.n_words))
    return [b""] * specials + list(texts), [tokenizer.eos_id]


def _read_tiktoken(encoding: Any) -> Reading:
    tokens = [b""] * encoding.n_vocab
    for token in range(encoding.n_vocab):
        try:
            tokens[token] = encoding.decode_single_token_bytes(token)
        except KeyError:
            # Encodings leave gaps between their last text token and their specials.
            continue
    for special in encoding.special_tokens_set:
        tokens[encoding.encode_single_token(special)] = b""
    ends = [encoding.eot_token] if "<|endoftext|>" in encoding.special_tokens_set else []
    return tokens, ends


def _read_sentencepiece(model: Any) -> Reading:
    return _read_pieces(model), [model.eos_id()] if model.eos_id() >= 0 else []


def _read_pieces(model: Any) -> list[bytes]:
    def text_of(piece: int) -> bytes:
        text: str = model.id_to_piece(piece)
        if model.is_byte(piece):
            return bytes([int(text[3:5], 16)])
        if model.is_control(piece) or model.is_unknown(piece) or model.is_unused(piece):
            return b""
        return text.replace(WORD_START, " ").encode()

    return [text_of(piece) for piece in range(model.get_piece_size())]


def ids(named: int | Iterable[int] | None) -> list[int]:
    """One id, several or none, as configurations name them."""
    if named is None:
        return []
    return [named] if isinstance(named, int) else list(named)


def read_backend(backend: Any, specials: Collection[int]) -> list[bytes]:
    """The tokens of a `tokenizers.Tokenizer`.

    Its added tokens pass through the decoder like all others, and so they do here.
    """
    if backend.decoder is None:
        raise ValueError("this tokenizer has no decoder, so its tokens stand for no definite text")
    text_of = _decoding(json.loads(backend.decoder.__getstate__()))
    never = {token for token, added in backend.get_added_tokens_decoder().items() if added.special}
    never.update(specials, _unknown(backend))
    size = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
    pieces = [backend.id_to_token(token) for token in range(size)]
    tokens = [
        b"" if piece is None or token in never else text_of(piece) for token, piece in enumerate(pieces)
    ]
    _check(backend, tokens)
    return tokens


def _unknown(backend: Any) -> list[int]:
    """The token for what cannot be spelled, which stands for no text."""
    model = backend.model
    if type(model).__name__ == "Unigram":
        # Its bindings show no attribute for it, only the description does.
        return ids(json.loads(model.__getstate__())["unk_id"])
    unknown = getattr(model, "unk_token", None)
    return [] if unknown is None else ids(backend.token_to_id(unknown))


def _decoding(decoder: dict[str, Any]) -> Callable[[str], bytes]:
    """What the steps of a decoder make of one token in the middle of a text.

    A text step maps text to text, the byte step (byte level or byte fallback; else UTF-8) text to bytes. What
    follows a step that joins the tokens sees the whole text: there only its start may be touched.
    """
    text_steps: list[Callable[[str], str]] = []
    byte_step: Callable[[str], bytes] | None = None
    joined = False
    for step in decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]:
        match step:
            case {"type": "Fuse"}:
                joined = True
            case {"type": "Strip", "stop": 0} if joined:
                pass
            case {"type": "ByteFallback"} if byte_step is None and not joined:
                byte_step = _byte_fallback
            case {"type": "ByteLevel"} if byte_step is None and not joined:
                byte_step, joined = _byte_level, True
            case {"type": "Replace", "pattern": {"String": old}, "content": new} if (
                byte_step is None and not joined
            ):
                text_steps.append(_replacing(old, new))
            case {"type": "Metaspace", "replacement": old} if byte_step is None and not joined:
                text_steps.append(_replacing(old, " "))
            case _:
                raise ValueError(
                    f"this tokenizer's decoder has a step {step} that does not decode every token by itself, "
                    "so that its tokens stand for no definite bytes"
                )

    def text_of(piece: str) -> bytes:
        for change in text_steps:
            piece = change(piece)
        return piece.encode() if byte_step is None else byte_step(piece)

    return text_of


def _replacing(old: str, new: str) -> Callable[[str], str]:
    return lambda piece: piece.replace(old, new)


def _byte_fallback(piece: str) -> bytes:
    spelled = BYTE_PIECE.fullmatch(piece)
    return bytes([int(spelled[1], 16)]) if spelled else piece.encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's characters for bytes: the printable Latin-1 ones are themselves, the rest follow from U+0100.

    As in `bytes_to_unicode` of its encoder.py.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


BYTE_ALPHABET = _byte_alphabet()


def _byte_level(piece: str) -> bytes:
    """One character is one byte; a piece with any character that is not of the alphabet is plain text."""
    try:
        return bytes([BYTE_ALPHABET[character] for character in piece])
    except KeyError:
        return piece.encode()


SPELLED = "é€\U0001f600"
"""Characters of two, three and four bytes."""


def _check(backend: Any, tokens: list[bytes]) -> None:
    """Hold `tokens` against the backend's own decoding: every token that is UTF-8 by itself, and characters
    spelled byte by byte; raises ValueError with the first token that decodes to something else."""
    texts = {token: text for token, data in enumerate(tokens) if data and (text := _utf8(data)) is not None}
    # Decoders treat the start of a text in their own way; this token takes the start.
    first = next((token for token, text in texts.items() if not text[0].isspace()), None)
    if first is None:
        return
    before = backend.decode([first], skip_special_tokens=False)
    by_byte = {data: token for token, data in enumerate(tokens) if len(data) == 1}
    spelling = [by_byte.get(bytes([byte])) for byte in SPELLED.encode()]
    expected = before + "".join(texts.values())
    sequence: list[Any] = [first, *texts]
    if None not in spelling:
        expected += SPELLED
        sequence += spelling
    if backend.decode(sequence, skip_special_tokens=False) == expected:
        return
    for token, text in texts.items():
        decoded = backend.decode([first, token], skip_special_tokens=False)
        if decoded != before + text:
            raise ValueError(
                f"this tokenizer decodes token {token} ({backend.id_to_token(token)!r}) after {before!r} to "
                f"{decoded!r}, where its decoder's description says {before + text!r}"
            )
    raise ValueError("this tokenizer decodes a sequence of tokens to something else than its tokens joined")


def _utf8(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


ADAPTERS: dict[tuple[str, str], Callable[[Any], Reading]] = {
    ("transformers", "TokenizersBackend"): _read_transformers,
    ("transformers", "SentencePieceBackend"): _read_transformers_sentencepiece,
    ("transformers", "MistralCommonBackend"): _read_transformers_mistral,
    ("tokenizers", "Tokenizer"): _read_tokenizers,
    ("tiktoken", "Encoding"): _read_tiktoken,
    ("sentencepiece", "SentencePieceProcessor"): _read_sentencepiece,
    ("mistral_common", "MistralTokenizer"): _read_mistral,
    ("mistral_common", "Tekkenizer"): _read_tekken,
    ("mistral_common", "SentencePieceTokenizer"): _read_mistral_sentencepiece,
}
"""Package and class name -> how to read its objects; the first class in an object's ancestry decides."""
