"""The engine's tokenizer folder: text to ids and back, special ids, sampling defaults."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.decoders import DecodeStream

from ..runtime.errors import EngineDamagedError

# Sampling fields that a generation_config.json may set for requests that leave them open.
_DEFAULT_FIELDS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


class Tokenizer:
    """What `tokenizer/` of an engine folder holds.

    Raises EngineDamagedError when tokenizer.json is missing or cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise EngineDamagedError(f"{path} is missing; build the engine again")
        try:
            self._raw = RawTokenizer.from_file(str(path))
        except Exception as error:  # the Rust library raises plain Exception
            raise EngineDamagedError(f"{path} cannot be read as a tokenizer: {error}") from error
        config = _read_json(folder / "tokenizer_config.json")
        generation = _read_json(folder / "generation_config.json")
        self.vocab_size: int = self._raw.get_vocab_size()
        self.bos_token = _token_text(config.get("bos_token"))
        self.eos_token = _token_text(config.get("eos_token"))
        self.chat_template = _chat_template(folder, config)
        self.eos_token_ids = self._eos_ids(generation.get("eos_token_id"))
        self.sampling_defaults: dict[str, float | int] = {
            name: generation[name] for name in _DEFAULT_FIELDS if generation.get(name) is not None
        }
        self._special_ids = {
            token.content: token_id
            for token_id, token in self._raw.get_added_tokens_decoder().items()
            if token.special
        }
        self._bytes = _token_bytes_rule(self._raw)
        self._token_bytes: dict[int, bytes] = {}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text."""
        return self._raw.encode(text, add_special_tokens=add_special_tokens).ids

    def spellings(self, word: str) -> list[list[int]]:
        """Return the token ids of a word at the start of a text and after a space."""
        both = [self.encode(text, add_special_tokens=False) for text in (word, f" {word}")]
        return [ids for number, ids in enumerate(both) if ids and ids not in both[:number]]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids; bytes that are not UTF-8 become U+FFFD."""
        return self._raw.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def stream_step(self, stream: DecodeStream, token_id: int) -> str | None:
        """Push one token id through a decode stream."""
        return stream.step(self._raw, token_id)

    def special_token_id(self, text: str) -> int | None:
        """Return the id of the special token that a text is; None if it is none."""
        return self._special_ids.get(text)

    def token_bytes(self, token_id: int) -> bytes:
        """Return what one token adds to the output, as raw bytes."""
        found = self._token_bytes.get(token_id)
        if found is None:
            piece = self._raw.id_to_token(token_id)
            found = b"" if piece is None else self._bytes(piece)
            self._token_bytes[token_id] = found
        return found

    def _eos_ids(self, declared: Any) -> tuple[int, ...]:
        ids: list[int] = [declared] if isinstance(declared, int) else list(declared or ())
        if self.eos_token is not None:
            eos = self._raw.token_to_id(self.eos_token)
            if eos is not None:
                ids.append(eos)
        return tuple(dict.fromkeys(ids))


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise EngineDamagedError(f"{path} is not a JSON object: {error}") from error


def _token_text(value: Any) -> str | None:
    """Read a special token, which is a string or an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several named templates
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _token_bytes_rule(raw: RawTokenizer) -> Any:
    """Choose how a vocabulary entry spells bytes: GPT-2's byte alphabet or SentencePiece's."""
    decoder = msgspec.json.decode(raw.to_str()).get("decoder")
    kinds = {decoder["type"]} if decoder else set()
    if decoder and decoder["type"] == "Sequence":
        kinds |= {part["type"] for part in decoder["decoders"]}
    return _byte_level if "ByteLevel" in kinds else _sentence_piece


def _gpt2_alphabet() -> dict[str, int]:
    """Return GPT-2's map from printable character to byte (`bytes_to_unicode`, inverted)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


_ALPHABET = _gpt2_alphabet()


def _byte_level(piece: str) -> bytes:
    try:
        return bytes(_ALPHABET[char] for char in piece)
    except KeyError:  # an added token, spelled as plain text
        return piece.encode()


def _sentence_piece(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("\u2581", " ").encode()
