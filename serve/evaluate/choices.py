"""Multiple choice: the likeliest continuation of a context is the answer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson

from ...runtime.errors import InputError
from ..bench.http_stream import HttpClient
from ..tokenizer import Tokenizer
from .logits import LogitsSource, log_softmax


@dataclass(frozen=True, slots=True)
class Question:
    """A context, its possible continuations, and the index of the right one."""

    context: str
    choices: list[str]
    answer: int


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """Accuracies as lm-evaluation-harness has them, with their standard error."""

    questions: int
    acc: float  # the highest sum of log-probabilities wins
    acc_norm: float  # the highest sum divided by the continuation's bytes wins
    acc_stderr: float

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON's types."""
        names = ("questions", "acc", "acc_norm", "acc_stderr")
        return {name: getattr(self, name) for name in names}


class Scorer(Protocol):
    """Tells how likely a continuation is."""

    async def score(self, context: str, continuation: str) -> float:
        """Return the sum of the log-probabilities of the continuation's tokens."""
        ...


class SessionScorer:
    """Scores with an engine in this process."""

    def __init__(self, source: LogitsSource, tokenizer: Tokenizer) -> None:
        self._source = source
        self._tokenizer = tokenizer

    async def score(self, context: str, continuation: str) -> float:
        """Return the sum of the log-probabilities of the continuation's tokens."""
        ids, start = _encode_pair(self._tokenizer, context, continuation)
        total, place = 0.0, 0
        for logits in self._source.logits(ids[:-1]):
            table = log_softmax(logits)
            for row in range(max(start - 1 - place, 0), len(table)):
                total += float(table[row, ids[place + row + 1]])
            place += len(table)
        return total


class ServerScorer:
    """Scores through `/v1/completions` with `echo`, as lm-evaluation-harness does."""

    def __init__(self, client: HttpClient, model: str) -> None:
        self._client = client
        self._model = model

    async def score(self, context: str, continuation: str) -> float:
        """Return the sum of the log-probabilities of the continuation's tokens."""
        body = {
            "model": self._model,
            "prompt": context + continuation,
            "echo": True,
            "logprobs": 1,
            "max_tokens": 1,
            "temperature": 0,
        }
        status, chunks = await self._client.post("/v1/completions", orjson.dumps(body))
        raw = b"".join([chunk async for chunk in chunks])
        if status != 200:
            raise InputError(f"the server answers {status}: {raw[:300].decode('utf-8', 'replace')}")
        logprobs = orjson.loads(raw)["choices"][0]["logprobs"]
        ends = len(context) + len(continuation)
        found = zip(logprobs["text_offset"], logprobs["token_logprobs"], strict=True)
        inside = [value for offset, value in found if len(context) <= offset < ends]
        return math.fsum(value for value in inside if value is not None)


async def run_choices(
    scorer: Scorer, questions: Sequence[Question], progress: Callable[[int], None]
) -> ChoiceScore:
    """Answer all questions and return the score."""
    right = right_norm = 0
    for question in questions:
        sums = [await scorer.score(question.context, choice) for choice in question.choices]
        sizes = [max(len(choice.encode()), 1) for choice in question.choices]
        right += int(np.argmax(sums)) == question.answer
        norms = [value / size for value, size in zip(sums, sizes, strict=True)]
        right_norm += int(np.argmax(norms)) == question.answer
        progress(1)
    count = len(questions)
    acc = right / count
    error = math.sqrt(acc * (1 - acc) / (count - 1)) if count > 1 else 0.0
    return ChoiceScore(count, acc, right_norm / count, error)


def read_questions(path: Path, most: int | None) -> list[Question]:
    """Read JSON lines with `context` (or `question`), `choices` and `answer` (index or letter).

    A continuation is the choice after a space, unless it begins with one. Raises InputError.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the questions {path} cannot be read: {error}") from error
    questions = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            questions.append(_question(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"line {number} of {path} is no question ({type(error).__name__}: {error}); write "
                '{"context": "...", "choices": ["...", "..."], "answer": 0}'
            ) from error
    if not questions:
        raise InputError(f"the questions {path} are none; write one a line")
    return questions[:most]


def _question(entry: dict[str, Any]) -> Question:
    context = (entry.get("context") or entry["question"]).rstrip()
    choices = [choice if choice.startswith(" ") else f" {choice}" for choice in entry["choices"]]
    answer = entry["answer"]
    if isinstance(answer, str):
        answer = int(answer) if answer.isdecimal() else ord(answer.strip().upper()) - ord("A")
    if not 0 <= answer < len(choices) or len(choices) < 2:
        raise ValueError(f"answer {entry['answer']!r} for {len(choices)} choices")
    return Question(context, choices, answer)


def _encode_pair(tokenizer: Tokenizer, context: str, continuation: str) -> tuple[list[int], int]:
    """Return the ids of both together, and where the continuation begins."""
    whole = tokenizer.encode(context + continuation)
    start = len(tokenizer.encode(context))
    return whole, min(max(start, 1), len(whole) - 1)
