"""What a benchmark sends: synthetic prompts of exact lengths, or prompts of a file."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...runtime.errors import InputError

_FIRST_ID, _LAST_ID = 100, 1000  # ordinary tokens in every vocabulary there is


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request's input: text, token ids or messages, and how many tokens it asks for."""

    content: str | list[int] | list[dict[str, Any]]
    output_tokens: int

    @property
    def is_chat(self) -> bool:
        """Whether the content is a list of messages."""
        return bool(self.content) and isinstance(self.content[0], dict)


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long synthetic prompts and answers are, in tokens; `spread` is a part of the length."""

    prompt: int
    output: int
    prefix: int = 0  # shared by all prompts, before their own part
    spread: float = 0.0


def synthetic_prompts(count: int, lengths: Lengths, seed: int) -> list[Prompt]:
    """Return prompts of random token ids; the same seed gives the same prompts."""
    generator = random.Random(seed)
    prefix = _random_ids(generator, lengths.prefix)
    return [
        Prompt(
            prefix + _random_ids(generator, _around(generator, lengths.prompt, lengths.spread)),
            _around(generator, lengths.output, lengths.spread),
        )
        for _ in range(count)
    ]


def file_prompts(path: Path, count: int, output_tokens: int, seed: int) -> list[Prompt]:
    """Return prompts of a JSONL file, or of a ShareGPT file (a JSON list), shuffled by `seed`.

    A line has `prompt` (text or token ids) or `messages`, and `output_tokens` or `max_tokens`.
    Raises InputError.
    """
    try:
        text = path.read_text(encoding="utf-8")
        entries = json.loads(text) if text.lstrip().startswith("[") else _lines(text)
        prompts = [_prompt(entry, output_tokens) for entry in entries]
    except OSError as error:
        raise InputError(f"the data set {path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(
            f"the data set {path} is not one ({type(error).__name__}: {error}); give JSON lines "
            'such as {"prompt": "Hello", "output_tokens": 64}, or a ShareGPT file'
        ) from error
    if not prompts:
        raise InputError(f"the data set {path} is empty")
    random.Random(seed).shuffle(prompts)
    return [prompts[number % len(prompts)] for number in range(count)]


def _lines(text: str) -> Iterator[Any]:
    return (json.loads(line) for line in text.splitlines() if line.strip())


def _prompt(entry: dict[str, Any], output_tokens: int) -> Prompt:
    wanted = int(entry.get("output_tokens") or entry.get("max_tokens") or output_tokens)
    if "conversations" in entry:
        return Prompt(entry["conversations"][0]["value"], wanted)
    content = entry["messages"] if "messages" in entry else entry["prompt"]
    if not content or not isinstance(content, str | list):
        raise ValueError("an entry has an empty prompt")
    return Prompt(content, wanted)


def _random_ids(generator: random.Random, count: int) -> list[int]:
    return [generator.randrange(_FIRST_ID, _LAST_ID) for _ in range(count)]


def _around(generator: random.Random, length: int, spread: float) -> int:
    low, high = round(length * (1 - spread)), round(length * (1 + spread))
    return max(1, generator.randint(low, high))
