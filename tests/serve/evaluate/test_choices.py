"""Multiple choice: which continuation wins, and how questions are written."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from enginewright.runtime.errors import InputError
from enginewright.runtime.session import Float32Array
from enginewright.serve.evaluate.choices import (
    Question,
    SessionScorer,
    read_questions,
    run_choices,
)
from enginewright.serve.tokenizer import Tokenizer


class Fixed:
    """Gives prepared scores."""

    def __init__(self, scores: dict[str, float]) -> None:
        self._scores = scores

    async def score(self, context: str, continuation: str) -> float:
        return self._scores[continuation]


class Uniform:
    """Every token is as likely as any other; three rows at a time."""

    max_tokens = 100
    vocab_size = 1000

    def logits(self, ids: Sequence[int]) -> Iterator[Float32Array]:
        for start in range(0, len(ids), 3):
            yield np.zeros((len(ids[start : start + 3]), self.vocab_size), np.float32)

    def close(self) -> None:
        pass


def test_acc_and_acc_norm() -> None:
    scorer = Fixed({" long answer": -6.0, " no": -2.0})
    questions = [Question("q", [" long answer", " no"], answer) for answer in (0, 1, 1, 1)]
    score = asyncio.run(run_choices(scorer, questions, lambda _: None))
    assert (score.acc, score.acc_norm) == (0.75, 0.25)
    assert score.acc_stderr == pytest.approx(math.sqrt(0.75 * 0.25 / 3))


def test_only_the_continuation_counts(tokenizer: Tokenizer) -> None:
    scorer = SessionScorer(Uniform(), tokenizer)
    context, continuation = "Hello how are", " you today"
    whole, start = tokenizer.encode(context + continuation), len(tokenizer.encode(context))
    total = asyncio.run(scorer.score(context, continuation))
    assert total == pytest.approx(-math.log(1000) * (len(whole) - start))


def test_questions(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(
        '{"context": "a ", "choices": ["b", " c"], "answer": 1}\n'
        '{"question": "d", "choices": ["e", "f"], "answer": "b"}\n'
        '{"question": "d", "choices": ["e", "f"], "answer": "0"}\n'
    )
    first, second, third = read_questions(path, None)
    assert first == Question("a", [" b", " c"], 1)
    assert (second.answer, third.answer) == (1, 0)
    assert len(read_questions(path, 1)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no",
        '{"context": "a", "choices": ["b"], "answer": 0}',
        '{"context": "a", "choices": ["b", "c"], "answer": 2}',
        '{"context": "a", "choices": ["b", "c"], "answer": "Z"}',
        '{"choices": ["b", "c"], "answer": 0}',
        "[1]",
    ],
)
def test_wrong_questions(tmp_path: Path, text: str) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(text)
    with pytest.raises(InputError):
        read_questions(path, None)
