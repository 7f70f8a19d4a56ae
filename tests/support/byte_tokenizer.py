"""A tokenizer with one token a byte: id 0 ends the text, and byte b has id b + 1."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

EOS = 0


def _alphabet() -> list[str]:
    """The printable character of each byte, as GPT-2 maps them."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    chars = {byte: chr(byte) for byte in printable}
    chars |= {byte: chr(0x100 + place) for place, byte in enumerate(others)}
    return [chars[byte] for byte in range(256)]


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    vocabulary = {"<end>": EOS, **{char: byte + 1 for byte, char in enumerate(_alphabet())}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
