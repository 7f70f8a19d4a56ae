"""Warm-up over a real executor process: what is pinned, and what is wrong with a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from enginewright.executor.client import ExecutorClient
from enginewright.runtime.errors import InputError, RequestError
from enginewright.serve.operation.warm_prompts import read_warm_prompts, warm_up
from enginewright.serve.tokenizer import Tokenizer
from tests.serve.tiny_tokenizer import write_tokenizer

TOY = (sys.executable, str(Path(__file__).parents[1] / "toy_executor.py"))


def write(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    return path


def test_prompts_of_every_kind_are_pinned(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer")
    tokenizer = Tokenizer(tmp_path / "tokenizer")
    chat = {"messages": [{"role": "system", "content": "be short " * 8}]}
    prompts = read_warm_prompts(write(tmp_path / "w", "z" * 70, list(range(40)), chat))
    with ExecutorClient.start(tmp_path, command=TOY) as client:
        tokens = warm_up(client, tokenizer, prompts)
        stats = client.stats()
        assert stats["pinned_blocks"] >= 2 + 1 + 1
        assert stats["pinned_blocks"] == stats["cached_blocks"] <= tokens // 32


def test_a_prompt_that_cannot_run_ends_the_warm_up(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer")
    tokenizer = Tokenizer(tmp_path / "tokenizer")
    with ExecutorClient.start(tmp_path, command=TOY) as client:
        with pytest.raises(RequestError, match="900"):
            warm_up(client, tokenizer, [[1], [900]])


@pytest.mark.parametrize("line", ["5", "{", '{"prompt": "a"}', "[1.5]"])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "warm"
    path.write_text(f'"good"\n{line}\n')
    with pytest.raises(InputError, match="line 2"):
        read_warm_prompts(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_warm_prompts(tmp_path / "none")
