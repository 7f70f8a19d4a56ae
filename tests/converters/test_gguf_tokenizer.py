"""Tokenizers rebuilt from GGUF metadata give the ids of the tokenizers they came from."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from enginewright.converters import open_checkpoint
from enginewright.converters.fields import Fields
from enginewright.converters.gguf_tokenizer import build_tokenizer
from enginewright.converters.pre_tokenizers import STYLES
from enginewright.runtime.errors import CheckpointError, UnsupportedModelError
from tests.support.gguf import TOKENIZER, write_gguf
from tests.support.golden import GOLDEN_FOLDER
from tests.support.tiny import make_tiny_config, make_tiny_weights

SMOLLM2 = GOLDEN_FOLDER.parents[1] / ".cache/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = "It'S 1234 naïve  cafés\n\n  ABCdef // ½x"
WORDS = {
    "gpt-2": "It|'|S| 1234| naïve| | cafés|\n\n | ABCdef| //| ½|x",
    "smollm": "It|'|S| |1|2|3|4| naïve| | cafés|\n\n | ABCdef| //| |½|x",
    "llama-bpe": "It|'S| |123|4| naïve| | cafés|\n\n| | ABCdef| //| |½|x",
    "qwen2": "It|'S| |1|2|3|4| naïve| | cafés|\n\n| | ABCdef| //| |½|x",
    "tekken": "It|'S| |1|2|3|4| naïve| | cafés|\n\n| | ABCdef| //| |½|x",
}


def rebuild(
    changes: dict[str, Any] | None = None, vocab_size: int = 1000
) -> tuple[Tokenizer, dict[str, Any]]:
    values = {**TOKENIZER, **{f"tokenizer.{key}": value for key, value in (changes or {}).items()}}
    return build_tokenizer(Fields(values, "m.gguf"), vocab_size)


@pytest.mark.parametrize("name", WORDS)
def test_words(name: str) -> None:
    pre_tokenizer = STYLES[name].pre_tokenizer()
    words = [TEXT[begin:end] for _, (begin, end) in pre_tokenizer.pre_tokenize_str(TEXT)]
    assert words == WORDS[name].split("|")


def test_tekken_splits_where_upper_case_follows_lower_case() -> None:
    pre_tokenizer = STYLES["tekken"].pre_tokenizer()
    words = [word for word, _ in pre_tokenizer.pre_tokenize_str("camelCaseHTTPServer")]
    assert words == ["camel", "Case", "HTTPServer"]


def test_smollm2_gives_the_ids_of_two_other_tokenizers(tmp_path: Path) -> None:
    if not SMOLLM2.exists():
        pytest.skip("the real model is not there: scripts/model fetches it")
    entries = json.loads((GOLDEN_FOLDER / "tokenizer_texts.json").read_text())
    with open_checkpoint(str(SMOLLM2)) as checkpoint:
        assert checkpoint.config.eos_token_ids == (2, 0)
        checkpoint.write_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for entry in entries:
        ids = tokenizer.encode(entry["text"], add_special_tokens=True).ids
        assert ids == entry["ids"], entry["text"]
        assert tokenizer.decode(ids, skip_special_tokens=False) == entry["text"]
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings["eos_token"] == "<|im_end|>"
    assert "<|im_start|>" in settings["chat_template"]


def test_sentencepiece_gives_its_own_ids() -> None:
    golden = json.loads((GOLDEN_FOLDER / "sentencepiece.json").read_text())
    tokenizer, settings = rebuild(
        {
            "ggml.model": "llama",
            "ggml.pre": "default",
            "ggml.tokens": golden["tokens"],
            "ggml.scores": golden["scores"],
            "ggml.token_type": golden["kinds"],
            "ggml.bos_token_id": 1,
            "ggml.eos_token_id": 2,
            "ggml.unknown_token_id": 0,
        }
    )
    assert settings["add_bos_token"]
    for entry in golden["texts"]:
        text = entry["text"]
        assert tokenizer.encode(text, add_special_tokens=False).ids == entry["ids"], text
        assert tokenizer.encode(text).ids == [1, *entry["ids"]]
        assert tokenizer.decode(entry["ids"]) == text


def test_special_tokens_are_found_in_text_and_skipped_in_decoding() -> None:
    tokenizer, settings = rebuild(
        {
            "ggml.tokens": [*TOKENIZER["tokenizer.ggml.tokens"], "<tool>"],
            "ggml.token_type": [*TOKENIZER["tokenizer.ggml.token_type"], 4],
        }
    )
    ids = tokenizer.encode("<s>ab</s><tool>ba").ids
    assert ids == [0, 4, 1, 5, 3, 2]
    assert tokenizer.decode(ids) == "ab<tool>ba"
    assert (settings["bos_token"], settings["eos_token"]) == ("<s>", "</s>")
    assert "chat_template" not in settings


@pytest.mark.parametrize(
    ("bos", "eos", "expected"),
    [(False, False, [4]), (True, False, [0, 4]), (False, True, [4, 1]), (True, True, [0, 4, 1])],
)
def test_bos_and_eos_frame_a_text_where_asked(bos: bool, eos: bool, expected: list[int]) -> None:
    tokenizer, _ = rebuild({"ggml.add_bos_token": bos, "ggml.add_eos_token": eos})
    assert tokenizer.encode("ab").ids == expected
    assert tokenizer.encode("ab", add_special_tokens=False).ids == [4]


def test_llama3_begins_a_text_with_bos_by_default() -> None:
    assert rebuild({"ggml.pre": "llama-bpe"})[0].encode("ab").ids == [0, 4]
    assert rebuild({"ggml.pre": "qwen2"})[0].encode("ab").ids == [4]


def test_qwen2_composes_characters() -> None:
    tokenizer, _ = rebuild({"ggml.pre": "qwen2"})
    assert tokenizer.normalizer is not None
    assert tokenizer.normalizer.normalize_str("e\u0301") == "é"


def test_files(tmp_path: Path) -> None:
    config = make_tiny_config("llama")
    metadata = {"tokenizer.chat_template": "{{ messages }}", "tokenizer.ggml.eot_token_id": 4}
    path = write_gguf(tmp_path / "m.gguf", config, make_tiny_weights(config), metadata=metadata)
    with open_checkpoint(str(path)) as checkpoint:
        checkpoint.write_tokenizer(tmp_path / "tokenizer")
    written = tmp_path / "tokenizer"
    assert Tokenizer.from_file(str(written / "tokenizer.json")).encode("ab").ids == [4]
    settings = json.loads((written / "tokenizer_config.json").read_text())
    assert settings["chat_template"] == "{{ messages }}"
    generation = json.loads((written / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 0, "eos_token_id": [1, 4]}


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"ggml.pre": "viking"}, UnsupportedModelError, "'viking'.*smollm"),
        ({"ggml.model": "bert"}, UnsupportedModelError, "'bert'.*gpt2 and llama"),
        ({"ggml.merges": ["a c"]}, CheckpointError, "cannot be rebuilt"),
        ({"ggml.merges": ["ab"]}, CheckpointError, "cannot be rebuilt"),
        ({"ggml.token_type": [1]}, CheckpointError, "5 tokens and 1 token types"),
        ({"ggml.bos_token_id": 5}, CheckpointError, "bos token is 5, but .* only 5 tokens"),
        ({"ggml.model": "llama"}, CheckpointError, "5 tokens, but 0 scores"),
        ({"ggml.tokens": []}, CheckpointError, "lists 0 tokens"),
    ],
)
def test_what_cannot_be_rebuilt_is_named(
    changes: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        rebuild(changes)


def test_more_tokens_than_embedding_rows_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"5 tokens .* embedding of 4 rows"):
        rebuild(vocab_size=4)
