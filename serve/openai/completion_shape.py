"""Completions as JSON, whole and in chunks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import orjson

from ...executor.messages import TokenLogprob
from ..generation import Delta
from ..service import Service
from .chunks import ChunkedShape, Chunks
from .logprobs import completion_logprobs, prompt_logprobs
from .streaming import Usage, WholeChoice
from .types import CompletionRequest


class CompletionShape(ChunkedShape):
    """The answers of `/v1/completions`; `echoes` are the prompts' texts where they are shown."""

    def __init__(
        self,
        service: Service,
        body: CompletionRequest,
        object_id: str,
        prompts: Sequence[Sequence[int]],
        echoes: Sequence[str] | None,
    ) -> None:
        self._tokenizer = service.tokenizer
        self._logprobs = body.logprobs is not None
        self._token_ids = bool(body.return_token_ids)
        self._prompt_logprobs = body.prompt_logprobs is not None
        self._prompts = prompts
        self._shown = body.n or 1  # of each prompt's choices
        self._made = self._shown if body.use_beam_search else max(self._shown, body.best_of or 1)
        self._scores = bool(body.echo) and body.max_tokens == 0  # the prompt alone is shown
        self._unopened = set(range(self._made * len(prompts)))
        self._echoes = echoes
        self._offsets: dict[int, int] = {}  # where each choice's next token has its text
        self._head: dict[str, Any] = {
            "id": object_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": service.model_name,
        }
        self._chunks = Chunks(self._head, body)

    def opening(self, usage: Usage) -> bytes:
        """Return nothing: a completion starts with its text."""
        return b""

    def event(self, delta: Delta, usage: Usage) -> bytes:
        """Return the chunk of one delta."""
        index, text, prompt_ids = delta.index, delta.text, b""
        entries, first = delta.logprobs, None
        if index in self._unopened:
            self._unopened.remove(index)
            text = self._echo(index) + text
            if delta.prompt_logprobs is not None:
                entries, first = [*delta.prompt_logprobs, *entries], self._prompt(index)[0]
            if self._token_ids:
                prompt_ids = b',"prompt_token_ids":' + orjson.dumps(self._prompt(index))
        with_logprobs = self._logprobs and bool(entries)
        with_ids = self._token_ids and bool(delta.token_ids)
        if not (text or delta.finish_reason or with_logprobs or with_ids):
            return b""
        logprobs = b"null"
        if with_logprobs:
            logprobs = orjson.dumps(self._logprobs_of(index, entries, first))
        return self._chunks.choice(
            delta,
            b'"text":' + orjson.dumps(text),
            usage,
            logprobs=logprobs,
            finish=delta.finish_reason,
            with_ids=with_ids,
            more=prompt_ids,
        )

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> dict[str, Any]:
        """Return the body of an answer that is not streamed, with the best of each prompt."""
        if self._scores:
            usage.completion_tokens = 0
        shown: list[int] = []
        for first in range(0, len(choices), self._made):
            indices = range(first, first + self._made)
            if self._made > self._shown:
                indices = sorted(indices, key=lambda i: (-_mean_logprob(choices[i]), i))
            shown += list(indices)[: self._shown]
        return self._head | {
            "choices": [self._choice(place, i, choices[i]) for place, i in enumerate(shown)],
            "usage": usage.to_json(),
        }

    def _choice(self, place: int, index: int, choice: WholeChoice) -> dict[str, Any]:
        if self._scores:
            choice = WholeChoice(prompt_logprobs=choice.prompt_logprobs, finish_reason="length")
        logprobs = None
        if self._logprobs:
            before = choice.prompt_logprobs if self._echoes is not None else None
            first = None if before is None else self._prompt(index)[0]
            logprobs = self._logprobs_of(index, [*(before or ()), *choice.logprobs], first)
        result: dict[str, Any] = {
            "index": place,
            "text": self._echo(index) + choice.text,
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self._prompt_logprobs and choice.prompt_logprobs is not None:
            result["prompt_logprobs"] = prompt_logprobs(self._tokenizer, choice.prompt_logprobs)
        if self._token_ids:
            result["token_ids"] = choice.token_ids
            result["prompt_token_ids"] = self._prompt(index)
        return result

    def _echo(self, index: int) -> str:
        return "" if self._echoes is None else self._echoes[index // self._made]

    def _prompt(self, index: int) -> list[int]:
        return list(self._prompts[index // self._made])

    def _logprobs_of(
        self, index: int, entries: Sequence[TokenLogprob], first: int | None
    ) -> dict[str, Any]:
        offset = self._offsets.get(index, 0)
        result = completion_logprobs(self._tokenizer, entries, offset, first)
        self._offsets[index] = offset + sum(map(len, result["tokens"]))
        return result


def _mean_logprob(choice: WholeChoice) -> float:
    values = [entry.logprob for entry in choice.logprobs]
    return sum(values) / len(values) if values else float("-inf")
