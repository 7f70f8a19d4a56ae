"""Log-probabilities in the two shapes that OpenAI's API has for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...executor.messages import TokenLogprob
from ..tokenizer import Tokenizer

_LOWEST = -9999.0  # JSON has no minus infinity; this is what OpenAI writes for it


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return `choices[].logprobs` of a chat completion."""

    def describe(token_id: int, logprob: float) -> dict[str, Any]:
        raw = tokenizer.token_bytes(token_id)
        return {"token": _text(raw), "logprob": max(logprob, _LOWEST), "bytes": list(raw)}

    return {
        "content": [
            {
                **describe(entry.token_id, entry.logprob),
                "top_logprobs": [describe(token_id, logprob) for token_id, logprob in entry.top],
            }
            for entry in entries
        ]
    }


def completion_logprobs(
    tokenizer: Tokenizer,
    entries: Sequence[TokenLogprob],
    offset: int,
    first_token: int | None = None,
) -> dict[str, Any]:
    """Return `choices[].logprobs` of a completion; `offset` is where the first token's text is.

    `first_token` stands before the others and has no log-probability: it opens an echoed prompt.
    """
    tokens: list[str] = []
    offsets: list[int] = []
    tops: list[dict[str, float] | None] = []
    values: list[float | None] = []
    if first_token is not None:
        tokens.append(_text(tokenizer.token_bytes(first_token)))
        offsets.append(offset)
        offset += len(tokens[0])
        tops.append(None)
        values.append(None)
    for entry in entries:
        values.append(max(entry.logprob, _LOWEST))
        text = _text(tokenizer.token_bytes(entry.token_id))
        tokens.append(text)
        offsets.append(offset)
        offset += len(text)
        top: dict[str, float] = {}
        for token_id, logprob in entry.top:
            top.setdefault(_text(tokenizer.token_bytes(token_id)), max(logprob, _LOWEST))
        tops.append(top)
    return {
        "tokens": tokens,
        "token_logprobs": values,
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def prompt_logprobs(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprob]
) -> list[dict[str, dict[str, Any]] | None]:
    """Return `prompt_logprobs` as vLLM has it: a map of token ids a prompt token, first null."""

    def describe(token_id: int, logprob: float, rank: int | None) -> dict[str, Any]:
        text = _text(tokenizer.token_bytes(token_id))
        return {"logprob": max(logprob, _LOWEST), "rank": rank, "decoded_token": text}

    found: list[dict[str, dict[str, Any]] | None] = [None]
    for entry in entries:
        table = {str(entry.token_id): describe(entry.token_id, entry.logprob, None)}
        for rank, (token_id, logprob) in enumerate(entry.top, 1):
            table[str(token_id)] = describe(token_id, logprob, rank)
        found.append(table)
    return found


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
