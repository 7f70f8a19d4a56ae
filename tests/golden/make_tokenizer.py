"""Writes a byte-level tokenizer that fills a tiny vocabulary: bytes of UTF-8, then merges."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<s>", "</s>")
NEVER_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
MERGES = "Ġ t,h e,Ġ a,i n,r e,o n,Ġt he,e r,Ġ s,a t,e n,n d,Ġ w"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def byte_characters() -> list[str]:
    """The character that stands for each byte in GPT-2's byte-level vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    shifted = {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [shifted.get(byte, chr(byte)) for byte in range(256)]


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    characters = byte_characters()
    tokens = [*SPECIAL, *(characters[b] for b in range(256) if b not in NEVER_IN_UTF8)]
    merges: list[tuple[str, str]] = []
    for merge in MERGES.split(","):
        left, right = merge.split(" ")
        if len(tokens) < vocab_size:
            tokens.append(left + right)
            merges.append((left, right))
    assert len(tokens) == vocab_size
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[0],
        "eos_token": SPECIAL[1],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(settings, ensure_ascii=False, indent=2)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
