"""What answers look like, as types: for the description of the API, not for making answers."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]


class ErrorObject(msgspec.Struct, kw_only=True):
    """What went wrong; `param` names the field of the request that is to blame."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(msgspec.Struct, kw_only=True):
    """An error, in OpenAI's nested shape; Anthropic's endpoints add `type`, which is `error`."""

    error: ErrorObject


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    """How many prompt tokens came from the cache."""

    cached_tokens: int


class UsageObject(msgspec.Struct, kw_only=True):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class _Choice(msgspec.Struct, kw_only=True):
    """What the choices of completions and of chat have in common."""

    index: int
    logprobs: dict[str, Any] | None
    finish_reason: FinishReason
    stop_reason: int | str | None


class _Choices(msgspec.Struct, kw_only=True):
    """What the answers of completions and of chat have in common."""

    id: str
    created: int
    model: str
    usage: UsageObject


class CompletionChoice(_Choice, kw_only=True):
    """One continuation."""

    text: str


class Completion(_Choices, kw_only=True):
    """An answer of `/v1/completions`."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class AnswerFunction(msgspec.Struct, kw_only=True):
    """The function of a call; `arguments` is JSON text."""

    name: str
    arguments: str


class AnswerToolCall(msgspec.Struct, kw_only=True):
    """A call that the model made."""

    id: str
    type: Literal["function"]
    function: AnswerFunction


class AnswerMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The assistant's message."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning: str = ""
    reasoning_content: str = ""
    tool_calls: list[AnswerToolCall] = []


class ChatChoice(_Choice, kw_only=True):
    """One answer."""

    message: AnswerMessage


class ChatCompletion(_Choices, kw_only=True):
    """An answer of `/v1/chat/completions`."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class ResponseObject(msgspec.Struct, kw_only=True):
    """An answer of `/v1/responses`."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete", "failed", "cancelled"]
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any]


class DeletedResponse(msgspec.Struct, kw_only=True):
    """A response that was forgotten."""

    id: str
    object: Literal["response"]
    deleted: bool


class AnthropicMessage(msgspec.Struct, kw_only=True):
    """An answer of `/v1/messages`."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "cancelled"]
    stop_sequence: str | None
    usage: dict[str, int]


class TokenCount(msgspec.Struct, kw_only=True):
    """An answer of `/v1/messages/count_tokens`."""

    input_tokens: int


class ModelCard(msgspec.Struct, kw_only=True):
    """The served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int


class ModelList(msgspec.Struct, kw_only=True):
    """All models of the server."""

    object: Literal["list"]
    data: list[ModelCard]


class EmbeddingObject(msgspec.Struct, kw_only=True):
    """A vector of length 1: numbers, or in base64 their f32 bytes, little-endian."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct, kw_only=True):
    """Token counts of the texts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, kw_only=True):
    """An answer of `/v1/embeddings`."""

    object: Literal["list"]
    data: list[EmbeddingObject]
    model: str
    usage: EmbeddingUsage


class Tokens(msgspec.Struct, kw_only=True):
    """An answer of `/tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]


class Detokenized(msgspec.Struct, kw_only=True):
    """An answer of `/detokenize`."""

    prompt: str


class Cancelled(msgspec.Struct, kw_only=True):
    """A request that was cancelled."""

    id: str
    object: Literal["request"]
    cancelled: bool
