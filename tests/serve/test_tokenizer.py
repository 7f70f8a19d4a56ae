"""The tokenizer folder: special ids, defaults, token bytes, and damage."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models

from enginewright.runtime.errors import EngineDamagedError
from enginewright.serve.tokenizer import Tokenizer

from .tiny_tokenizer import TEMPLATE, make_tokenizer, write_tokenizer


def test_special_ids_and_defaults(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, temperature=0.6, top_k=20, max_length=99)
    ids = [tokenizer.encode(text)[0] for text in ("<|end|>", "<|im_end|>")]
    assert list(tokenizer.eos_token_ids) == ids
    assert tokenizer.sampling_defaults == {"temperature": 0.6, "top_k": 20}
    assert tokenizer.chat_template == TEMPLATE


def test_template_of_its_own_file_wins(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("own")
    assert Tokenizer(tmp_path).chat_template == "own"


def test_named_templates(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    named = [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]
    config = {"chat_template": named, "bos_token": {"content": "<|end|>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.chat_template == "d"
    assert tokenizer.bos_token == "<|end|>"


def test_token_bytes_of_a_byte_level_vocabulary(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path)
    for text in (" the quick", "日本 😀", "<|im_end|>"):
        assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == text.encode()
    assert tokenizer.token_bytes(100_000) == b""


def test_token_bytes_of_a_sentencepiece_vocabulary(tmp_path: Path) -> None:
    raw = RawTokenizer(models.BPE({"\u2581Hi": 0, "<0xE2>": 1, "<0x0A>": 2, "a": 3}, []))
    raw.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    raw.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    assert [tokenizer.token_bytes(i) for i in range(4)] == [b" Hi", b"\xe2", b"\n", b"a"]


def test_damage_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineDamagedError, match="is missing"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(EngineDamagedError, match="cannot be read"):
        Tokenizer(tmp_path)
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[1")
    with pytest.raises(EngineDamagedError, match=r"tokenizer_config\.json"):
        Tokenizer(tmp_path)
