"""Perplexity and KL: against formulas in numpy, and from the command line on tiny engines."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from enginewright.runtime.errors import InputError
from enginewright.runtime.session import Float32Array
from enginewright.serve.commands import eval as eval_module
from enginewright.serve.commands.eval import command
from enginewright.serve.evaluate.logits import EngineLogits, check_same_vocabulary, log_softmax
from enginewright.serve.evaluate.text import divergence, perplexity, windows
from tests.support.cpu_engine import EngineCache, Spec
from tests.support.gguf import write_gguf

INT8, F32 = Spec("llama", "int8", "generic"), Spec("llama", "f32", "generic")


class Table:
    """Logits that depend on the token alone, in pieces of `piece` rows."""

    max_tokens = 100

    def __init__(self, seed: int, piece: int, vocab_size: int = 11) -> None:
        self.vocab_size = vocab_size
        self.table = np.random.default_rng(seed).normal(size=(vocab_size, vocab_size))
        self._piece = piece

    def logits(self, ids: Sequence[int]) -> Iterator[Float32Array]:
        for start in range(0, len(ids), self._piece):
            yield self.table[list(ids[start : start + self._piece])].astype(np.float32)

    def close(self) -> None:
        pass


def distributions(table: Table, ids: Sequence[int]) -> np.ndarray:
    rows = np.exp(table.table[list(ids)])
    return rows / rows.sum(axis=1, keepdims=True)


def test_windows() -> None:
    assert windows(range(7), 3, None) == [[0, 1, 2], [3, 4, 5]]
    assert windows(range(8), 3, 5) == [[0, 1, 2], [3, 4]]
    with pytest.raises(InputError, match="at least 2"):
        windows([1], 3, None)


@pytest.mark.parametrize("piece", [1, 3, 50])
def test_perplexity(piece: int) -> None:
    ids = np.random.default_rng(0).integers(0, 11, 20).tolist()
    done: list[int] = []
    result = perplexity(Table(1, piece), windows(ids, 8, None), done.append)
    losses = []
    for start in (0, 8, 16):
        part = ids[start : start + 8]
        rows = distributions(Table(1, 1), part)
        losses += [-math.log(rows[i, part[i + 1]]) for i in range(len(part) - 1)]
    assert result.tokens == 17
    assert result.perplexity == pytest.approx(math.exp(np.mean(losses)), rel=1e-5)
    assert result.standard_error == pytest.approx(np.std(losses, ddof=1) / math.sqrt(17), rel=1e-4)
    assert sum(done) == 20


def test_divergence() -> None:
    ids = np.random.default_rng(0).integers(0, 11, 10).tolist()
    result = divergence(Table(2, 4), Table(1, 3), [ids], lambda _: None)
    p, q = distributions(Table(1, 1), ids), distributions(Table(2, 1), ids)
    kl = (p * np.log(p / q)).sum(axis=1)
    assert result.positions == 10
    assert result.mean_kl == pytest.approx(kl.mean(), rel=1e-4)
    assert result.max_kl == pytest.approx(kl.max(), rel=1e-4)
    assert result.same_top == np.mean(p.argmax(axis=1) == q.argmax(axis=1))
    assert divergence(Table(1, 4), Table(1, 3), [ids], lambda _: None).max_kl < 1e-6


def test_other_vocabularies_are_refused() -> None:
    with pytest.raises(InputError, match="11 and 12"):
        check_same_vocabulary(Table(0, 1), Table(0, 1, 12))


def test_log_softmax_of_large_logits() -> None:
    found = log_softmax(np.array([[1e4, 0.0], [-1e4, -1e4]], np.float32))
    assert found[0, 0] == 0.0
    assert found[1] == pytest.approx([-math.log(2)] * 2)


def test_an_engine_in_pieces_is_the_engine_at_once(engines: EngineCache) -> None:
    ids = np.random.default_rng(0).integers(0, 253, 70).tolist()
    options = {"threads": 1, "kv_cache_memory": 4 << 20}
    rows = []
    for batch in (512, 7):
        source = EngineLogits(engines.get(F32), max_batch_size=batch, **options)
        rows.append(np.concatenate(list(source.logits(ids))))
        source.close()
    assert rows[0].shape == (70, 253)
    assert (rows[0] == rows[1]).all()


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("one two three four " * 30)
    return str(path)


class Folded:
    """A tokenizer whose ids are those of a tiny engine: the bytes of the text."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [byte % 253 for byte in text.encode()]


@pytest.fixture
def folders(engines: EngineCache, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.setattr(eval_module, "_tokenizer", lambda _: Folded())
    return str(engines.get(INT8).folder), str(engines.get(F32).folder)


def test_commands(folders: tuple[str, str], text: str) -> None:
    memory = ["--kv-cache-memory", "4MB", "--context", "64", "--max-tokens", "100"]
    done = CliRunner().invoke(command, ["perplexity", folders[0], text, *memory, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["perplexity"] > 1
    done = CliRunner().invoke(
        command, ["kl", folders[0], text, "--against", folders[1], *memory, "--json"]
    )
    assert done.exit_code == 0, done.output
    assert 0 < json.loads(done.output)["mean_kl"] < 0.1


def test_kl_against_a_checkpoint(folders: tuple[str, str], text: str, tmp_path: Path) -> None:
    """The f32 engine is its checkpoint's twin, and the int8 engine is as far from both."""
    arrays = {name: tensor.load() for name, tensor in F32.tensors().items()}
    checkpoint = str(write_gguf(tmp_path / "model.gguf", F32.model, arrays))
    shared = ["--kv-cache-memory", "4MB", "--context", "64", "--max-tokens", "100", "--json"]

    def figures(engine: str, against: str) -> dict[str, float]:
        done = CliRunner().invoke(command, ["kl", engine, text, "--against", against, *shared])
        assert done.exit_code == 0, done.output
        return json.loads(done.output)

    int8, f32 = folders
    twin = figures(f32, checkpoint)
    assert twin["positions"] == 100
    assert twin["max_kl"] < 1e-6
    assert twin["perplexity"] == pytest.approx(twin["reference_perplexity"], rel=1e-5)
    from_engine, from_checkpoint = figures(int8, f32), figures(int8, checkpoint)
    assert from_checkpoint["mean_kl"] == pytest.approx(from_engine["mean_kl"], rel=1e-2)
    assert from_checkpoint["mean_kl"] > 1e-6


def test_questions_of_an_engine(folders: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text('{"context": "one two", "choices": ["three", "nine"], "answer": "A"}\n' * 3)
    done = CliRunner().invoke(command, ["choices", folders[0], str(path), "--limit", "2", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["questions"] == 2
