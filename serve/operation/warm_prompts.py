"""Prompts that are computed and pinned before the first request comes."""

from __future__ import annotations

import json
import queue
from pathlib import Path
from typing import Any

import msgspec

from ...executor.messages import TokenOutput, to_exception
from ...executor.sampling import TokenParams
from ...runtime.errors import InputError
from ..chat_template import ChatTemplate
from ..client import Client
from ..tokenizer import Tokenizer


def read_warm_prompts(path: Path) -> list[Any]:
    """Read JSON lines: a text, a list of token ids, or chat messages as `{"messages": [...]}`.

    Raises InputError, which names the line.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--warm-prompts {path} cannot be read: {error}") from error
    prompts: list[Any] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            prompts.append(msgspec.convert(json.loads(line), str | list[int] | _Chat))
        except (ValueError, msgspec.ValidationError) as error:
            raise InputError(
                f"--warm-prompts {path}, line {number}: {error}; write a JSON string, a list of "
                'token ids or {"messages": [...]}'
            ) from error
    return prompts


def warm_up(client: Client, tokenizer: Tokenizer, prompts: list[Any]) -> int:
    """Compute and pin prompts; return how many tokens they have. Raises what one of them raised."""
    ends: queue.SimpleQueue[TokenOutput] = queue.SimpleQueue()
    total = 0

    def sink(output: TokenOutput) -> None:
        if output.finish_reason is not None:
            ends.put(output)

    for number, prompt in enumerate(prompts):
        ids = _token_ids(prompt, tokenizer)
        total += len(ids)
        client.submit(f"warm-up {number}", ids, TokenParams(max_tokens=1, pin=True), sink)
    for _ in prompts:
        if (error := ends.get().error) is not None:
            raise to_exception(error)
    return total


class _Chat(msgspec.Struct, frozen=True):
    messages: list[dict[str, Any]]


def _token_ids(prompt: Any, tokenizer: Tokenizer) -> list[int]:
    if isinstance(prompt, list):
        return prompt
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    text = ChatTemplate.of(tokenizer).render(prompt.messages, add_generation_prompt=False)
    return tokenizer.encode(text, add_special_tokens=False)
